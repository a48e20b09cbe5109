"""Questions to the ledger: single rows, and what they come to by key, team, model or day."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import UNSET, UnsetType

from drivetrain.governance import Attempt
from drivetrain.store.spending import SUBJECTS
from drivetrain.types import Value

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Row, Select

Dimension = Literal["key", "user", "project", "team", "org", "model", "engine", "day", "outcome"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
DAY_S = 86400


class AttemptQuery(Value, frozen=True, kw_only=True):
    """Which rows of the ledger, newest first. `None` does not restrict."""

    request_id: str | None = None
    key: str | None = None  # these five by their ids
    user: str | None = None
    project: str | None = None
    team: str | None = None
    org: str | None = None
    model: str | None = None
    engine: str | None = None
    outcome: str | None = None
    since_s: float | None = None  # Unix time, inclusive
    until_s: float | None = None  # Unix time, exclusive
    limit: int = 100


class UsageQuery(Value, frozen=True, kw_only=True):
    """Which rows to add up, and by what. `None` does not restrict; no `group_by` gives one row."""

    group_by: tuple[Dimension, ...] = ()
    key: str | None = None  # these five by their ids
    user: str | None = None
    project: str | None = None
    team: str | None = None
    org: str | None = None
    model: str | None = None
    engine: str | None = None
    outcome: str | None = None
    since_s: float | None = None  # Unix time, inclusive
    until_s: float | None = None  # Unix time, exclusive


class UsageRow(Value, frozen=True, kw_only=True):
    """What a group comes to. Has the members that were asked for in `group_by`, and no other of the first nine."""

    key: str | UnsetType = UNSET  # ids, "" for nobody in particular
    user: str | UnsetType = UNSET
    project: str | UnsetType = UNSET
    team: str | UnsetType = UNSET
    org: str | UnsetType = UNSET
    model: str | UnsetType = UNSET  # public name
    engine: str | UnsetType = UNSET
    day: str | UnsetType = UNSET  # of the start, YYYY-MM-DD in UTC
    outcome: str | UnsetType = UNSET
    requests: int  # let in, each counted once however many attempts it took: their last attempts, but rejected ones
    rejected: int  # refused before an engine worked for them
    errors: int  # of `requests`, those that ended with an error
    cancelled: int  # of `requests`, those whose caller left
    attempts: int  # at engines
    estimated: int  # of `attempts`, those whose tokens no engine reported
    prompt_tokens: int
    cached_tokens: int  # of the prompt tokens
    cache_write_tokens: int
    completion_tokens: int
    reasoning_tokens: int  # of the completion tokens
    cost_micro_usd: int
    compute_micro_usd: int  # of the cost


_FILTERS: Mapping[str, str] = {
    "request_id": "request_id",
    **SUBJECTS,
    "model": "model",
    "engine": "engine",
    "outcome": "outcome",
}
_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_micro_usd",
    "compute_micro_usd",
)


def attempts_of(connection: "Connection", query: AttemptQuery) -> list[Attempt]:
    from sqlalchemy import select

    from drivetrain.store.tables import attempts

    newest_first = (attempts.c.started_s.desc(), attempts.c.seq.desc())
    asked = select(attempts).where(*_conditions(query)).order_by(*newest_first).limit(query.limit)
    return [_attempt(row)[1] for row in connection.execute(asked)]


def attempts_after(connection: "Connection", seq: int, limit: int) -> list[tuple[int, Attempt]]:
    from sqlalchemy import select

    from drivetrain.store.tables import attempts

    asked = select(attempts).where(attempts.c.seq > seq).order_by(attempts.c.seq).limit(limit)
    return [_attempt(row) for row in connection.execute(asked)]


def usage_of(connection: "Connection", query: UsageQuery) -> list[UsageRow]:
    from sqlalchemy import and_, case, func, select

    from drivetrain.store.tables import attempts

    column = attempts.c
    groups = [_group(connection, name).label(f"by_{name}") for name in query.group_by]
    request = and_(column.final, column.outcome != "rejected")

    def count(condition: "ColumnElement[bool]") -> "ColumnElement[int]":
        return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)

    counts = (
        count(request).label("requests"),
        count(column.outcome == "rejected").label("rejected"),
        count(and_(request, column.outcome == "error")).label("errors"),
        count(and_(request, column.outcome == "cancelled")).label("cancelled"),
        count(column.engine != "").label("attempts"),
        count(column.usage_estimated).label("estimated"),
        *(func.coalesce(func.sum(column[name]), 0).label(name) for name in _SUMS),
    )
    asked: Select[Any] = select(*groups, *counts).where(*_conditions(query)).group_by(*groups).order_by(*groups)
    return [_usage_row(dict(row)) for row in connection.execute(asked).mappings()]


def _conditions(query: AttemptQuery | UsageQuery) -> "Sequence[ColumnElement[bool]]":
    from drivetrain.store.tables import attempts

    column = attempts.c
    exact = {name: getattr(query, member, None) for member, name in _FILTERS.items()}
    conditions = [column[name] == value for name, value in exact.items() if value is not None]
    if query.since_s is not None:
        conditions.append(column.started_s >= query.since_s)
    if query.until_s is not None:
        conditions.append(column.started_s < query.until_s)
    return conditions


def _group(connection: "Connection", name: Dimension) -> "ColumnElement[Any]":
    from sqlalchemy import Integer, cast, func

    from drivetrain.store.tables import attempts

    if name != "day":
        return attempts.c[_FILTERS[name]]
    days = attempts.c.started_s / DAY_S  # what is cut to a whole number in SQLite is rounded in PostgreSQL
    return cast(days if connection.dialect.name == "sqlite" else func.floor(days), Integer)


def _usage_row(row: Mapping[str, Any]) -> UsageRow:
    values = {name.removeprefix("by_"): value for name, value in row.items()}
    if "day" in values:
        values["day"] = datetime.fromtimestamp(values["day"] * DAY_S, UTC).strftime("%Y-%m-%d")
    sums: dict[str, Any] = {name: int(value) for name, value in values.items() if not isinstance(value, str)}
    return UsageRow(**{**values, **sums})  # PostgreSQL's sums are decimals


def _attempt(row: "Row[Any]") -> tuple[int, Attempt]:
    seq, *fields = tuple(row)
    return seq, Attempt(**dict(zip(Attempt.__struct_fields__, fields, strict=True)))
