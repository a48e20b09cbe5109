"""Rates: exactly N a minute, and a refusal that knows when to come back."""

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.policies import charge, debt_s, take


def admitted(times: list[float], per_minute: int) -> list[float]:
    arrival_s, passed = 0.0, []
    for now_s in times:
        verdict = take(arrival_s, now_s, per_minute=per_minute)
        if verdict.allowed:
            arrival_s = verdict.arrival_s
            passed.append(now_s)
    return passed


def test_a_burst_gets_the_whole_minute_at_once_and_no_more() -> None:
    assert len(admitted([1000.0] * 400, per_minute=100)) == 100


def test_after_the_burst_one_passes_per_interval() -> None:
    times = [1000.0] * 60 + [1000.5, 1001.0, 1001.5, 1002.0]
    assert admitted(times, per_minute=60)[60:] == [1001.0, 1002.0]


@given(st.lists(st.floats(0, 300), max_size=200).map(sorted), st.integers(1, 50))
def test_who_waits_as_told_is_admitted(times: list[float], per_minute: int) -> None:
    arrival_s = 0.0
    for now_s in times:
        verdict = take(arrival_s, now_s, per_minute=per_minute)
        if not verdict.allowed:
            assert verdict.wait_s > 0
            assert take(arrival_s, now_s + verdict.wait_s, per_minute=per_minute).allowed
        arrival_s = verdict.arrival_s


def test_a_cost_above_the_limit_passes_an_untouched_limit_only() -> None:
    first = take(0.0, 1000.0, per_minute=10, cost=25)
    assert first.allowed
    assert not take(first.arrival_s, 1001.0, per_minute=10, cost=25).allowed


def test_a_late_charge_puts_the_limit_into_debt_until_it_is_worked_off() -> None:
    arrival_s = charge(0.0, 1000.0, per_minute=600, cost=1200)  # two minutes' worth
    assert debt_s(arrival_s, 1000.0) == 60.0
    assert debt_s(arrival_s, 1059.0) == 1.0
    assert debt_s(arrival_s, 1060.0) == 0.0
