"""Instants and lengths of time as they are typed and shown. Inside they are Unix seconds and seconds."""

import re
import time
from datetime import UTC, datetime
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LENGTH = re.compile(r"(\d+)\s*([smhdw])")


def length_s(text: str) -> float | None:
    """`90d`, `12h`; None for what is no length of time."""
    found = _LENGTH.fullmatch(text.strip())
    return float(int(found[1]) * _UNITS[found[2]]) if found else None


def instant_s(text: str, *, now_s: float, ahead: bool = False) -> float:
    """An ISO date or time, in UTC where it names no zone; `now`; `today`, when it began in UTC; or how long ago, or
    `ahead`: `7d`. Raises `ValueError`, whose message says what is wrong."""
    away_s = length_s(text)
    if away_s is not None:
        return now_s + away_s if ahead else now_s - away_s
    if text == "now":
        return now_s
    if text == "today":
        return now_s // 86400 * 86400
    try:
        written = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 2026-12-01, 2026-12-01T08:00+01:00, or 7d, 12h, 30m") from None
    return (written if written.tzinfo else written.replace(tzinfo=UTC)).timestamp()


def shown(instant: float | None, *, none: str = "-") -> str:
    """`2026-12-01 08:00:00Z`, without what is zero at its end: a day is a day."""
    if instant is None:
        return none
    try:
        moment = datetime.fromtimestamp(instant, UTC)
    except (ValueError, OverflowError, OSError):
        return none
    if moment.time() == moment.time().min:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M:%SZ}"


def iso(instant: float | None) -> str | None:
    """For JSON."""
    return None if instant is None else datetime.fromtimestamp(instant, UTC).isoformat().replace("+00:00", "Z")


def brief(seconds: float) -> str:
    """A span inside a request: `0.25 ms`, `12.4 ms`, `2,310 ms`."""
    ms = seconds * 1000
    return f"{ms:,.0f} ms" if ms >= 999.5 else f"{ms:.3g} ms" if ms else "0 ms"


class Instant(click.ParamType[float]):
    """An option's value: a time, or how far it is from now."""

    name = "time"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return instant_s(str(value), now_s=time.time(), ahead=self._ahead)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Length(click.ParamType[float]):
    """An option's value: how long."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = length_s(str(value))
        if found is None:
            self.fail(f"{value!r} is no length of time; write 90d, 12h or 30m", param, ctx)
        return found


PAST = Instant()
AHEAD = Instant(ahead=True)
LENGTH = Length()
