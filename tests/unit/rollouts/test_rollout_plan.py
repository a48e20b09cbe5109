"""Which arm a caller gets: the same one for ever, and a bigger share only adds callers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drivetrain.config.schema import Target
from drivetrain.rollouts.plan import (
    Arm,
    Guards,
    Plan,
    Prompt,
    Rollout,
    Shadow,
    Stage,
    assigned,
    bucket,
    percent,
    shadowed,
)
from tests.unit.rollouts.traffic import canary, made

SUBJECTS = [f"key {number}" for number in range(10_000)]
AB = Rollout(
    id="e1",
    model="chat",
    kind="experiment",
    arms=(Arm(name="baseline"), Arm(name="a"), Arm(name="b")),
    shares=(2, 1, 1),
)


def test_a_rollout_comes_back_from_json_as_it_was() -> None:
    arms = (Arm(name="baseline"), Arm(name="new", targets=(Target(engine="v", model="m"),), settings={"num_ctx": 8192}))
    rollout = replace(made(guards=Guards(cost=1.5), shadow=Shadow(compare="json")), arms=arms)
    plan = Plan(rollouts={"chat": rollout}, prompts={"help@2": Prompt(name="help", version=2, text="You help {name}.")})
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_a_prompt_is_referred_to_by_name_and_version() -> None:
    assert Prompt(name="help", version=3, text="").reference == "help@3"


@given(st.text(), st.floats(0.01, 100), st.floats(0.01, 100))
def test_who_has_the_new_arm_keeps_it_when_the_share_grows(subject: str, one: float, other: float) -> None:
    smaller, bigger = sorted((one, other))
    rollout = made(*canary(smaller, bigger, 100))
    if assigned(rollout, subject).name == "new":
        assert assigned(replace(rollout, stage=1), subject).name == "new"
        assert assigned(replace(rollout, stage=2), subject).name == "new"


def test_a_caller_is_in_the_same_bucket_in_every_process() -> None:
    assert [bucket("r1", subject) for subject in ("", "ada", "key 1", "\ud800")] == [9372, 7381, 1134, 6417]


def test_another_rollout_begins_with_other_callers() -> None:
    first, second = ({s for s in SUBJECTS if assigned(made(*canary(5, 100), id=id), s).name == "new"} for id in "ab")
    assert 10 <= len(first & second) <= 50  # 5 % of 5 % of 10,000 are 25


@pytest.mark.parametrize("share", [1.0, 5.0, 25.0])
def test_so_many_callers_get_the_new_arm_as_the_stage_says(share: float) -> None:
    new = sum(assigned(made(*canary(share, 100)), subject).name == "new" for subject in SUBJECTS)
    assert new / 100 == pytest.approx(share, rel=0.25)


def test_a_share_is_exact_to_a_hundredth_of_a_percent() -> None:
    rollout = made(*canary(0.01, 100))
    at_zero = next(subject for subject in map(str, range(1_000_000)) if bucket("r1", subject) == 0)
    at_one = next(subject for subject in map(str, range(1_000_000)) if bucket("r1", subject) == 1)
    assert [assigned(rollout, subject).name for subject in (at_zero, at_one)] == ["new", "baseline"]


def test_what_is_over_is_the_same_for_everybody() -> None:
    rollout = made(*canary(5, 100))
    expected = {"running": 5.0, "paused": 5.0, "done": 100.0, "rolled_back": 0.0}
    assert {state: percent(replace(rollout, state=state)) for state in expected} == expected
    assert {assigned(replace(rollout, state="done"), subject).name for subject in SUBJECTS} == {"new"}
    assert {assigned(replace(rollout, state="rolled_back"), subject).name for subject in SUBJECTS} == {"baseline"}


def test_requests_are_copied_only_in_a_stage_that_says_so_while_it_runs() -> None:
    shadow = Shadow(percent=50)
    rollout = made(Stage(percent=0, shadow=True), *canary(5, 100), shadow=shadow)
    assert shadowed(rollout) == shadow
    assert shadowed(replace(rollout, stage=1)) is None
    assert shadowed(replace(rollout, state="paused")) is None
    assert {assigned(rollout, subject).name for subject in SUBJECTS} == {"baseline"}


def test_an_experiment_divides_callers_by_its_shares() -> None:
    arms = [assigned(AB, subject).name for subject in SUBJECTS]
    assert [arms.count(arm) / 100 for arm in ("baseline", "a", "b")] == pytest.approx([50, 25, 25], abs=2)


def test_an_experiment_that_is_over_leaves_everybody_at_the_baseline() -> None:
    over = [replace(AB, state=state) for state in ("done", "rolled_back")]
    assert {assigned(one, subject).name for one in over for subject in SUBJECTS} == {"baseline"}
