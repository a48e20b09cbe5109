"""A request's life as the rows of its attempts tell it: when it came, was let in, was tried where, and what it cost.

Pure. What went to a shadow is part of the story, and not of what the caller got and paid.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drivetrain.governance import Attempt
from drivetrain.rollouts.plan import SHADOW
from drivetrain.types import Value

ENDS = {"ok": "last token", "cancelled": "caller left", "absorbed": "failed", "error": "failed", "rejected": "refused"}


class Step(Value, frozen=True, kw_only=True):
    at_s: float  # since the request came
    name: str
    attempt: int | None = None  # its position; None: of the request as a whole
    facts: Mapping[str, Any] = {}


class Life(Value, frozen=True, kw_only=True):
    """One request, from all rows that the ledger has of it."""

    request_id: str
    received_s: float  # Unix time
    trace_id: str
    dialect: str
    model: str
    stream: bool
    key_id: str
    outcome: str
    status: int
    cost_micro_usd: int
    tags: str
    steps: tuple[Step, ...]  # as they followed one another
    attempts: tuple[Attempt, ...]


def life(attempts: Sequence[Attempt]) -> Life:
    """Of one request's attempts, at least one, in any order."""
    rows = _sorted(attempts)
    mine = _seen(rows)
    first, last = mine[0], mine[-1]
    return Life(
        request_id=first.request_id,
        received_s=_began_s(rows),
        trace_id=first.trace_id,
        dialect=first.dialect,
        model=first.model,
        stream=first.stream,
        key_id=first.key_id,
        outcome=last.outcome,
        status=last.status,
        cost_micro_usd=sum(row.cost_micro_usd for row in mine),
        tags=first.tags,
        steps=tuple(steps(rows)),
        attempts=tuple(rows),
    )


def steps(attempts: Sequence[Attempt]) -> list[Step]:
    """Of one request's attempts, at least one, in any order: the steps as they followed one another."""
    rows = _sorted(attempts)
    mine, came_s = _seen(rows), _began_s(rows)
    first = mine[0]
    found = [Step(at_s=0.0, name="received", facts={"dialect": first.dialect, "model": first.model})]
    before: Attempt | None = None
    for row in mine:
        if row.engine:
            found += _entrance(row, before)
            before = row
        found += _tried(row, row.started_s - came_s)
    spent = sum(row.cost_micro_usd for row in mine)
    settled = Step(at_s=max(step.at_s for step in found), name="settled", facts={"cost_micro_usd": spent})
    shadows = [step for row in rows if row not in mine for step in _tried(row, row.started_s - came_s)]
    return sorted([*sorted(found, key=_at_s), settled, *shadows], key=_at_s)


def told(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {"at_ms": round(step.at_s * 1000, 3), "step": step.name, "attempt": step.attempt, **step.facts}
        for step in steps
    ]


def _sorted(attempts: Sequence[Attempt]) -> list[Attempt]:
    return sorted(attempts, key=lambda row: (row.position, row.started_s))


def _at_s(step: Step) -> float:
    return step.at_s


def _is_shadow(row: Attempt) -> bool:
    return row.rollout.endswith(SHADOW)


def _seen(rows: Sequence[Attempt]) -> Sequence[Attempt]:
    """Those that the caller had something of; of a request that only shadows are left of, these."""
    return [row for row in rows if not _is_shadow(row)] or rows


def _began_s(rows: Sequence[Attempt]) -> float:
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
        where = {
            "engine": row.engine,
            "engine_model": row.engine_model,
            "model_version": row.model_version,
            "region": row.region,
            "rollout": row.rollout,
            "prompt_version": row.prompt_version,
        }
        chosen = {"why": row.why} if row.outcome == "ok" else {}  # of a failure, `why` is the error
        name = "shadow" if _is_shadow(row) else "attempt"
        yield Step(at_s=at_s, name=name, attempt=row.position, facts=_known(where | chosen))
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
