"""Intervals and p-values by published examples, and a report that claims a difference only where there is one."""

from random import Random

import pytest

from drivetrain.rollouts.evidence import Moments, Seen, step_of
from drivetrain.rollouts.experiments import METRICS, Report, compared
from drivetrain.rollouts.intervals import (
    Estimate,
    fisher,
    mean,
    mean_change,
    middle,
    middle_change,
    share,
    share_change,
)
from drivetrain.rollouts.plan import Arm, Rollout
from drivetrain.rollouts.report import text
from tests.unit.rollouts.traffic import USUAL, Manner, seen

AB = Rollout(
    id="e1",
    model="chat",
    kind="experiment",
    arms=(Arm(name="baseline"), Arm(name="quick"), Arm(name="shaky")),
    shares=(1, 1, 1),
)
SEEN = {
    "baseline": seen(USUAL, 1_500, seed=1),
    "quick": seen(Manner(first_token_s=0.15), 1_500, seed=2),
    "shaky": seen(Manner(failing=0.2), 1_500, seed=3),
}


def clear(report: Report) -> dict[str, list[str]]:
    return {
        arm.arm: [one.metric for one in arm.metrics if one.difference is not None and one.difference.clear]
        for arm in report.arms
    }


def test_the_interval_of_a_share_is_that_of_newcombes_example() -> None:
    found = share(81, 263, 0.95)  # Newcombe 1998, "Two-sided confidence intervals for the single proportion"
    assert [found.low, found.high] == pytest.approx([0.2553, 0.3662], abs=5e-5)
    assert share(0, 20, 0.95).low == 0.0
    assert share(0, 0, 0.95) == Estimate()


def test_the_interval_of_a_difference_is_that_of_newcombes_example() -> None:
    found = share_change((48, 80), (56, 70), 0.95)  # Newcombe 1998, "Interval estimation for the difference"
    assert found is not None
    assert [found.value, found.low, found.high] == pytest.approx([0.2, 0.0524, 0.3339], abs=5e-5)


def test_fishers_exact_test_tells_of_the_tea_and_of_twins() -> None:
    assert fisher((3, 4), (1, 4)) == pytest.approx(0.4857, abs=5e-5)  # The Design of Experiments, 1935
    assert fisher((10, 12), (3, 18)) == pytest.approx(0.000537, abs=5e-7)  # Statistical Methods, §21.02
    assert fisher((0, 50), (0, 70)) == 1.0


def test_huge_counts_have_the_p_value_of_the_normal_distribution() -> None:
    exact, rough = fisher((9_900, 100_000), (10_099, 100_000)), fisher((9_901, 100_000), (10_100, 100_000))
    assert exact == pytest.approx(rough, rel=0.02)


def test_a_mean_has_an_interval_from_thirty_amounts_on() -> None:
    assert mean(Moments(number=29, sum=58.0, squares=145.0), 0.95) == Estimate(value=2.0)
    found = mean(Moments(number=100, sum=200.0, squares=499.0), 0.95)  # variance 1
    assert [found.low, found.high] == pytest.approx([1.804, 2.196], abs=5e-4)
    assert mean_change(Moments(number=29, sum=58.0, squares=145.0), Moments(), 0.95) is None


def test_a_quantile_lies_between_the_amounts_of_two_ranks() -> None:
    counts = {step_of(float(number)): 1 for number in range(101, 201)}
    found = middle(counts, 0.5, 0.95)  # ranks 40 and 61 of 100, as in tables of the sign test
    assert [found.value, found.low, found.high] == pytest.approx([150, 140, 161], rel=0.005)
    assert middle({step_of(1.0): 5}, 0.95, 0.95).low is None
    assert middle_change({}, counts, 0.5, 0.95) is None


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_of_a_difference_hold_the_truth_as_often_as_they_say(metric: str) -> None:
    held = 0
    for run in range(100):
        change = METRICS[metric].change(seen(USUAL, 150, seed=run), seen(USUAL, 150, seed=1_000 + run), 0.9)
        truth = 0.0 if metric == "success rate" else 1.0
        held += change is None or change.low <= truth <= change.high
    assert held >= 82  # of 100 with 90 %, less than 82 are seen once in 200 times


def test_a_report_claims_the_differences_that_there_are() -> None:
    assert clear(compared(AB, SEEN)) == {
        "baseline": [],
        "quick": ["first token, median (s)", "first token, 95 % (s)"],
        "shaky": ["success rate", "cost of a request (µUSD)"],  # what fails costs nothing
    }


def test_a_report_of_equal_arms_claims_nothing_whenever_it_is_looked_at() -> None:
    claims = 0
    for run in range(40):
        rng = Random(run)
        same = [{name: seen(USUAL, size, seed=rng.randrange(10**9)) for name in SEEN} for size in (100, 300)]
        claims += any(any(clear(compared(AB, one)).values()) for one in same)
    assert claims <= 2


def test_an_arm_that_nobody_has_seen_is_in_the_report() -> None:
    report = compared(AB, {"baseline": SEEN["baseline"]})
    assert [arm.requests for arm in report.arms] == [1_500, 0, 0]
    assert {one.difference.change for one in report.arms[1].metrics if one.difference is not None} == {None}


def test_a_report_reads_as_a_table() -> None:
    two = Rollout(id="e1", model="chat", kind="experiment", arms=AB.arms[:2], shares=(1, 1))
    few = {
        "baseline": Seen(requests=1_000, failures=10, cost_micro_usd=Moments(number=1_000, sum=5e4, squares=1e7)),
        "quick": Seen(requests=500, failures=50, tokens_per_s={800: 20}),
    }
    assert text(compared(two, few)).splitlines() == [
        "experiment e1 of 'chat', running",
        "intervals hold the true value with 95%; differences are from 'baseline'",
        "",
        "baseline: 1,000 requests, 10 failed",
        "  success rate               99.00% [98.17%, 99.46%]",
        "  first token, median (s)    nothing seen",
        "  first token, 95 % (s)      nothing seen",
        "  tokens per second, median  nothing seen",
        "  cost of a request (µUSD)   50 [44.63, 55.37]",
        "",
        "quick: 500 requests, 50 failed",
        "  success rate               90.00% [87.06%, 92.33%]",
        "                             -9.00 points [-11.98, -6.52], p 5e-16, at any time 1.91e-12: differs",
        "  first token, median (s)    nothing seen",
        "  first token, 95 % (s)      nothing seen",
        "  tokens per second, median  54.73 [54.73, 54.73]",
        "                             too few to compare",
        "  cost of a request (µUSD)   nothing seen",
    ]
