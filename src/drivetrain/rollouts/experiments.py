"""What an experiment, or a rollout on its way, has shown: the figures of its arms, and how they differ."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from drivetrain.rollouts import intervals, statistics
from drivetrain.rollouts.evidence import Counts, Moments, Seen
from drivetrain.rollouts.intervals import Effect, Estimate
from drivetrain.rollouts.plan import Rollout
from drivetrain.types import Value

CONFIDENCE: Final = 0.95


class Difference(Value, frozen=True, kw_only=True):
    """Of an arm from the baseline, in one metric. None: too little was seen."""

    change: Effect | None  # of shares the difference, of all else the ratio
    anytime_p: float  # right however often one looks; of several, the one that `clear` is judged by
    clear: bool  # there is a difference, by what was seen so far, all arms and metrics considered


class Measured(Value, frozen=True, kw_only=True):
    metric: str
    estimate: Estimate
    difference: Difference | None = None  # None: the baseline itself


class ArmReport(Value, frozen=True, kw_only=True):
    arm: str
    requests: int
    failures: int
    metrics: tuple[Measured, ...]


class Report(Value, frozen=True, kw_only=True):
    rollout: str
    model: str
    kind: Literal["rollout", "experiment"]
    state: str
    confidence: float
    arms: tuple[ArmReport, ...]  # the first is the baseline


class _Metric(Value, frozen=True, kw_only=True):
    estimate: Callable[[Seen, float], Estimate]
    change: Callable[[Seen, Seen, float], Effect | None]
    worse: Callable[[Seen, Seen], float]  # evidence against the second one being no worse than the first one


def compared(rollout: Rollout, seen: Mapping[str, Seen]) -> Report:
    """`seen` is by the names of arms; one that is not in it was not seen."""
    arms = [(arm.name, seen.get(arm.name, Seen())) for arm in rollout.arms]
    bar = (1.0 - CONFIDENCE) / (len(METRICS) * (len(arms) - 1))
    return Report(
        rollout=rollout.id,
        model=rollout.model,
        kind=rollout.kind,
        state=rollout.state,
        confidence=CONFIDENCE,
        arms=tuple(_arm(name, arms[0][1], what, bar) for name, what in arms),
    )


def _arm(name: str, baseline: Seen, arm: Seen, bar: float) -> ArmReport:
    measured = [
        Measured(
            metric=title,
            estimate=metric.estimate(arm, CONFIDENCE),
            difference=None if arm is baseline else _difference(metric, baseline, arm, bar),
        )
        for title, metric in METRICS.items()
    ]
    return ArmReport(arm=name, requests=arm.requests, failures=arm.failures, metrics=tuple(measured))


def _difference(metric: _Metric, baseline: Seen, arm: Seen, bar: float) -> Difference:
    evidence = statistics.both(metric.worse(baseline, arm), metric.worse(arm, baseline))
    p = statistics.anytime_p(evidence)
    return Difference(change=metric.change(baseline, arm, CONFIDENCE), anytime_p=p, clear=p <= bar)


def _good(seen: Seen) -> tuple[int, int]:
    return seen.answered, seen.requests


def _more_failures(baseline: Seen, arm: Seen) -> float:
    failures, requests = (baseline.failures, arm.failures), (baseline.requests, arm.requests)
    return statistics.more_failures(failures, requests, 0.0)


def _quantile(of: Callable[[Seen], Counts], level: float, worse: Callable[..., float]) -> _Metric:
    return _Metric(
        estimate=lambda seen, confidence: intervals.middle(of(seen), level, confidence),
        change=lambda first, second, confidence: intervals.middle_change(of(first), of(second), level, confidence),
        worse=lambda first, second: worse(of(first), of(second), level, 1.0),
    )


def _first_token_s(seen: Seen) -> Counts:
    return seen.first_token_s


def _tokens_per_s(seen: Seen) -> Counts:
    return seen.tokens_per_s


def _cost(seen: Seen) -> Moments:
    return seen.cost_micro_usd


METRICS: Final = {
    "success rate": _Metric(
        estimate=lambda seen, confidence: intervals.share(*_good(seen), confidence),
        change=lambda first, second, confidence: intervals.share_change(_good(first), _good(second), confidence),
        worse=_more_failures,
    ),
    "first token, median (s)": _quantile(_first_token_s, 0.5, statistics.slower),
    "first token, 95 % (s)": _quantile(_first_token_s, 0.95, statistics.slower),
    "tokens per second, median": _quantile(_tokens_per_s, 0.5, statistics.slower_rate),
    "cost of a request (µUSD)": _Metric(
        estimate=lambda seen, confidence: intervals.mean(_cost(seen), confidence),
        change=lambda first, second, confidence: intervals.mean_change(_cost(first), _cost(second), confidence),
        worse=lambda first, second: statistics.dearer(_cost(first), _cost(second), 1.0),
    ),
}
