"""Estimates with confidence intervals, and p-values for one look at the end. For looking on the way: `statistics`."""

import math
from typing import Final

from drivetrain.rollouts.evidence import Counts, Moments, amount_at, quantile
from drivetrain.types import Value

ENOUGH: Final = 30  # amounts, below which nothing is said about their mean
_TABLE: Final = 20_000  # failures up to which a table of counts is gone through exactly


class Estimate(Value, frozen=True, kw_only=True):
    """A figure, and between what its true value lies with the confidence asked for. None: too little was seen."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


class Effect(Value, frozen=True, kw_only=True):
    """How an arm differs from the baseline."""

    value: float
    low: float
    high: float
    p: float  # chance of such a difference or a greater one if there is none, for who looks once


def _normal_quantile(confidence: float) -> float:
    """How many standard deviations to either side hold so much."""
    from statistics import NormalDist  # brings what no start needs

    return NormalDist().inv_cdf((1.0 + confidence) / 2)


def share(times: int, of: int, confidence: float) -> Estimate:
    """Of a chance, by Wilson's score (1927)."""
    if not of:
        return Estimate()
    z = _normal_quantile(confidence)
    middle, spread = times + z * z / 2, z * math.sqrt(times * (of - times) / of + z * z / 4)
    low, high = (middle - spread) / (of + z * z), (middle + spread) / (of + z * z)
    return Estimate(value=times / of, low=max(0.0, low), high=min(1.0, high))


def share_change(baseline: tuple[int, int], arm: tuple[int, int], confidence: float) -> Effect | None:
    """Difference of two chances, each given as how often, of how many: by Newcombe (1998), with Fisher's exact test."""
    first, second = share(*baseline, confidence), share(*arm, confidence)
    if first.value is None or second.value is None:
        return None
    change = second.value - first.value
    below = math.hypot(second.value - (second.low or 0.0), (first.high or 0.0) - first.value)
    above = math.hypot((second.high or 0.0) - second.value, first.value - (first.low or 0.0))
    return Effect(value=change, low=change - below, high=change + above, p=fisher(baseline, arm))


def fisher(baseline: tuple[int, int], arm: tuple[int, int]) -> float:
    """Two-sided p-value of two chances being the same; by the normal distribution where counts are huge."""
    (first, of_first), (second, of_second) = baseline, arm
    times, all_ = first + second, of_first + of_second
    rare = min(times, all_ - times)
    if rare > _TABLE:
        rate = times / all_
        spread = math.sqrt(rate * (1 - rate) * (1 / of_first + 1 / of_second))
        return _two_sided((second / of_second - first / of_first) / spread)
    range_ = range(max(0, times - of_second), min(times, of_first) + 1)
    logs = [_ways(of_first, one) + _ways(of_second, times - one) - _ways(all_, times) for one in range_]
    seen = logs[first - range_.start]
    return min(1.0, math.fsum(math.exp(value) for value in logs if value <= seen + 1e-7))


def mean(amounts: Moments, confidence: float) -> Estimate:
    if amounts.number < ENOUGH:
        return Estimate(value=amounts.mean if amounts.number else None)
    spread = _normal_quantile(confidence) * math.sqrt(amounts.variance / amounts.number)
    return Estimate(value=amounts.mean, low=amounts.mean - spread, high=amounts.mean + spread)


def mean_change(baseline: Moments, arm: Moments, confidence: float) -> Effect | None:
    """Ratio of two means, by the normal distribution of their logarithms."""
    if min(baseline.number, arm.number) < ENOUGH or min(baseline.mean, arm.mean) <= 0:
        return None
    spread = math.hypot(*(math.sqrt(each.variance / each.number) / each.mean for each in (baseline, arm)))
    return _ratio(arm.mean / baseline.mean, spread, confidence)


def middle(counts: Counts, level: float, confidence: float) -> Estimate:
    """Of a quantile, by the ranks between which it lies."""
    number = sum(counts.values())
    value = quantile(counts, level)
    spread = _normal_quantile(confidence) * math.sqrt(number * level * (1 - level))
    ranks = math.floor(number * level - spread), math.ceil(number * level + spread) + 1
    if ranks[0] < 1 or ranks[1] > number:
        return Estimate(value=value)
    return Estimate(value=value, low=amount_at(counts, ranks[0]), high=amount_at(counts, ranks[1]))


def middle_change(baseline: Counts, arm: Counts, level: float, confidence: float) -> Effect | None:
    """Ratio of two quantiles: how far they spread is taken from their own intervals."""
    values, spreads = [], []
    for counts in (baseline, arm):
        found = middle(counts, level, confidence)
        if found.value is None or found.low is None or found.high is None:
            return None
        values.append(found.value)
        spreads.append(math.log(found.high / found.low) / 2 / _normal_quantile(confidence))
    return _ratio(values[1] / values[0], math.hypot(*spreads), confidence)


def _ratio(value: float, spread: float, confidence: float) -> Effect:
    away = _normal_quantile(confidence) * spread
    p = _two_sided(math.log(value) / spread) if spread else float(value == 1.0)
    return Effect(value=value, low=value * math.exp(-away), high=value * math.exp(away), p=p)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))


def _ways(of: int, times: int) -> float:
    """Logarithm of how many ways there are to pick so many."""
    return math.lgamma(of + 1) - math.lgamma(times + 1) - math.lgamma(of - times + 1)
