"""A bad canary goes back by itself within its stage, a good one reaches everybody; nobody is alarmed for nothing."""

from collections import Counter

import pytest
from msgspec.structs import replace

from drivetrain.errors import Conflict
from drivetrain.governance import Move
from drivetrain.rollouts.evidence import Evidence, Seen
from drivetrain.rollouts.moves import moved
from drivetrain.rollouts.plan import Guards, Rollout, Shadow, Stage, State
from drivetrain.rollouts.step import step
from tests.unit.rollouts.traffic import USUAL, Manner, canary, made, passed, seen

COPIED = (Stage(percent=0, shadow=True, least_s=60, least_requests=100), *canary(5, 100))
WATCHED = made(*COPIED, guards=Guards(cost=1.3, answers=0.9), shadow=Shadow())
GOOD = seen(USUAL, 300)
FLAWLESS = Manner(failing=0.0)


def at(rollout: Rollout, evidence: Evidence, now_s: float = 100.0) -> tuple[str, str]:
    taken = step(rollout, evidence, now_s)
    return taken.action, taken.why


# --- whole rollouts ---------------------------------------------------------------------------------------------------


def test_a_good_canary_reaches_everybody_through_every_stage() -> None:
    through = passed(made(*canary(1, 5, 25, 100, least_requests=20)), seed=1, requests=20_000)
    assert through.rollout.state == "done"
    assert [taken.move for taken in through.steps if taken.move] == ["advance"] * 3 + ["finish"]


@pytest.mark.parametrize(
    ("guard", "arm"),
    [
        ("errors", Manner(failing=0.3)),
        ("first_token", Manner(first_token_s=1.5)),
        ("tokens_per_s", Manner(tokens_per_s=15.0)),
    ],
)
def test_a_bad_canary_is_rolled_back_within_its_first_stage(guard: str, arm: Manner) -> None:
    through = passed(made(*canary(5, 25, 100, least_requests=100)), arm=arm, seed=2)
    assert (through.rollout.state, through.rollout.stage) == ("rolled_back", 0)
    assert through.rollout.why.startswith(f"{guard}: ")
    assert through.callers < 100


@pytest.mark.parametrize(("guard", "arm"), [("answers", Manner(alike=0.5)), ("cost", Manner(cost=300.0))])
def test_what_copies_of_requests_show_rolls_back_before_any_caller_gets_it(guard: str, arm: Manner) -> None:
    through = passed(WATCHED, arm=arm, seed=3)
    assert (through.rollout.state, through.rollout.stage, through.callers) == ("rolled_back", 0, 0)
    assert through.rollout.why.startswith(f"{guard}: ")


def test_an_arm_that_goes_bad_with_everybody_on_it_is_compared_with_the_stage_before() -> None:
    rollout = replace(made(), stage=2)
    taken = step(rollout, Evidence(baseline=GOOD, arm=seen(Manner(failing=0.2), 300)), 100.0)
    assert taken.move == "rollback"


def test_the_same_arm_twice_raises_a_false_alarm_in_five_of_a_hundred_runs_at_most() -> None:
    # Every guard on and none with a margin, looked at again and again through all stages.
    guards = Guards(errors=0.0, first_token=1.0, tokens_per_s=1.0, cost=1.0)
    rollout = made(*canary(20, 50, 100, least_requests=60), guards=guards)
    ends = Counter(
        passed(replace(rollout, id=str(run)), seed=run, requests=900, look_every=60, callers=300).rollout.state
        for run in range(200)
    )
    assert ends["rolled_back"] <= 10
    assert ends["done"] >= 150


@pytest.mark.slow
def test_the_same_arm_twice_raises_no_more_false_alarms_with_many_requests_and_looks() -> None:
    guards = Guards(errors=0.0, first_token=1.0, tokens_per_s=1.0, cost=1.0)
    rollout = made(*canary(5, 25, 100, least_requests=500, least_s=4_000), guards=guards)
    ends = Counter(
        passed(replace(rollout, id=str(run)), seed=run, requests=13_000, look_every=200).rollout.state
        for run in range(200)
    )
    assert ends["rolled_back"] <= 10


# --- single steps -----------------------------------------------------------------------------------------------------


def test_a_stage_lasts_as_long_and_sees_as_many_requests_as_it_says() -> None:
    rollout = made(*canary(5, 100, least_s=60, least_requests=300))
    whole, few = seen(FLAWLESS, 300), seen(FLAWLESS, 299)
    enough = Evidence(baseline=whole, arm=whole)
    assert at(rollout, enough, 59.0) == ("hold", "59 of 60 s have passed")
    assert at(rollout, Evidence(baseline=whole, arm=few)) == ("hold", "299 of 300 requests answered at the new arm")
    assert at(rollout, Evidence(baseline=few, arm=whole)) == (
        "hold",
        "299 of 300 requests at the baseline, to compare with",
    )
    assert at(rollout, enough, 60.0) == ("advance", "300 requests answered at the new arm, and no guard against it")


def test_a_stage_in_which_both_arms_fail_alike_is_not_gone_on_from() -> None:
    dead = seen(Manner(failing=1.0), 300)
    assert at(made(*canary(5, 100)), Evidence(baseline=dead, arm=dead)) == (
        "hold",
        "0 of 50 requests answered at the new arm",
    )


def test_a_stage_that_nobody_asks_waits_and_says_so_when_it_should_have_ended() -> None:
    rollout = made(replace(canary(5)[0], most_s=600.0), *canary(100))
    assert at(rollout, Evidence(), 600.0) == ("hold", "0 of 50 requests answered at the new arm")
    assert at(rollout, Evidence(), 601.0) == (
        "hold",
        "the stage should have ended after 600 s; 0 of 50 requests answered at the new arm",
    )


def test_with_everybody_on_the_new_arm_no_baseline_is_asked_for() -> None:
    assert at(replace(made(), stage=2), Evidence(arm=seen(FLAWLESS, 300))) == (
        "done",
        "300 requests answered at the new arm, and no guard against it",
    )


def test_without_guards_there_is_nothing_to_compare_with() -> None:
    off = Guards(errors=None, first_token=None, tokens_per_s=None)
    assert at(made(guards=off), Evidence(arm=GOOD))[0] == "advance"


def test_a_doubt_holds_a_stage_that_no_guard_would_end() -> None:
    doubtful = Evidence(baseline=Seen(requests=1_000, failures=10), arm=Seen(requests=100, failures=11))
    action, why = at(made(), doubtful)
    assert action == "hold"
    assert why.startswith("in doubt, errors: 11.0% of requests failed")


def test_what_is_paused_or_over_holds_whatever_is_seen() -> None:
    bad = Evidence(baseline=GOOD, arm=Seen(requests=300, failures=300))
    states: tuple[State, ...] = ("paused", "done", "rolled_back")
    assert [at(replace(made(), state=state), bad) for state in states] == [
        ("hold", "it is paused"),
        ("hold", "it is done"),
        ("hold", "it is rolled back"),
    ]


# --- moves ------------------------------------------------------------------------------------------------------------


def test_a_move_is_a_version_with_its_reason_and_a_stage_begins_when_it_is_reached() -> None:
    after = moved(made(), "advance", why="looks fine", now_s=77.0)
    assert after == replace(made(), stage=1, since_s=77.0, why="looks fine", version=2)


def test_a_rollout_that_is_resumed_begins_its_stage_anew() -> None:
    paused = moved(replace(made(), stage=1, since_s=10.0), "pause", why="lunch", now_s=20.0)
    assert (paused.state, paused.stage, paused.since_s) == ("paused", 1, 10.0)
    after = moved(paused, "resume", why="back", now_s=30.0)
    assert (after.state, after.stage, after.since_s, after.version) == ("running", 1, 30.0, 3)


def test_what_is_done_can_still_be_rolled_back() -> None:
    done = replace(made(), state="done", stage=2)
    assert moved(done, "rollback", why="regret", now_s=1.0).state == "rolled_back"


@pytest.mark.parametrize(
    ("rollout", "move", "told"),
    [
        (replace(made(), state="rolled_back"), "advance", "rollout r1 is rolled back; make another one"),
        (replace(made(), state="rolled_back"), "rollback", "rollout r1 is rolled back; make another one"),
        (replace(made(), state="done"), "pause", "rollout r1 is done; make another one"),
        (replace(made(), state="paused"), "advance", "rollout r1 is paused; resume it, then advance it"),
        (replace(made(), state="paused"), "pause", "rollout r1 is paused already"),
        (made(), "resume", "rollout r1 is running"),
        (made(), "finish", "rollout r1 is in stage 1 of 3; advance it through the others, or roll it back"),
        (replace(made(), kind="experiment"), "advance", "experiment r1 has no stages; finish it, or roll it back"),
    ],
)
def test_a_move_that_its_state_does_not_allow_is_refused(rollout: Rollout, move: Move, told: str) -> None:
    with pytest.raises(Conflict) as refused:
        moved(rollout, move, why="", now_s=0.0)
    assert str(refused.value) == told
