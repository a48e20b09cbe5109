"""Whether a rollout or an experiment makes sense, before it begins."""

import math
from collections.abc import Iterator
from itertools import pairwise

from drivetrain import parameters
from drivetrain.errors import BadRequest
from drivetrain.rollouts.plan import BUCKETS, Arm, Guards, Rollout, Shadow, Stage

MOST_ARMS = 16
MOST_STAGES = 32
_NAME_CHARACTERS = 64
_USED = frozenset(":,@/")  # in labels and lists of names

Flaw = tuple[str, str]  # which member, and what is wrong with it


def check(rollout: Rollout) -> None:
    """Raises `BadRequest` for the first member that makes no sense."""
    for member, problem in _flaws(rollout):
        raise BadRequest(f"{member} of {rollout.kind} of {rollout.model!r}: {problem}", param=member)


def _flaws(rollout: Rollout) -> Iterator[Flaw]:
    yield from _of_arms(rollout.arms)
    if rollout.kind == "rollout":
        yield from _of_rollout(rollout)
    else:
        yield from _of_experiment(rollout)
    yield from _of_guards(rollout.guards)
    if rollout.shadow is not None:
        yield from _of_shadow(rollout.shadow)


def _of_arms(arms: tuple[Arm, ...]) -> Iterator[Flaw]:
    if not 2 <= len(arms) <= MOST_ARMS:
        yield "arms", f"there are {len(arms)}; write a baseline and another one, at most {MOST_ARMS}"
    names = [arm.name for arm in arms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield "arms", f"{twice[0]!r} is the name of several"
    for arm in arms:
        fine = 0 < len(arm.name) <= _NAME_CHARACTERS and arm.name.isprintable() and " " not in arm.name
        if not fine or _USED & set(arm.name):
            yield "arms", f"name {arm.name[:_NAME_CHARACTERS]!r}; write letters, digits, `-`, `_` and `.`"
        if arm.targets == ():
            yield "arms", f"{arm.name!r} has no targets; leave `targets` out to have those of the model"
        for name, wrong in _of_parameters(arm):
            yield "arms", f"parameter {name!r} of {arm.name!r} {wrong}"
        if arm.prompt is not None and not all(arm.prompt.rpartition("@")):
            yield "arms", f"prompt {arm.prompt!r} of {arm.name!r}; write `name@version`"


def _of_parameters(arm: Arm) -> Iterator[tuple[str, str]]:
    """One that no request could use, or that nobody reads: nothing would be new."""
    yield from parameters.flaws(arm.parameters)
    for name in arm.parameters:
        if name not in parameters.PARAMETERS:
            yield name, f"is none; there are {', '.join(parameters.PARAMETERS)}"


def _of_rollout(rollout: Rollout) -> Iterator[Flaw]:
    if len(rollout.arms) != 2:
        yield "arms", f"there are {len(rollout.arms)}; a rollout has a baseline and one other arm"
    if rollout.shares:
        yield "shares", "a rollout has stages; an experiment has shares"
    if not 1 <= len(rollout.stages) <= MOST_STAGES:
        yield "stages", f"there are {len(rollout.stages)}; write one at least, at most {MOST_STAGES}"
    elif rollout.stages[-1].percent != 100:
        yield "stages", f"the last one has {rollout.stages[-1].percent:g} percent; it has to have 100"
    for before, after in pairwise(rollout.stages):
        if after.percent < before.percent:
            yield "stages", f"{after.percent:g} percent after {before.percent:g}; a share may only grow"
    for stage in rollout.stages:
        yield from _of_stage(stage, rollout.shadow)
    if rollout.guards.answers is not None and rollout.shadow is None:
        yield "guards", "`answers` needs a `shadow`, whose comparisons it looks at"


def _of_stage(stage: Stage, shadow: Shadow | None) -> Iterator[Flaw]:
    if not (0 <= stage.percent <= 100):
        yield "stages", f"percent {stage.percent!r}; write 0 to 100"
    elif 0 < stage.percent < 100 / BUCKETS:
        yield "stages", f"percent {stage.percent!r}; the least is {100 / BUCKETS:g}"
    if stage.percent == 0 and not stage.shadow:
        yield "stages", "one with 0 percent sends nothing to the new arm; add `shadow: true`"
    if stage.shadow and shadow is None:
        yield "shadow", "a stage has `shadow: true`, so say how requests are copied"
    if not (0 <= stage.least_s < math.inf):
        yield "stages", f"least_s {stage.least_s!r}; write 0 or more"
    if not stage.most_s >= stage.least_s:
        yield "stages", f"most_s {stage.most_s!r} is less than least_s {stage.least_s!r}"
    if stage.least_requests < 0:
        yield "stages", f"least_requests {stage.least_requests!r}; write 0 or more"


def _of_experiment(rollout: Rollout) -> Iterator[Flaw]:
    if rollout.stages:
        yield "stages", "an experiment has shares; a rollout has stages"
    if rollout.shadow is not None:
        yield "shadow", "only a rollout copies requests"
    if len(rollout.shares) != len(rollout.arms):
        yield "shares", f"there are {len(rollout.shares)} for {len(rollout.arms)} arms; write one for each"
    if not all(0 < share < math.inf for share in rollout.shares):
        yield "shares", f"{list(rollout.shares)}; each has to be above 0"


def _of_guards(guards: Guards) -> Iterator[Flaw]:
    ranges = {
        "errors": (guards.errors, 0.0, 1.0),
        "first_token": (guards.first_token, 1.0, math.inf),
        "tokens_per_s": (guards.tokens_per_s, 0.0, 1.0),
        "cost": (guards.cost, 0.0, math.inf),
        "answers": (guards.answers, 0.0, 1.0),
    }
    for name, (value, least, most) in ranges.items():
        if value is not None and not (least <= value <= most and value < math.inf):
            range_ = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
            yield "guards", f"{name} {value!r}; write {range_}, or null"
    if guards.tokens_per_s == 0 or guards.cost == 0:
        yield "guards", "a ratio of 0; write null to leave a guard out"
    if not (0 < guards.false_alarms < 1):
        yield "guards", f"false_alarms {guards.false_alarms!r}; write a chance between 0 and 1"


def _of_shadow(shadow: Shadow) -> Iterator[Flaw]:
    if not (0 < shadow.percent <= 100):
        yield "shadow", f"percent {shadow.percent!r}; write more than 0, at most 100"
    if shadow.concurrency < 1:
        yield "shadow", f"concurrency {shadow.concurrency!r}; write 1 or more"
    if not (0 <= shadow.usd < math.inf):
        yield "shadow", f"usd {shadow.usd!r}; write 0 or more"
