"""How Ollama writes time: Go durations, `keep_alive`, RFC 3339 stamps, nanoseconds. Reads no clock."""

import math
import re
from datetime import UTC, datetime

from drivetrain.errors import BadRequest

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_LONGEST_S = 2**63 / 1e9  # what a Go duration can hold
FOREVER = -1.0  # seconds, in `keep_alive_s`
NEVER_EXPIRES = "2318-04-11T23:47:16.854775807Z"  # as far ahead as a Go duration reaches


def seconds(text: str) -> float:
    """A Go duration such as `1h30m`, `-1m` or `250ms`, in seconds. Raises `BadRequest` in Go's words."""
    sign = -1.0 if text.startswith("-") else 1.0
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0.0
    total, end = 0.0, 0
    for term in _TERM.finditer(body):
        if term.start() != end:
            break
        total, end = total + float(term[1]) * _unit_s(term[2], text), term.end()
    if not body or end != len(body):
        raise BadRequest(f'time: invalid duration "{text}"')
    return sign * total


def _unit_s(unit: str, text: str) -> float:
    if not unit:
        raise BadRequest(f'time: missing unit in duration "{text}"')
    if unit not in _UNITS_S:
        raise BadRequest(f'time: unknown unit "{unit}" in duration "{text}"')
    return _UNITS_S[unit]


def keep_alive_s(value: float | str | None) -> float | None:
    """What a caller's `keep_alive` means, in seconds: `None` is "not said", negative is "for ever".

    A bare number in a string, which Ollama refuses, counts as seconds: several clients send `"-1"`.
    """
    if value is None:
        return None
    if isinstance(value, str):
        value = float(value) if _NUMBER.fullmatch(value) else seconds(value)
    return float(value) if 0 <= value < _LONGEST_S else FOREVER


def keep_alive(value_s: float) -> int | float:
    """The JSON form of a keep-alive time."""
    if value_s < 0:
        return -1
    return int(value_s) if value_s == int(value_s) else value_s


def stamp(at_s: float) -> str:
    """RFC 3339, UTC, with nanoseconds, of a Unix time."""
    whole = math.floor(at_s)
    fraction = min(round((at_s - whole) * 1e9), 999_999_999)  # taken apart first: a double has no room for all digits
    return f"{datetime.fromtimestamp(whole, UTC).isoformat()[:19]}.{fraction:09d}Z"


def nanoseconds(value_s: float) -> int:
    return round(value_s * 1e9)
