"""What would become of a request: which engines it would go to, in which order and why. Asks and counts nothing."""

from collections.abc import Sequence

from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.retries import Retries
from drivetrain.router import Considered, Decision, Facts
from drivetrain.types import Value


class Choice(Value, frozen=True, kw_only=True):
    """The targets of one public name: the one asked for, or a fallback of it."""

    model: str
    policy: str
    arm: str = ""  # of the rollout that the model is in
    candidates: Sequence[Considered]  # in the order in which they would be asked


class Explanation(Value, frozen=True, kw_only=True):
    model: str
    prompt_tokens: int
    output_tokens: int
    choices: Sequence[Choice]  # that of the model, then those of its fallbacks
    total_s: float  # how long a request may take that says nothing of it
    retries: int  # further attempts that one request may have
    retries_left: int  # further attempts that all requests of the model may have now


def explanation(asked: Facts, decided: Sequence[tuple[Entry, Decision]], retries: Retries) -> Explanation:
    """`decided`: the entry of the model, or one for each arm of its rollout, then those of its fallbacks."""
    entry, _ = decided[0]
    rule = entry.policy.retries
    return Explanation(
        model=entry.name,
        prompt_tokens=asked.prompt_tokens,
        output_tokens=asked.output_tokens,
        choices=[
            Choice(
                model=each.name,
                policy=each.policy_name,
                arm=each.rollout.rpartition(":")[2],
                candidates=decision.considered,
            )
            for each, decision in decided
        ],
        total_s=entry.policy.timeouts.total_s,
        retries=rule.max,
        retries_left=retries.left(entry.name, rule),
    )
