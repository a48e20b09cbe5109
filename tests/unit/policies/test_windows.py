"""Rates: never more than the limit in any period, the wait to the instant, and what is given back is there again."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.policies import windows
from drivetrain.policies.windows import BUCKETS, Window, give, remaining, reset_s, take, wait_s

NOW_S = 1_796_000_000.0
MINUTE_S = 60.0


def taken(window: Window, now_s: float, *, limit: int = 3, cost: int = 1) -> bool:
    return take(window, now_s, limit=limit, period_s=MINUTE_S, cost=cost) == 0.0


def test_a_limit_lets_so_many_in_and_no_more() -> None:
    window = Window()
    assert [taken(window, NOW_S) for _ in range(4)] == [True, True, True, False]
    assert remaining(window, NOW_S, limit=3, period_s=MINUTE_S) == 0


def test_a_refusal_takes_nothing() -> None:
    window = Window()
    assert [taken(window, NOW_S, cost=cost) for cost in (2, 2, 1)] == [True, False, True]


def test_a_bucket_counts_for_a_whole_period_after_its_end() -> None:
    window = Window()
    assert taken(window, NOW_S + 0.5, limit=1)
    assert not taken(window, NOW_S + 60.999, limit=1)
    assert taken(window, NOW_S + 61.0, limit=1)


def test_the_wait_is_until_enough_of_it_is_a_period_old() -> None:
    window = Window()
    for second in (0, 10, 20):
        assert taken(window, NOW_S + second)
    now_s = NOW_S + 20.25
    waits = [wait_s(window, now_s, limit=3, period_s=MINUTE_S, cost=cost) for cost in (1, 2, 3)]
    assert waits == pytest.approx([40.75, 50.75, 60.75], abs=1e-5)
    assert not taken(window, now_s + waits[0] - 0.001)
    assert taken(window, now_s + waits[0])


def test_what_is_dearer_than_the_whole_limit_waits_until_nothing_counts() -> None:
    window = Window()
    assert taken(window, NOW_S, cost=1)
    wait = wait_s(window, NOW_S, limit=3, period_s=MINUTE_S, cost=10)
    assert wait == reset_s(window, NOW_S, period_s=MINUTE_S)
    assert taken(window, NOW_S + wait, cost=10)
    assert not taken(window, NOW_S + wait + 1, cost=1)


def test_what_is_given_back_is_free_at_once() -> None:
    window = Window()
    assert taken(window, NOW_S, cost=3)
    give(window, NOW_S, period_s=MINUTE_S, cost=2)
    assert remaining(window, NOW_S + 5, limit=3, period_s=MINUTE_S) == 2
    assert taken(window, NOW_S + 5, cost=2)


def test_what_turns_out_dearer_is_taken_where_it_was_reserved() -> None:
    window = Window()
    assert taken(window, NOW_S, cost=1)
    give(window, NOW_S, period_s=MINUTE_S, cost=-4)
    assert remaining(window, NOW_S + 30, limit=3, period_s=MINUTE_S) == 0
    assert remaining(window, NOW_S + 61, limit=3, period_s=MINUTE_S) == 3


def test_nothing_is_given_back_twice_or_of_what_is_long_gone() -> None:
    window = Window()
    assert taken(window, NOW_S, cost=3)
    assert taken(window, NOW_S + 100, cost=1)
    give(window, NOW_S, period_s=MINUTE_S, cost=3)
    give(window, NOW_S + 100, period_s=MINUTE_S, cost=9)
    assert remaining(window, NOW_S + 100, limit=3, period_s=MINUTE_S) == 3
    assert window.total == 0


def test_an_untouched_limit_is_whole() -> None:
    assert remaining(Window(), NOW_S, limit=3, period_s=MINUTE_S) == 3
    assert reset_s(Window(), NOW_S, period_s=MINUTE_S) == 0.0


def test_a_clock_that_is_set_back_gives_nothing_away() -> None:
    window = Window()
    assert taken(window, NOW_S, cost=3)
    assert not taken(window, NOW_S - 30)
    assert not taken(window, NOW_S + 59)
    assert taken(window, NOW_S + 61)


def test_a_window_keeps_no_more_than_its_buckets() -> None:
    window = Window()
    for second in range(10_000):
        taken(window, NOW_S + second, limit=1_000_000)
    assert len(window.counts) == BUCKETS + 1


# --- against a log of everything --------------------------------------------------------------------------------------

steps = st.floats(0, 50, allow_subnormal=False)
asks = st.lists(st.tuples(steps, st.integers(1, 4)), max_size=60)
periods = st.sampled_from([60.0, 3600.0, 86400.0])


def admissions(asked: list[tuple[float, int]], limit: int, period_s: float) -> list[tuple[float, int]]:
    """When how much was let in, of requests that come these steps after each other."""
    window, now_s, log = Window(), NOW_S, []
    for step, cost in asked:
        now_s += step * period_s / 60
        if not take(window, now_s, limit=limit, period_s=period_s, cost=cost):
            log.append((now_s, cost))
    return log


@given(asks, st.integers(4, 10), periods)
def test_never_more_than_the_limit_in_any_period(asked: list[tuple[float, int]], limit: int, period_s: float) -> None:
    log = admissions(asked, limit, period_s)
    for start_s, _ in log:
        assert sum(cost for at_s, cost in log if start_s <= at_s < start_s + period_s) <= limit


@given(asks, st.integers(4, 10), periods)
def test_nobody_is_refused_who_would_be_within_a_bucket_more(
    asked: list[tuple[float, int]], limit: int, period_s: float
) -> None:
    window, now_s, log = Window(), NOW_S, list[tuple[float, int]]()
    longer_s = period_s * (1 + 1 / BUCKETS) + 1e-3
    for step, cost in asked:
        now_s += step * period_s / 60
        used = sum(each for at_s, each in log if at_s > now_s - longer_s)
        admitted = not take(window, now_s, limit=limit, period_s=period_s, cost=cost)
        assert admitted or used + cost > limit
        if admitted:
            log.append((now_s, cost))


@given(asks, st.integers(1, 10), st.integers(1, 20), periods)
def test_whoever_waits_as_told_gets_in_and_an_instant_earlier_does_not(
    asked: list[tuple[float, int]], limit: int, cost: int, period_s: float
) -> None:
    window, now_s = Window(), NOW_S
    for step, each in asked:
        now_s += step * period_s / 60
        take(window, now_s, limit=limit, period_s=period_s, cost=each)
    wait = wait_s(window, now_s, limit=limit, period_s=period_s, cost=cost)
    if wait > 0.01:
        assert wait_s(window, now_s + wait - 0.001, limit=limit, period_s=period_s, cost=cost) > 0
    assert take(window, now_s + wait, limit=limit, period_s=period_s, cost=cost) == 0.0


@given(st.lists(st.tuples(steps, st.integers(0, 5), st.integers(0, 8)), max_size=40), periods)
def test_the_sum_is_that_of_the_buckets_whatever_is_taken_and_given(
    moves: list[tuple[float, int, int]], period_s: float
) -> None:
    window, now_s = Window(), NOW_S
    for step, reserved, spent in moves:
        now_s += step * period_s / 60
        windows.add(window, now_s, period_s=period_s, cost=reserved)
        give(window, now_s, period_s=period_s, cost=reserved - spent)
        remaining(window, now_s, limit=0, period_s=period_s)
        first = math.floor(now_s / (period_s / BUCKETS)) - BUCKETS
        assert window.total == sum(window.counts.values())
        assert all(number >= first and amount > 0 for number, amount in window.counts.items())
