"""Tests that may be looked at as often as one likes: each tells how much the evidence speaks against an arm.

Every function returns the logarithm of an e-value: the money that somebody has who began with 1 and bet that the arm is
worse, in a game that is fair as long as it is not. However often one looks, he ever reaches 1/α with probability α at
most (Ville 1939; Howard and others, "Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021; Ramdas and
others, "Game-theoretic statistics and safe anytime-valid inference", 2023). All need counts only, not their order.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from drivetrain.rollouts.evidence import FINE, GRAIN, Counts, Moments

_ODDS: Final = (1.15, 1.4, 2.0, 4.0, 10.0, 40.0, 400.0)  # how far from the truth of the arm somebody bets
_STAKES: Final = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)  # parts of the money that somebody bets at once
_FEW: Final = 50  # amounts, below which their mean is not taken for normal
_EFFECT: Final = 0.3  # of the baseline's mean: how far somebody bets that a mean is away
_RATES: Final = tuple(1e-4 * 1.15**step for step in range(62))  # 0.0001 to 0.5
_HIGHER: Final = (1.4, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)  # how many times the odds


def more_failures(failures: tuple[int, int], requests: tuple[int, int], margin: float) -> float:
    """Against: the second arm's failure rate is at most the first one's and `margin`. Exact.

    Half the money is on each arm's rate being anything at all (mixed by Beta(1/2, 1/2)), half on the second one's odds
    being a few times the first one's; what was seen is set against the likeliest rates that are allowed.
    """
    apart = sum(_mixed(bad, of) for bad, of in zip(failures, requests, strict=True))
    return both(apart, _tied(failures, requests)) - _likeliest(failures, requests, margin)


def likely_above(times: int, of: int, chance: float) -> float:
    """Against: what was seen `times` has a chance of at most `chance`. Exact."""
    rate = min(chance, times / of) if of else chance
    return _mixed(times, of) - _times(times, rate) - _times(of - times, 1.0 - rate)


def slower(baseline: Counts, arm: Counts, level: float, ratio: float) -> float:
    """Against: the arm's quantile at `level` is at most `ratio` times the baseline's. Exact, up to the steps of counts.

    Whatever the baseline's true quantile is, somebody bets that it is less, and that the arm's is more than the ratio
    allows. What counts is the least that he has, over all that the quantile could be; if that is nothing where it is
    likely to be, nobody looks further.
    """
    if not baseline or not arm:
        return 0.0
    above, shift = 1.0 - level, math.log(ratio) / GRAIN
    first, second = _Tail(baseline), _Tail(arm)
    less, more = _Bet(first.total, above, lower=True), _Bet(second.total, above, lower=False)

    def had(step: int) -> float:
        return less.of(first.since(step)) + more.of(second.since(math.ceil(step + 1 + shift)))

    if (likely := had(first.step_at(level))) <= 0.0:
        return likely
    return min(*map(had, baseline), less.of(0) + more.of(0))


def slower_rate(baseline: Counts, arm: Counts, level: float, ratio: float) -> float:
    """As `slower`, of speeds: against the arm's quantile being at least `ratio` times the baseline's."""
    return slower(_inverse(baseline), _inverse(arm), 1.0 - level, 1.0 / ratio)


def dearer(baseline: Moments, arm: Moments, ratio: float) -> float:
    """Against: the arm's mean is at most `ratio` times the baseline's. For many amounts, whose mean is about normal.

    Bets on all differences above zero at once, mixed by half a normal distribution (Robbins 1970).
    """
    if min(baseline.number, arm.number) < _FEW or baseline.mean <= 0.0:
        return 0.0
    variance = arm.variance / arm.number + ratio**2 * baseline.variance / baseline.number
    excess = arm.mean - ratio * baseline.mean
    usual = (_EFFECT * baseline.mean) ** 2
    if variance <= 1e-12 * usual:
        return math.inf if excess > 1e-6 * baseline.mean else 0.0
    share = usual / (usual + variance)
    z = excess / math.sqrt(variance) * math.sqrt(share)
    sided = math.erfc(-z / math.sqrt(2.0))  # twice the chance of less
    return z * z / 2 + math.log1p(-share) / 2 + math.log(sided) if sided > 0.0 else -math.inf


def below(scores: Counts, floor: float) -> float:
    """Against: the mean of scores from 0 to 1 is at least `floor`. Exact: stakes on every score being below it."""
    if floor >= 1.0 and any(step < FINE for step in scores):
        return math.inf
    stakes = [stake / (1.0 - floor) for stake in _STAKES] if floor < 1.0 else []
    return _mean_exp(
        sum(times * math.log1p(stake * (floor - step / FINE)) for step, times in scores.items()) for stake in stakes
    )


def both(first: float, second: float) -> float:
    """One e-value for what either of two would tell: their mean."""
    return _mean_exp((first, second))


def anytime_p(evidence: float) -> float:
    """A p-value that is right however often and whenever one looks."""
    return min(1.0, math.exp(-evidence)) if evidence > 0.0 else 1.0


class _Tail:
    """How much was counted from a step on."""

    def __init__(self, counts: Counts) -> None:
        self._steps = sorted(counts)
        self._before = [0, *accumulate(counts[step] for step in self._steps)]
        self.total = self._before[-1]

    def step_at(self, level: float) -> int:
        """Below whose end lies so much."""
        return self._steps[bisect_left(self._before, level * self.total) - 1]

    def since(self, step: int) -> int:
        return self.total - self._before[bisect_left(self._steps, step)]


class _Bet:
    """Half the money on a chance being lower (or higher) than `chance`, once something was seen; half is kept."""

    def __init__(self, of: int, chance: float, *, lower: bool) -> None:
        others = [_of_odds(chance, 1.0 / odds if lower else odds) for odds in _ODDS]
        never = [math.log((1.0 - other) / (1.0 - chance)) for other in others]
        self._none = [of * gain for gain in never]
        self._each = [math.log(other / chance) - gain for other, gain in zip(others, never, strict=True)]
        self._known: dict[int, float] = {}

    def of(self, times: int) -> float:
        """What is had if it was seen so many times."""
        if (known := self._known.get(times)) is None:
            gains = [none + times * each for none, each in zip(self._none, self._each, strict=True)]
            known = self._known[times] = both(0.0, _mean_exp(gains))
        return known


def _of_odds(chance: float, odds: float) -> float:
    """The chance with so many times the odds."""
    return chance * odds / (1.0 - chance + chance * odds)


_PAIRS: Final = tuple(
    (math.log(rate), math.log1p(-rate), math.log(higher), math.log1p(-higher))
    for rate in _RATES
    for higher in (_of_odds(rate, odds) for odds in _HIGHER)
)


def _mixed(times: int, of: int) -> float:
    """Likelihood of what was seen in this order, over all chances, by Beta(1/2, 1/2)."""
    lgamma = math.lgamma
    return lgamma(times + 0.5) + lgamma(of - times + 0.5) - lgamma(of + 1.0) - math.log(math.pi)


def _tied(failures: tuple[int, int], requests: tuple[int, int]) -> float:
    """Likelihood of what was seen in this order, over pairs of rates of which the second one is the higher."""
    (bad, other), (good, fine) = failures, (requests[0] - failures[0], requests[1] - failures[1])
    return _mean_exp(bad * log[0] + good * log[1] + other * log[2] + fine * log[3] for log in _PAIRS)


def _likeliest(failures: tuple[int, int], requests: tuple[int, int], margin: float) -> float:
    """The greatest likelihood of what was seen, with the second rate at most the first one and `margin`."""
    (bad, other), (all_, others) = failures, requests
    free = bad / all_ if all_ else 1.0, other / others if others else 0.0
    rate = free[0] if free[1] <= free[0] + margin else _edge(failures, requests, margin)
    rates = rate, min(free[1], rate + margin)
    return sum(
        _times(times, rate) + _times(of - times, 1.0 - rate)
        for times, of, rate in zip(failures, requests, rates, strict=True)
    )


def _edge(failures: tuple[int, int], requests: tuple[int, int], margin: float) -> float:
    """The first rate that makes what was seen likeliest if the second one is it and `margin`: where the slope ends."""
    (bad, other), (all_, others) = failures, requests
    low, high = 0.0, 1.0 - margin
    for _ in range(60):
        rate = (low + high) / 2
        slope = bad / rate - (all_ - bad) / (1.0 - rate)
        slope += other / (rate + margin) - (others - other) / max(1.0 - rate - margin, 1e-300)
        low, high = (rate, high) if slope > 0.0 else (low, rate)
    return (low + high) / 2


def _times(number: int, chance: float) -> float:
    return number * math.log(max(chance, 1e-300)) if number else 0.0


def _mean_exp(logs: Iterable[float]) -> float:
    """Logarithm of the mean of what `logs` are the logarithms of; of none, nothing is bet."""
    values: Sequence[float] = tuple(logs)
    top = max(values, default=0.0)
    if not values or math.isinf(top):
        return top
    return top + math.log(sum(math.exp(value - top) for value in values) / len(values))


def _inverse(counts: Counts) -> Counts:
    return {-1 - step: number for step, number in counts.items()}
