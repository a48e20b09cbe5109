"""A rollout that makes no sense is refused before it begins, by the member that has to be changed."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from drivetrain.errors import BadRequest
from drivetrain.rollouts.plan import Arm, Guards, Rollout, Shadow, Stage
from drivetrain.rollouts.sense import check
from tests.unit.rollouts.traffic import canary, made

NAN = float("nan")
GOOD = made()
AB = Rollout(id="e", model="m", kind="experiment", arms=(Arm(name="baseline"), Arm(name="b")), shares=(1, 1))


@dataclass(frozen=True)
class Case:
    rollout: Rollout
    member: str
    told: str


def arms(*names: str) -> tuple[Arm, ...]:
    return tuple(Arm(name=name) for name in names)


def staged(**members: float) -> Rollout:
    return made(replace(canary(5)[0], **members), *canary(100))


def with_parameters(**parameters: object) -> Rollout:
    return replace(GOOD, arms=(Arm(name="a"), Arm(name="b", parameters=parameters)))


CASES = [
    Case(replace(GOOD, arms=arms("baseline")), "arms", "there are 1; write a baseline and another one"),
    Case(replace(GOOD, arms=arms("a", "b", "c")), "arms", "a rollout has a baseline and one other arm"),
    Case(replace(GOOD, arms=arms("a", "a")), "arms", "'a' is the name of several"),
    Case(replace(GOOD, arms=arms("a", "b:c")), "arms", "write letters, digits"),
    Case(replace(GOOD, arms=arms("a", "b c")), "arms", "write letters, digits"),
    Case(replace(GOOD, arms=arms("a", "")), "arms", "write letters, digits"),
    Case(replace(GOOD, arms=arms("a", "b" * 65)), "arms", "write letters, digits"),
    Case(replace(GOOD, arms=(Arm(name="a"), Arm(name="b", targets=()))), "arms", "'b' has no targets"),
    Case(replace(GOOD, arms=(Arm(name="a"), Arm(name="b", prompt="help"))), "arms", "write `name@version`"),
    Case(with_parameters(temperature="hot"), "arms", "parameter 'temperature' of 'b' must be a number, not \"hot\""),
    Case(with_parameters(bogus=1), "arms", "parameter 'bogus' of 'b' is none; there are max_tokens, "),
    Case(replace(GOOD, shares=(1.0, 1.0)), "shares", "a rollout has stages"),
    Case(replace(GOOD, stages=()), "stages", "write one at least"),
    Case(made(*canary(5, 50)), "stages", "the last one has 50 percent; it has to have 100"),
    Case(made(*canary(50, 5, 100)), "stages", "5 percent after 50; a share may only grow"),
    Case(made(*canary(-1, 100)), "stages", "write 0 to 100"),
    Case(made(*canary(NAN, 100)), "stages", "write 0 to 100"),
    Case(made(*canary(0.001, 100)), "stages", "the least is 0.01"),
    Case(made(*canary(0, 100)), "stages", "add `shadow: true`"),
    Case(made(Stage(percent=0, shadow=True), *canary(100)), "shadow", "say how requests are copied"),
    Case(staged(least_s=-1.0), "stages", "least_s -1.0"),
    Case(staged(least_s=100.0, most_s=50.0), "stages", "most_s 50.0 is less than least_s 100.0"),
    Case(staged(least_requests=-1), "stages", "least_requests -1"),
    Case(replace(AB, stages=canary(100)), "stages", "an experiment has shares"),
    Case(replace(AB, shadow=Shadow()), "shadow", "only a rollout copies requests"),
    Case(replace(AB, shares=(1.0,)), "shares", "there are 1 for 2 arms"),
    Case(replace(AB, shares=(1.0, 0.0)), "shares", "each has to be above 0"),
    Case(made(guards=Guards(errors=1.5)), "guards", "errors 1.5; write 0 to 1, or null"),
    Case(made(guards=Guards(first_token=0.5)), "guards", "first_token 0.5; write 1 or more, or null"),
    Case(made(guards=Guards(tokens_per_s=NAN)), "guards", "tokens_per_s nan"),
    Case(made(guards=Guards(tokens_per_s=0.0)), "guards", "a ratio of 0"),
    Case(made(guards=Guards(false_alarms=0.0)), "guards", "write a chance between 0 and 1"),
    Case(made(guards=Guards(answers=0.9)), "guards", "`answers` needs a `shadow`"),
    Case(made(shadow=Shadow(percent=0)), "shadow", "percent 0"),
    Case(made(shadow=Shadow(concurrency=0)), "shadow", "concurrency 0"),
    Case(made(shadow=Shadow(usd=-1.0)), "shadow", "usd -1.0"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.told)
def test_what_makes_no_sense_is_refused_by_its_member(case: Case) -> None:
    with pytest.raises(BadRequest) as refused:
        check(case.rollout)
    assert refused.value.param == case.member
    assert case.told in str(refused.value)
    assert str(refused.value).startswith(f"{case.member} of {case.rollout.kind} of {case.rollout.model!r}: ")


@pytest.mark.parametrize(
    "rollout",
    [
        GOOD,
        AB,
        made(*canary(100)),
        made(*canary(5, 5, 100), guards=Guards(errors=0.0, first_token=1.0, tokens_per_s=1.0, cost=0.5)),
        made(Stage(percent=0, shadow=True), *canary(1, 100), shadow=Shadow(usd=0.0), guards=Guards(answers=1.0)),
        made(*canary(100), guards=Guards(errors=None, first_token=None, tokens_per_s=None)),
    ],
    ids=["usual", "experiment", "at once", "equal stages", "shadow", "unguarded"],
)
def test_what_makes_sense_passes(rollout: Rollout) -> None:
    check(rollout)
