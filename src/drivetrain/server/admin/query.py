"""Query strings of the admin API: filters, pages, instants; and lists as it answers them. The unknown is refused."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from drivetrain.errors import BadRequest
from drivetrain.server.exchange import Exchange
from drivetrain.types import Value

MOST = 1000  # on one page
USUAL = 100
_BOOLS: Mapping[str, bool] = {"true": True, "false": False, "1": True, "0": False}


class Page(Value, frozen=True, kw_only=True):
    filters: Mapping[str, Any]
    after: str  # the id that the page before ended with
    limit: int


def parameters(exchange: Exchange, known: Sequence[str]) -> Mapping[str, str]:
    """Every parameter once. Raises `BadRequest` for one that is not known or is given twice."""
    found: dict[str, str] = {}
    try:
        given = parse_qsl(exchange.query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=50)
    except ValueError as error:
        raise BadRequest(f"the query cannot be read: {error}") from error
    for name, value in given:
        if name not in known:
            raise BadRequest(f"no parameter {name[:100]!r}; there are {', '.join(known)}", param=name[:100])
        if name in found:
            raise BadRequest(f"parameter {name!r} is given twice", param=name)
        if "\0" in value:
            raise BadRequest(f"parameter {name!r} holds a zero character", param=name)
        found[name] = value
    return found


def page(exchange: Exchange, filters: Sequence[str]) -> Page:
    given = dict(parameters(exchange, (*filters, "after", "limit")))
    limit = number(given.pop("limit", str(USUAL)), "limit", 1, MOST)
    after = given.pop("after", "")
    return Page(filters={name: _value(name, text) for name, text in given.items()}, after=after, limit=limit)


def _value(name: str, text: str) -> Any:
    if name != "disabled":
        return text
    if text not in _BOOLS:
        raise BadRequest(f"disabled={text[:100]!r}: true or false", param=name)
    return _BOOLS[text]


def number(text: str, name: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(f"{name}={text[:100]!r}: a whole number from {least} to {most}", param=name)
    return int(text)


def instant(text: str | None, name: str) -> float | None:
    """Unix seconds, or a date or time of ISO 8601, in UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _calendar(text, name)
    if not math.isfinite(seconds) or abs(seconds) > 1e11:
        raise _no_instant(text, name)
    return seconds


def _calendar(text: str, name: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise _no_instant(text, name) from error


def _no_instant(text: str, name: str) -> BadRequest:
    return BadRequest(
        f"{name}={text[:100]!r}: Unix seconds, or a time such as 2026-01-31 or 2026-01-31T12:00Z", param=name
    )


def listing(found: Sequence[Any], limit: int, *, by: str = "id") -> Mapping[str, Any]:
    """One page of what may be one more than it holds. `by`: the member that says where the next one begins."""
    more = len(found) > limit
    data = found[:limit]
    return {"object": "list", "data": data, "has_more": more, "next": getattr(data[-1], by) if more else None}
