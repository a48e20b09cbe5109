"""Tests that may be looked at at any time: fair where nothing is wrong, and quick where something is."""

import math
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.rollouts.evidence import Moments, step_of
from drivetrain.rollouts.statistics import (
    anytime_p,
    below,
    dearer,
    likely_above,
    more_failures,
    slower,
    slower_rate,
)

RATES = (0.0, 0.02, 0.3, 0.5, 0.9)


def counted(amounts: list[float]) -> dict[int, int]:
    steps = [step_of(amount) for amount in amounts]
    return {step: steps.count(step) for step in set(steps)}


def moments(amounts: list[float]) -> Moments:
    return Moments(number=len(amounts), sum=sum(amounts), squares=sum(amount**2 for amount in amounts))


def likelihood(times: int, of: int, rate: float) -> float:
    return math.comb(of, times) * rate**times * (1 - rate) ** (of - times)


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_betting_on_more_failures_gains_nothing_in_the_mean_where_there_are_not(margin: float) -> None:
    # Over all that may be seen in 12 and 9 requests.
    for first, second in product(RATES, RATES):
        if second <= first + margin:
            mean = sum(
                likelihood(bad, 12, first)
                * likelihood(other, 9, second)
                * math.exp(more_failures((bad, other), (12, 9), margin))
                for bad, other in product(range(13), range(10))
            )
            assert mean <= 1.0 + 1e-9


def test_betting_that_a_rate_is_above_one_gains_nothing_in_the_mean_where_it_is_not() -> None:
    for rate in (0.1, 0.4, 0.5):
        mean = sum(likelihood(bad, 15, rate) * math.exp(likely_above(bad, 15, 0.5)) for bad in range(16))
        assert mean <= 1.0 + 1e-9


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_betting_on_slower_gains_nothing_in_the_mean_where_it_is_not(level: float) -> None:
    # Two times, of which the higher one has just the chance that makes the lower one the quantile.
    chance = 1 - level
    low, high = step_of(1.0), step_of(2.0)
    mean = 0.0
    for over, others in product(range(11), range(9)):
        seen = {low: 10 - over, high: over}, {low: 8 - others, high: others}
        counts = [{step: number for step, number in one.items() if number} for one in seen]
        weight = likelihood(over, 10, chance) * likelihood(others, 8, chance)
        mean += weight * math.exp(slower(counts[0], counts[1], level, 1.0))
    assert mean <= 1.0 + 1e-9


def test_betting_on_worse_answers_gains_nothing_in_the_mean_where_they_are_not() -> None:
    for floor in (0.2, 0.8):
        mean = sum(
            likelihood(same, 20, floor) * math.exp(below({100: same, 0: 20 - same}, floor)) for same in range(21)
        )
        assert mean <= 1.0 + 1e-9


def test_an_arm_that_fails_always_is_found_in_a_few_requests() -> None:
    bar = math.log(400)  # one of 400 false alarms
    found = next(number for number in range(100) if more_failures((1, number), (100, number), 0.01) >= bar)
    assert found <= 5


def test_an_arm_that_fails_in_one_of_ten_requests_is_found_in_two_hundred() -> None:
    assert more_failures((20, 20), (2_000, 200), 0.01) >= math.log(400)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_failures_of_the_baseline_never_speak_against_the_arm(bad: int, good: int, other: int, fine: int) -> None:
    before = more_failures((bad, other), (bad + good, other + fine), 0.01)
    if bad + good and other + fine and other / (other + fine) <= bad / (bad + good) + 0.01:
        assert before <= 1e-9
    assert not math.isnan(before)


def test_ten_times_slower_is_found_in_twenty_requests() -> None:
    rng = Random(1)
    baseline = counted([rng.lognormvariate(0, 0.5) for _ in range(1_000)])
    arm = counted([10 * rng.lognormvariate(0, 0.5) for _ in range(20)])
    assert slower(baseline, arm, 0.95, 1.25) >= math.log(400)


def test_a_fifth_slower_is_no_harm_where_a_fourth_is_allowed() -> None:
    rng = Random(2)
    baseline = counted([rng.lognormvariate(0, 0.5) for _ in range(3_000)])
    arm = counted([1.2 * rng.lognormvariate(0, 0.5) for _ in range(3_000)])
    assert slower(baseline, arm, 0.95, 1.25) <= 0.0
    assert slower(baseline, arm, 0.5, 1.0) >= math.log(400)


def test_half_the_speed_is_found_and_twice_the_speed_is_not() -> None:
    rng = Random(3)
    baseline = counted([40 * rng.lognormvariate(0, 0.3) for _ in range(500)])
    half = counted([20 * rng.lognormvariate(0, 0.3) for _ in range(100)])
    assert slower_rate(baseline, half, 0.5, 0.8) >= math.log(400)
    assert slower_rate(half, baseline, 0.5, 0.8) <= 0.0


def test_nothing_is_said_of_what_was_not_seen() -> None:
    some = counted([1.0] * 50)
    assert slower({}, some, 0.95, 1.0) == slower(some, {}, 0.95, 1.0) == 0.0
    assert dearer(Moments(), Moments(), 1.0) == below({}, 0.9) == 0.0
    assert more_failures((0, 0), (0, 0), 0.0) == pytest.approx(0.0)


def test_twice_the_cost_is_found_and_a_tenth_more_is_allowed() -> None:
    rng = Random(4)
    baseline = moments([rng.lognormvariate(5, 0.7) for _ in range(1_000)])
    twice = moments([2 * rng.lognormvariate(5, 0.7) for _ in range(200)])
    tenth = moments([1.1 * rng.lognormvariate(5, 0.7) for _ in range(1_000)])
    assert dearer(baseline, twice, 1.2) >= math.log(400)
    assert dearer(baseline, tenth, 1.2) <= 0.0
    assert dearer(baseline, moments([1.0] * 49), 1.2) == 0.0


def test_equal_costs_that_never_vary_are_told_apart_at_once() -> None:
    assert dearer(moments([4.0] * 50), moments([4.0] * 50), 1.0) == 0.0
    assert dearer(moments([4.0] * 50), moments([5.0] * 50), 1.0) == math.inf


def test_worse_answers_are_found() -> None:
    assert below({100: 60, 0: 40}, 0.9) >= math.log(400)
    assert below({100: 95, 0: 5}, 0.9) <= 0.0
    assert below({100: 10, 99: 1}, 1.0) == math.inf


def test_a_p_value_is_what_the_evidence_leaves() -> None:
    assert [anytime_p(evidence) for evidence in (-1.0, 0.0, math.log(20), math.inf)] == pytest.approx([1, 1, 0.05, 0])


def alarms(seed: int) -> list[bool]:
    """Whether anybody who looks after every 30 requests, without any margin, is ever alarmed: of four tests."""
    rng = Random(seed)
    bad, of = [0, 0], [0, 0]
    first: list[dict[int, int]] = [{}, {}]
    costs: list[list[float]] = [[0.0, 0.0], [0.0, 0.0]]
    alarmed = [False] * 4
    for number in range(300):
        arm = rng.random() < 0.3
        of[arm] += 1
        bad[arm] += rng.random() < 0.02
        step, cost = step_of(rng.lognormvariate(0, 0.5)), rng.lognormvariate(0, 0.7)
        first[arm][step] = first[arm].get(step, 0) + 1
        costs[arm] = [costs[arm][0] + cost, costs[arm][1] + cost**2]
        if number % 30 == 29:
            means = [Moments(number=of[n], sum=costs[n][0], squares=costs[n][1]) for n in (0, 1)]
            evidence = (
                more_failures((bad[0], bad[1]), (of[0], of[1]), 0.0),
                slower(first[0], first[1], 0.95, 1.0),
                slower_rate(first[0], first[1], 0.5, 1.0),
                dearer(means[0], means[1], 1.0),
            )
            alarmed = [was or one >= math.log(20) for was, one in zip(alarmed, evidence, strict=True)]
    return alarmed


def test_each_test_keeps_its_chance_of_a_false_alarm_however_often_one_looks() -> None:
    assert [sum(test) <= 10 for test in zip(*map(alarms, range(200)), strict=True)] == [True] * 4  # 5 % of 200
