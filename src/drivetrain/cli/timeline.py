"""A request's life as the rows of its attempts tell it: when it came, was let in, was tried where, and what it cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.cli.amounts import dollars
from drivetrain.cli.moments import brief
from drivetrain.governance import Attempt
from drivetrain.types import Value

COSTLY = ("prompt_tokens", "completion_tokens", "cost_micro_usd")
ENDS = {"ok": "last token", "cancelled": "caller left", "absorbed": "failed", "error": "failed", "rejected": "refused"}


class Step(Value, frozen=True, kw_only=True):
    at_s: float  # since the request came
    name: str
    attempt: int | None = None  # its position; None: of the request as a whole
    facts: Mapping[str, Any] = {}


def steps(attempts: Sequence[Attempt]) -> list[Step]:
    """Of one request's attempts, at least one, in any order: the steps as they followed one another."""
    rows = sorted(attempts, key=lambda row: (row.position, row.started_s))
    first, came_s = rows[0], began_s(rows)
    found = [Step(at_s=0.0, name="received", facts={"dialect": first.dialect, "model": first.model})]
    before: Attempt | None = None
    for row in rows:
        if row.engine:
            found += _entrance(row, before)
            before = row
        found += _tried(row, row.started_s - came_s)
    spent = sum(row.cost_micro_usd for row in rows)
    settled = Step(at_s=max(step.at_s for step in found), name="settled", facts={"cost_micro_usd": spent})
    return [*sorted(found, key=lambda step: step.at_s), settled]


def began_s(rows: Sequence[Attempt]) -> float:
    """When the request came, as far as is known: rows of older versions do not tell."""
    return min(row.received_s or row.started_s for row in rows)


def _entrance(row: Attempt, before: Attempt | None) -> Iterator[Step]:
    """How it was let in for this attempt: anew under the policy of a fallback, else perhaps for more money."""
    anew = before is None or row.admitted_s != before.admitted_s
    if anew and row.queued_s:
        begun_s = max(0.0, row.admitted_s - row.queued_s)
        yield Step(at_s=begun_s, name="queued", facts={"queued_s": row.queued_s})
    if anew:
        yield Step(at_s=row.admitted_s, name="admitted")
    aside = 0 if anew or before is None else before.reserved_micro_usd
    if row.reserved_micro_usd and row.reserved_micro_usd != aside:
        at_s = row.admitted_s if anew else row.started_s - row.received_s
        yield Step(at_s=at_s, name="reserved", facts={"reserved_micro_usd": row.reserved_micro_usd})


def _tried(row: Attempt, at_s: float) -> Iterator[Step]:
    """One attempt; a request that was refused before an engine was asked has no more than its end."""
    if row.engine:
        where = {"engine": row.engine, "engine_model": row.engine_model, "region": row.region}
        chosen = {"why": row.why} if row.outcome == "ok" else {}  # of a failure, `why` is the error
        yield Step(at_s=at_s, name="attempt", attempt=row.position, facts=_known(where | chosen))
    if row.first_token_s is not None:
        yield Step(at_s=at_s + row.first_token_s, name="first token", attempt=row.position)
    ended = {"outcome": row.outcome, "status": row.status, "why": "" if row.outcome == "ok" else row.why}
    at_end_s = at_s + max(row.total_s, row.first_token_s or 0.0)
    yield Step(at_s=at_end_s, name=ENDS[row.outcome], attempt=row.position, facts=_known(ended) | _took(row))


def _took(row: Attempt) -> dict[str, Any]:
    if not row.engine:
        return {}
    counts = {
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        "reasoning_tokens": row.reasoning_tokens,
    }
    return counts | {"estimated": row.usage_estimated, "cost_micro_usd": row.cost_micro_usd, "price_id": row.price_id}


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value != ""}


# --- for people -------------------------------------------------------------------------------------------------------


def line(step: Step) -> tuple[str, str, str]:
    """When, what, and what there is to say of it."""
    name = step.name if step.name != "attempt" else f"attempt {step.attempt}"
    return brief(step.at_s), name, _words(step)


def _words(step: Step) -> str:
    facts = step.facts
    match step.name:
        case "received":
            return f"{facts['dialect']}, model {facts['model']}"
        case "queued":
            return f"waited {brief(facts['queued_s'])}"
        case "reserved":
            return dollars(facts["reserved_micro_usd"])
        case "attempt":
            place = f" in {facts['region']}" if "region" in facts else ""
            why = f": {facts['why']}" if "why" in facts else ""
            return f"{facts['engine']}{place}, model {facts['engine_model']}{why}"
        case "settled":
            return dollars(facts["cost_micro_usd"])
        case _:
            return _ending(facts)


def _ending(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    said = [f"{facts['status']} {facts['why']}"] if "why" in facts else [str(facts["outcome"])]
    if any(facts.get(name) for name in COSTLY):  # of what failed there is usually nothing
        said += [_tokens(facts), dollars(facts["cost_micro_usd"])]
        said += [] if facts["price_id"] else ["no price"]
    return ", ".join(said)


def _tokens(facts: Mapping[str, Any]) -> str:
    cached = f" ({facts['cached_tokens']} cached)" if facts["cached_tokens"] else ""
    reasoning = f" ({facts['reasoning_tokens']} reasoning)" if facts["reasoning_tokens"] else ""
    about = "about " if facts["estimated"] else ""
    return f"{about}{facts['prompt_tokens']}{cached} + {facts['completion_tokens']}{reasoning} tokens"
