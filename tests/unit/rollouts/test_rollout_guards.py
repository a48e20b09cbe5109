"""Guards tell in one sentence what an arm does worse, and share the chance of a false alarm among them."""

import math

import pytest
from msgspec.structs import replace

from drivetrain.rollouts.evidence import Evidence, Seen, Tally, mean_answer, quantile
from drivetrain.rollouts.guards import Verdict, verdicts
from drivetrain.rollouts.plan import Guards
from tests.unit.rollouts.traffic import USUAL, Manner, seen

ALL = Guards(cost=1.2, answers=0.9)


def judged(arm: Manner, guards: Guards = ALL, requests: int = 400) -> dict[str, Verdict]:
    tally = Tally()
    for number in range(200):
        tally.compared(float(number % 100 < arm.alike * 100))
    evidence = Evidence(
        baseline=seen(USUAL, 2_000, seed=1),
        arm=replace(seen(arm, requests, seed=2), answers=tally.seen().answers),
    )
    return {verdict.guard: verdict for verdict in verdicts(guards, evidence, stages=4)}


def test_an_arm_that_does_as_well_alarms_nobody() -> None:
    assert {guard: (verdict.alarm, verdict.doubt) for guard, verdict in judged(USUAL).items()} == dict.fromkeys(
        ("errors", "first_token", "tokens_per_s", "cost", "answers"), (False, False)
    )


@pytest.mark.parametrize(
    ("guard", "arm"),
    [
        ("errors", Manner(failing=0.15)),
        ("first_token", Manner(first_token_s=0.9)),
        ("tokens_per_s", Manner(tokens_per_s=20.0)),
        ("cost", Manner(cost=200.0)),
        ("answers", Manner(alike=0.6)),
    ],
)
def test_each_guard_finds_what_it_looks_for_and_nothing_else(guard: str, arm: Manner) -> None:
    assert [name for name, verdict in judged(arm).items() if verdict.alarm] == [guard]


def test_a_guard_that_is_off_says_nothing() -> None:
    off = Guards(errors=None, first_token=None, tokens_per_s=None)
    assert judged(Manner(failing=1.0), off) == {}


def test_the_chance_of_a_false_alarm_is_divided_among_guards_and_stages() -> None:
    bars = {verdict.bar for verdict in judged(USUAL).values()}
    assert bars == {math.log(2 * 4 * 5 / 0.05)}


def test_a_guard_tells_figures_and_what_is_allowed() -> None:
    evidence = Evidence(
        baseline=Seen(requests=1_000, failures=4, first_token_s={0: 10}),
        arm=Seen(requests=200, failures=30, tokens_per_s={800: 1}),
    )
    assert [verdict.text for verdict in verdicts(ALL, evidence, stages=1)] == [
        "15.0% of requests failed, at the baseline 0.4% of requests failed (allowed: 1.0% more than it)",
        "nothing seen, at the baseline 95 % have the first token within 1 s (allowed: 1.25 times it)",
        "54.7 tokens per second (allowed: 0.8 times it or more)",
        "nothing seen (allowed: 1.2 times it)",
        "nothing seen (allowed: 0.9 or more)",
    ]


def test_an_arm_that_mostly_fails_alarms_also_where_the_baseline_has_no_requests() -> None:
    alone = Evidence(arm=Seen(requests=20, failures=19))
    assert [verdict.alarm for verdict in verdicts(Guards(), alone, stages=3)] == [True, False, False]
    half = Evidence(arm=Seen(requests=20, failures=10))
    assert [verdict.alarm for verdict in verdicts(Guards(), half, stages=3)] == [False, False, False]


def lately(number: int, failing: int) -> Evidence:
    """A day of good answers, then so many requests of the new arm in the minutes that are running."""
    tallies = Tally(), Tally()
    for minute in range(24 * 60):
        for tally in tallies:
            for _ in range(20):
                tally.add(first_token_s=0.3, at_s=minute * 60.0)
    now_s = 24 * 3600.0
    for one in range(number):
        tallies[0].add(first_token_s=0.3, at_s=now_s + one)
        tallies[1].add(failed=one < failing, at_s=now_s + one)
    return Evidence(baseline=tallies[0].seen(), arm=tallies[1].seen())


def test_an_arm_that_was_good_for_a_day_and_fails_now_is_found_in_twenty_requests() -> None:
    found = verdicts(Guards(), lately(20, 20), stages=4)[0]
    assert found.alarm
    assert found.text == (
        "100.0% of requests failed, at the baseline 0.0% of requests failed, lately (allowed: 1.0% more than it)"
    )
    assert not any(verdict.alarm or verdict.doubt for verdict in verdicts(Guards(), lately(20, 0), stages=4))


def test_a_guard_that_saw_nothing_lately_tells_of_the_whole_stage() -> None:
    tally = Tally()
    for _ in range(50):
        tally.compared(1.0)  # of the stage: nobody counts comparisons apart
    good = lately(20, 0)
    found = verdicts(ALL, replace(good, arm=replace(good.arm, answers=tally.seen().answers)), stages=4)[-1]
    assert (found.guard, found.text) == ("answers", "answers 1.00 alike (allowed: 0.9 or more)")


def test_what_comes_lately_has_the_other_half_of_the_chance_over_all_epochs() -> None:
    bar = verdicts(Guards(), lately(20, 20), stages=4)[0].bar
    assert math.exp(-bar) == pytest.approx(0.05 / 2 / 3 / 4 / (144 * 145))  # 1/(1·2) + 1/(2·3) + … is 1


def test_rows_that_come_late_belong_to_the_whole_only() -> None:
    tally = Tally()
    for at_s in (100.0, 700.0, 200.0, 710.0):
        tally.add(at_s=at_s)
    late = tally.seen().lately
    assert late is not None
    assert (tally.seen().requests, late.seen.requests, late.epoch - late.first) == (4, 2, 1)


def test_counts_keep_every_request_to_half_a_percent() -> None:
    tally = Tally()
    for number in range(1, 1_001):
        tally.add(first_token_s=number / 1_000, tokens_per_s=float(number), cost_micro_usd=float(number))
    tally.add(failed=True)
    counted = tally.seen()
    assert (counted.requests, counted.failures, counted.cost_micro_usd.sum) == (1_001, 1, 500_500.0)
    assert [quantile(counted.first_token_s, level) for level in (0.5, 0.95)] == pytest.approx([0.5, 0.95], rel=0.005)
    assert counted.cost_micro_usd.variance == pytest.approx(83_583.5)


def test_counts_are_as_many_for_a_million_as_for_a_few() -> None:
    tally = Tally()
    for number in range(100_000):
        tally.add(first_token_s=0.001 * 1.0001**number)
    tally.add(first_token_s=0.0)
    tally.add(first_token_s=1e9)
    assert len(tally.seen().first_token_s) < 2_100


def test_scores_of_answers_lie_between_nothing_and_all() -> None:
    tally = Tally()
    for score in (-0.5, 0.0, 0.25, 0.999, 1.0, 7.0):
        tally.compared(score)
    assert tally.seen().answers == {0: 2, 25: 1, 100: 3}
    assert mean_answer(tally.seen().answers) == pytest.approx(3.25 / 6)
