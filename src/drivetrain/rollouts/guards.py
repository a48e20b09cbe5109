"""Whether a new arm does worse than the baseline beside it: how much speaks against it, for each guard.

The chance of a false alarm is divided among guards and stages, so that a whole rollout keeps what `false_alarms` allows
however often it is looked at. Half of it is for what was seen since the stage began; the other half for what was seen
lately, so that an arm that was good for long and turns bad is found as fast as one that always was.
"""

import math
from collections.abc import Callable
from typing import Final

from drivetrain.rollouts import statistics
from drivetrain.rollouts.evidence import Evidence, Seen, mean_answer, quantile
from drivetrain.rollouts.plan import Guards
from drivetrain.types import Value

SLOW: Final = 0.95  # the quantile of times to the first token that is guarded
USUAL: Final = 0.5  # the quantile of tokens per second
DEAD: Final = 0.5  # failure rate that is too high whatever the baseline's is, where it has no requests
DOUBT: Final = math.log(5.0)  # evidence at which an arm is not trusted with more callers


class Verdict(Value, frozen=True, kw_only=True):
    """What one guard says."""

    guard: str
    evidence: float  # logarithm of an e-value: 0 says nothing, more is against the arm
    bar: float  # from so much on it is an alarm
    baseline: float | None  # its figure; None: nothing seen
    arm: float | None
    text: str

    @property
    def alarm(self) -> bool:
        return self.evidence >= self.bar

    @property
    def doubt(self) -> bool:
        return self.evidence >= DOUBT


class _Guard(Value, frozen=True, kw_only=True):
    against: Callable[[Evidence, float], float]
    figures: Callable[[Seen], float | None]
    figure: str  # how a figure reads
    limit: str  # how the limit reads


def verdicts(guards: Guards, evidence: Evidence, *, stages: int) -> tuple[Verdict, ...]:
    """What every guard that is on says of a stage, of so many that the rollout has."""
    on = {name: limit for name in GUARDS if (limit := getattr(guards, name)) is not None}
    bar = math.log(2 * max(1, stages) * max(1, len(on)) / guards.false_alarms)
    late = _lately(evidence, bar)
    return tuple(_worse(_verdict(name, limit, evidence, bar), late, name, limit) for name, limit in on.items())


def _lately(evidence: Evidence, bar: float) -> tuple[Evidence, float] | None:
    """What was seen of both arms in the newest epoch, with the bar for that: they add up over all epochs of a stage.

    None where it would be the same again: in the first one.
    """
    base, arm = evidence.baseline.lately, evidence.arm.lately
    if base is None or arm is None or base.epoch != arm.epoch:
        return None
    number = arm.epoch - min(base.first, arm.first)  # 0 is the first one
    return (Evidence(baseline=base.seen, arm=arm.seen), bar + math.log(number * (number + 1))) if number else None


def _worse(whole: Verdict, late: tuple[Evidence, float] | None, name: str, limit: float) -> Verdict:
    """The one of a stage, or of its last minutes if they show anything, that is nearer to an alarm."""
    if late is None:
        return whole
    lately = _verdict(name, limit, *late, when=", lately")
    if lately.arm is None:
        return whole
    return max(whole, lately, key=lambda verdict: verdict.evidence - verdict.bar)


def _verdict(name: str, limit: float, evidence: Evidence, bar: float, when: str = "") -> Verdict:
    guard = GUARDS[name]
    baseline, arm = guard.figures(evidence.baseline), guard.figures(evidence.arm)
    beside = f", at the baseline {guard.figure.format(baseline)}" if baseline is not None else ""
    seen = guard.figure.format(arm) if arm is not None else "nothing seen"
    return Verdict(
        guard=name,
        evidence=guard.against(evidence, limit),
        bar=bar,
        baseline=baseline,
        arm=arm,
        text=f"{seen}{beside}{when} (allowed: {guard.limit.format(limit)})",
    )


def _errors(evidence: Evidence, margin: float) -> float:
    base, arm = evidence.baseline, evidence.arm
    if not base.requests:
        return statistics.likely_above(arm.failures, arm.requests, DEAD)
    return statistics.more_failures((base.failures, arm.failures), (base.requests, arm.requests), margin)


def _first_token(evidence: Evidence, ratio: float) -> float:
    return statistics.slower(evidence.baseline.first_token_s, evidence.arm.first_token_s, SLOW, ratio)


def _tokens_per_s(evidence: Evidence, ratio: float) -> float:
    return statistics.slower_rate(evidence.baseline.tokens_per_s, evidence.arm.tokens_per_s, USUAL, ratio)


def _cost(evidence: Evidence, ratio: float) -> float:
    return statistics.dearer(evidence.baseline.cost_micro_usd, evidence.arm.cost_micro_usd, ratio)


def _answers(evidence: Evidence, floor: float) -> float:
    return statistics.below(evidence.arm.answers, floor)


def _failure_rate(seen: Seen) -> float | None:
    return seen.failures / seen.requests if seen.requests else None


def _mean_usd(seen: Seen) -> float | None:
    cost = seen.cost_micro_usd
    return cost.mean / 1e6 if cost.number else None


GUARDS: Final = {
    "errors": _Guard(
        against=_errors, figures=_failure_rate, figure="{:.1%} of requests failed", limit="{:.1%} more than it"
    ),
    "first_token": _Guard(
        against=_first_token,
        figures=lambda seen: quantile(seen.first_token_s, SLOW),
        figure="95 % have the first token within {:.3g} s",
        limit="{:g} times it",
    ),
    "tokens_per_s": _Guard(
        against=_tokens_per_s,
        figures=lambda seen: quantile(seen.tokens_per_s, USUAL),
        figure="{:.3g} tokens per second",
        limit="{:g} times it or more",
    ),
    "cost": _Guard(against=_cost, figures=_mean_usd, figure="{:.3g} USD per request", limit="{:g} times it"),
    "answers": _Guard(
        against=_answers,
        figures=lambda seen: mean_answer(seen.answers),
        figure="answers {:.2f} alike",
        limit="{:g} or more",
    ),
}
