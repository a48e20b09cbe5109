"""Simulated callers of a rollout: each request goes where `assigned` says, and `step` looks every so often."""

from random import Random
from typing import NamedTuple

from drivetrain.rollouts.evidence import Evidence, Seen, Tally
from drivetrain.rollouts.moves import moved
from drivetrain.rollouts.plan import Arm, Guards, Rollout, Shadow, Stage, assigned, shadowed
from drivetrain.rollouts.step import Step, step


class Manner(NamedTuple):
    """How an arm does."""

    failing: float = 0.01  # share of requests
    first_token_s: float = 0.3  # median
    tokens_per_s: float = 40.0  # median
    cost: float = 100.0  # median of a request, in micro-dollars
    alike: float = 0.95  # mean of comparisons with the baseline's answers


USUAL = Manner()


class Passed(NamedTuple):
    rollout: Rollout
    steps: list[Step]
    callers: int  # requests of callers that the new arm got


def made(*stages: Stage, guards: Guards | None = None, shadow: Shadow | None = None, id: str = "r1") -> Rollout:
    return Rollout(
        id=id,
        model="chat",
        arms=(Arm(name="baseline"), Arm(name="new")),
        stages=stages or canary(),
        guards=guards or Guards(),
        shadow=shadow,
    )


def canary(*percents: float, least_s: float = 60.0, least_requests: int = 50) -> tuple[Stage, ...]:
    return tuple(
        Stage(percent=percent, least_s=least_s, least_requests=least_requests) for percent in percents or (5, 25, 100)
    )


def served(tally: Tally, manner: Manner, rng: Random, at_s: float | None = None) -> None:
    """One request."""
    if rng.random() < manner.failing:
        tally.add(failed=True, at_s=at_s)
        return
    tally.add(
        first_token_s=rng.lognormvariate(0, 0.5) * manner.first_token_s,
        tokens_per_s=rng.lognormvariate(0, 0.3) * manner.tokens_per_s,
        cost_micro_usd=rng.lognormvariate(0, 0.7) * manner.cost,
        at_s=at_s,
    )


def seen(manner: Manner, requests: int, seed: int = 0) -> Seen:
    tally, rng = Tally(), Random(seed)
    for _ in range(requests):
        served(tally, manner, rng)
    return tally.seen()


def passed(
    rollout: Rollout,
    *,
    arm: Manner = USUAL,
    baseline: Manner = USUAL,
    seed: int = 0,
    requests: int = 5_000,
    look_every: int = 50,
    callers: int = 1_000,
) -> Passed:
    """One request a second, until the rollout ends or there are no more."""
    rng, steps, got = Random(seed), [], 0
    tallies = {"baseline": Tally(), "new": Tally()}
    for now_s in range(1, requests + 1):
        to = assigned(rollout, f"caller {rng.randrange(callers)}").name
        got += to == "new"
        served(tallies[to], arm if to == "new" else baseline, rng, now_s)
        if shadowed(rollout):
            served(tallies["new"], arm, rng, now_s)
            tallies["new"].compared(rng.random() < arm.alike)
        if now_s % look_every:
            continue
        evidence = Evidence(baseline=tallies["baseline"].seen(), arm=tallies["new"].seen())
        steps.append(taken := step(rollout, evidence, float(now_s)))
        if taken.move is None:
            continue
        rollout = moved(rollout, taken.move, why=taken.why, now_s=float(now_s))
        if rollout.state != "running":
            break
        whole = rollout.stages[rollout.stage].percent >= 100
        tallies = {"baseline": tallies["baseline"] if whole else Tally(), "new": Tally()}
    return Passed(rollout, steps, got)
