"""The columns of an exported row: those of the ledger by their names, its place there, and an instant to partition by.

Kinds of values are named once here; each format says what it calls them. Columns are only ever added.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

from drivetrain.governance import Attempt
from drivetrain.sinks.batches import Row

Kind = Literal["text", "integer", "number", "boolean", "instant"]
_KINDS: Mapping[type, Kind] = {str: "text", int: "integer", float: "number", bool: "boolean"}


def _kind(hint: Any) -> Kind:
    """`Literal`s are texts; what may be missing is what it is otherwise."""
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    first = choices[0] if choices else hint
    return _KINDS[first if isinstance(first, type) else type(first)]


def _columns() -> dict[str, Kind]:
    hints = get_type_hints(Attempt)
    ours: dict[str, Kind] = {"seq": "integer", "started_at": "instant"}
    return ours | {name: _kind(hints[name]) for name in Attempt.__struct_fields__}


COLUMNS: Mapping[str, Kind] = _columns()
KEY = "id"  # tells rows apart, wherever they went
_LATEST_S = 253_402_300_799.0  # the last second of the year 9999: calendars end there
_INT64 = 2**63 - 1


def microseconds(at_s: float) -> int:
    """An instant in whole microseconds, which a float of this century is exact to. A clock that is far off makes one
    that a target may refuse, never one that cannot be written."""
    return min(max(round(at_s * 1e6), -_INT64), _INT64)


def values(row: Row) -> dict[str, Any]:
    """A row by its columns. An instant is in microseconds."""
    seq, attempt = row
    fields = {name: getattr(attempt, name) for name in Attempt.__struct_fields__}
    return {"seq": seq, "started_at": microseconds(attempt.started_s)} | fields


def day(row: Row) -> str:
    """The day on which an attempt began, in UTC."""
    started_s = min(max(row[1].started_s, 0.0), _LATEST_S)
    return datetime.fromtimestamp(started_s, UTC).date().isoformat()
