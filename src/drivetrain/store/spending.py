"""What was spent, hour by hour: kept beside the rows and in their transaction, so that what is left of a budget can be
told without adding up a month of rows.
"""

from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import TYPE_CHECKING

from drivetrain.governance import Rule

if TYPE_CHECKING:
    from sqlalchemy import Connection

END_S = 2.0**40  # later than any row: a budget for ever ends there
HOUR_S = 3600
NEWEST = "SELECT coalesce(max(seq), 0) FROM attempts"
SUBJECTS: Mapping[str, str] = {
    "key": "key_id",
    "user": "user_id",
    "project": "project_id",
    "team": "team_id",
    "org": "org_id",
}
_OWNERS = ", ".join((*SUBJECTS.values(), "model"))


def addition(hour: str, parameter: str) -> str:
    """Adds the rows numbered after `parameter` to what is kept. `hour` is SQL for the hour of `started_s`."""
    return (
        f"INSERT INTO spending (hour, {_OWNERS}, cost_micro_usd)"  # noqa: S608 - no value in it
        f" SELECT {hour}, {_OWNERS}, sum(cost_micro_usd) FROM attempts"
        f" WHERE seq > {parameter} AND cost_micro_usd <> 0 GROUP BY {hour}, {_OWNERS}"
        f" ON CONFLICT (hour, {_OWNERS}) DO UPDATE"
        " SET cost_micro_usd = spending.cost_micro_usd + excluded.cost_micro_usd"
    )


def spent_by(connection: "Connection", rule: Rule, from_s: float, until_s: float) -> int:
    """Micro-dollars that the rows within the scope of a rule cost, of those that started from…until: whole hours by
    what is kept, the rest by rows."""
    from sqlalchemy import func, select

    from drivetrain.store.tables import attempts, spending

    whose = scope(rule).items()
    until_s = min(until_s, END_S)
    first, last = ceil(from_s / HOUR_S), floor(until_s / HOUR_S)
    total = 0
    if first < last:
        hours = select(func.coalesce(func.sum(spending.c.cost_micro_usd), 0)).where(
            spending.c.hour >= first, spending.c.hour < last, *(spending.c[name] == value for name, value in whose)
        )
        total += int(connection.execute(hours).scalar_one())
    for since, before in _edges(from_s, until_s):
        rows = select(func.coalesce(func.sum(attempts.c.cost_micro_usd), 0)).where(
            attempts.c.started_s >= since,
            attempts.c.started_s < before,
            *(attempts.c[name] == value for name, value in whose),
        )
        total += int(connection.execute(rows).scalar_one())
    return total


def scope(rule: Rule) -> Mapping[str, str]:
    """Whose rows a rule counts, by columns: `key:ID:…` those of a key, `policy:NAME:MODEL:RESOURCE:PER` of a model."""
    kind, _, rest = rule.id.partition(":")
    if kind == "policy":
        model = rule.model if rule.model is not None else rest.partition(":")[2].rsplit(":", 2)[0]
        return {"model": model}
    whose = {SUBJECTS[kind]: rest.partition(":")[0]}
    return whose if rule.model is None else {**whose, "model": rule.model}


def _edges(from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """What of from…until is not whole hours."""
    first_s, last_s = ceil(from_s / HOUR_S) * HOUR_S, floor(until_s / HOUR_S) * HOUR_S
    if first_s >= last_s:
        yield from_s, until_s
        return
    if from_s < first_s:
        yield from_s, first_s
    if last_s < until_s:
        yield last_s, until_s
