"""Windows of budgets: they follow each other without a gap, whatever the clocks of a place do."""

import math
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drivetrain.errors import BadRequest
from drivetrain.governance import Per
from drivetrain.policies.calendars import HOUR_S, ROLLING_S, window

BERLIN, KOLKATA, LORD_HOWE = "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"
ZONES = (
    "UTC",
    BERLIN,
    KOLKATA,
    LORD_HOWE,  # clocks change by half an hour
    "America/New_York",
    "America/Havana",  # at midnight, and midnight comes twice
    "America/Santiago",  # at midnight, which is skipped
    "America/St_Johns",
    "Africa/Cairo",
    "Antarctica/Troll",  # by two hours
    "Pacific/Apia",
    "Pacific/Kiritimati",
)


def at(zone: str, *parts: int, fold: int = 0) -> float:
    return datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp()  # type: ignore[arg-type,misc] # year to second


def hours(per: Per, zone: str, now_s: float) -> float:
    start_s, end_s = window(per, zone, now_s)
    return (end_s - start_s) / HOUR_S


@pytest.mark.parametrize(
    ("per", "start", "end"),
    [
        ("minute", (2026, 11, 30, 14, 7), (2026, 11, 30, 14, 8)),
        ("hour", (2026, 11, 30, 14), (2026, 11, 30, 15)),
        ("day", (2026, 11, 30), (2026, 12, 1)),
        ("week", (2026, 11, 30), (2026, 12, 7)),  # a Monday
        ("month", (2026, 11, 1), (2026, 12, 1)),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", BERLIN, KOLKATA])
def test_a_window_is_that_of_the_places_calendar(
    per: Per, start: tuple[int, ...], end: tuple[int, ...], zone: str
) -> None:
    now_s = at(zone, 2026, 11, 30, 14, 7, 31)
    assert window(per, zone, now_s) == (at(zone, *start), at(zone, *end))


def test_all_time_is_one_window() -> None:
    assert window("total", "UTC", 5.0) == (0.0, math.inf)


def test_a_week_begins_on_monday() -> None:
    sunday = at(BERLIN, 2026, 12, 6, 23, 59, 59)
    assert window("week", BERLIN, sunday) == (at(BERLIN, 2026, 11, 30), at(BERLIN, 2026, 12, 7))
    assert window("week", BERLIN, sunday + 1)[0] == sunday + 1


def test_a_month_ends_with_the_last_second_of_its_last_day() -> None:
    last = at(BERLIN, 2026, 12, 31, 23, 59, 59)
    assert window("month", BERLIN, last) == (at(BERLIN, 2026, 12, 1), last + 1)
    assert window("month", BERLIN, last + 1) == (last + 1, at(BERLIN, 2027, 2, 1))


def test_a_leap_day_is_a_day_of_february() -> None:
    leap = at("UTC", 2028, 2, 29, 12)
    assert window("day", "UTC", leap) == (at("UTC", 2028, 2, 29), at("UTC", 2028, 3, 1))
    assert window("month", "UTC", leap) == (at("UTC", 2028, 2, 1), at("UTC", 2028, 3, 1))


def test_a_day_is_shorter_and_longer_where_clocks_are_changed() -> None:
    assert hours("day", BERLIN, at(BERLIN, 2026, 3, 29, 12)) == 23
    assert hours("day", BERLIN, at(BERLIN, 2026, 10, 25, 12)) == 25
    assert hours("day", LORD_HOWE, at(LORD_HOWE, 2026, 4, 5, 12)) == 24.5
    assert hours("week", BERLIN, at(BERLIN, 2026, 10, 25, 12)) == 7 * 24 + 1


def test_the_hour_that_comes_twice_is_two_hours() -> None:
    first, second = at(BERLIN, 2026, 10, 25, 2, 30), at(BERLIN, 2026, 10, 25, 2, 30, fold=1)
    assert window("hour", BERLIN, first) == (first - 1800, first + 1800)
    assert window("hour", BERLIN, second) == (second - 1800, second + 1800)


def test_a_midnight_that_is_skipped_begins_the_day_an_hour_late() -> None:
    santiago = "America/Santiago"  # 2026-09-06 00:00 → 01:00
    start_s, _ = window("day", santiago, at(santiago, 2026, 9, 6, 12))
    assert start_s == at(santiago, 2026, 9, 6, 1)
    assert hours("day", santiago, start_s) == 23


def test_a_midnight_that_comes_twice_begins_one_day() -> None:
    havana = "America/Havana"  # 2026-11-01 01:00 → 00:00
    first, second = at(havana, 2026, 11, 1), at(havana, 2026, 11, 1, fold=1)
    assert second - first == HOUR_S
    assert window("day", havana, first) == window("day", havana, second) == (first, at(havana, 2026, 11, 2))


def test_a_day_goes_on_where_clocks_went_back_over_its_midnight() -> None:
    johns = "America/St_Johns"  # 2006-10-29 00:01 → 2006-10-28 23:01
    began = at(johns, 2006, 10, 29)
    for minute in (0, 1, 30, 59, 60, 90):
        assert window("day", johns, began + minute * 60) == (began, at(johns, 2006, 10, 30))


def test_rolling_periods_have_the_same_length_always() -> None:
    assert {
        "minute": 60,
        "hour": 3600,
        "day": 86400,
        "week": 604800,
        "month": 2592000,
        "total": math.inf,
    } == ROLLING_S


@pytest.mark.parametrize("zone", ["Europe/Berlyn", "", "../../etc/passwd", "Europe", "/etc/localtime", "\0", "x" * 999])
def test_a_zone_that_nobody_knows_is_told(zone: str) -> None:
    with pytest.raises(BadRequest, match="expected a name such as UTC or Europe/Berlin"):
        window("day", zone, 0.0)


# --- whatever the instant ---------------------------------------------------------------------------------------------

LIKELY_S = st.integers(int(at("UTC", 2000, 1, 1)), int(at("UTC", 2037, 1, 1)))
KINDS = st.sampled_from(["minute", "hour", "day", "week", "month"])


@given(KINDS, st.sampled_from(ZONES), LIKELY_S.map(float))
@example("day", "Pacific/Apia", at("Pacific/Apia", 2011, 12, 29, 12))  # the day after it was left out
@example("hour", LORD_HOWE, at(LORD_HOWE, 2026, 4, 5, 1, 45, fold=1))
def test_windows_follow_each_other_without_a_gap(per: Per, zone: str, now_s: float) -> None:
    start_s, end_s = window(per, zone, now_s)
    assert start_s <= now_s < end_s
    for same_s in (start_s, (start_s + end_s) / 2, end_s - 0.5):
        assert window(per, zone, same_s) == (start_s, end_s)
    assert window(per, zone, end_s)[0] == end_s
    assert window(per, zone, start_s - 0.5)[1] == start_s


@pytest.mark.parametrize(("per", "resets"), [("month", 12), ("day", 366), ("week", 52)])
@pytest.mark.parametrize("zone", ZONES)
def test_a_budget_begins_anew_once_a_window(per: Per, resets: int, zone: str) -> None:
    """Over a leap year, looked at by three replicas at different minutes."""
    starts: set[float] = set()
    begin_s, end_s = at(zone, 2028, 1, 1), at(zone, 2029, 1, 1)
    for replica in (0, 7 * 60, 23 * 60):
        now_s = begin_s + replica
        while now_s < end_s:
            starts.add(window(per, zone, now_s)[0])
            now_s += 3 * HOUR_S
    assert len([start_s for start_s in starts if begin_s <= start_s < end_s]) == resets
