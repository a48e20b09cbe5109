"""When the window of a budget begins and ends: an hour, day, week or month of somebody's calendar, or all of time.

Windows of a kind follow each other without a gap, so a budget begins anew once, whatever clocks do: a day lasts 23 or
25 hours where they are changed, hours count from the day's beginning, and a midnight that comes twice begins the day
when it comes first.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from drivetrain.errors import BadRequest
from drivetrain.governance import Per

Span = tuple[float, float]  # Unix seconds, from (inclusive) and until (exclusive)
HOUR_S: Final = 3600.0
ROLLING_S: Final[Mapping[Per, float]] = {
    "minute": 60.0,
    "hour": HOUR_S,
    "day": 24 * HOUR_S,
    "week": 7 * 24 * HOUR_S,
    "month": 30 * 24 * HOUR_S,
    "total": math.inf,
}


def window(per: Per, zone: str, now_s: float) -> Span:
    """The window of a calendar that an instant is in. Raises `BadRequest` for a zone that nobody knows."""
    return _WINDOWS[per](zone_named(zone), now_s)


@lru_cache(maxsize=1024)
def zone_named(name: str) -> tzinfo:
    """UTC is always known; the others come from the system's time zone data, or from the package `tzdata`."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        known = "expected a name such as UTC or Europe/Berlin"
        raise BadRequest(f"time zone {name!r} is not known here; {known}", param="zone") from error


def _all_time(zone: tzinfo, now_s: float) -> Span:
    return 0.0, math.inf


def _minute(zone: tzinfo, now_s: float) -> Span:
    start_s = now_s // 60 * 60
    return start_s, start_s + 60


def _hour(zone: tzinfo, now_s: float) -> Span:
    first_s, end_s = _day(zone, now_s)
    start_s = first_s + (now_s - first_s) // HOUR_S * HOUR_S
    return start_s, min(start_s + HOUR_S, end_s)


def _day(zone: tzinfo, now_s: float) -> Span:
    return _dates(zone, now_s, _same, _next_day)


def _week(zone: tzinfo, now_s: float) -> Span:
    return _dates(zone, now_s, lambda day: day - timedelta(days=day.weekday()), lambda day: day + timedelta(days=7))


def _month(zone: tzinfo, now_s: float) -> Span:
    return _dates(zone, now_s, _first_of_month, lambda day: _first_of_month(day + timedelta(days=31)))


def _same(day: date) -> date:
    return day


def _next_day(day: date) -> date:
    return day + timedelta(days=1)


def _first_of_month(day: date) -> date:
    return day.replace(day=1)


def _dates(zone: tzinfo, now_s: float, first: Callable[[date], date], following: Callable[[date], date]) -> Span:
    """From the midnight of a first day to that of the following one."""
    day = first(datetime.fromtimestamp(now_s, zone).date())
    start_s, end_s = _midnight(zone, day), _midnight(zone, following(day))
    while end_s <= now_s:  # clocks went back over midnight: the new day has begun already
        day = following(day)
        start_s, end_s = end_s, _midnight(zone, following(day))
    return start_s, end_s


@lru_cache(maxsize=1024)
def _midnight(zone: tzinfo, day: date) -> float:
    """When a day begins. A midnight that is skipped is the instant at which clocks were put forward."""
    return datetime.combine(day, time(), zone).timestamp()


_WINDOWS: Mapping[Per, Callable[[tzinfo, float], Span]] = {
    "minute": _minute,
    "hour": _hour,
    "day": _day,
    "week": _week,
    "month": _month,
    "total": _all_time,
}
