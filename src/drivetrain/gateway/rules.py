"""Which limits and budgets a request is under: those of its policy, and those of its key. Pure."""

from collections.abc import Iterator, Sequence

from drivetrain.config.schema import Budget, Limits, Policy
from drivetrain.governance import Per, Principal, Resource, Rule
from drivetrain.policies.access import plain

MICRO = 1_000_000
RATES: Sequence[tuple[str, Resource, Per]] = (
    ("requests_per_minute", "requests", "minute"),
    ("requests_per_day", "requests", "day"),
    ("tokens_per_minute", "tokens", "minute"),
    ("tokens_per_day", "tokens", "day"),
    ("concurrency", "concurrency", ""),
)


def of_policy(name: str, model: str, policy: Policy) -> tuple[Rule, ...]:
    """A policy's limits and budgets hold for each public model that uses it, by itself."""
    return (*_limits(name, model, policy.limits), *_budgets(name, model, policy.budgets))


def of_principal(who: Principal, model: str) -> Sequence[Rule]:
    if all(rule.model is None for rule in who.rules):
        return who.rules
    return [rule for rule in who.rules if rule.model is None or plain(rule.model) == plain(model)]


def _limits(name: str, model: str, limits: Limits) -> Iterator[Rule]:
    for member, resource, per in RATES:
        if (amount := getattr(limits, member)) is not None:
            yield Rule(
                id=f"policy:{name}:{model}:{resource}:{per}",
                owner=f"policy {name!r}",
                resource=resource,
                amount=amount,
                per=per,
                model=model,
                on_loss=limits.on_loss,
            )


def _budgets(name: str, model: str, budgets: Sequence[Budget]) -> Iterator[Rule]:
    for budget in budgets:
        kind = "rolling" if budget.rolling else budget.zone
        yield Rule(
            id=f"policy:{name}:{model}:money:{budget.per}:{kind}",
            owner=f"policy {name!r}",
            resource="money",
            amount=round(budget.usd * MICRO),
            per=budget.per,
            rolling=budget.rolling,
            zone=budget.zone,
            hard=budget.hard,
            model=model,
            on_loss=budget.on_loss,
        )
