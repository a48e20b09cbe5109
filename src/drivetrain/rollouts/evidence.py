"""What was seen of the arms since a stage began: counts that fit in a small memory however many requests there were.

A `Tally` is filled by whoever reads the ledger, row by row; `seen` gives the frozen value that decisions are made from.
Times and speeds are counted in steps of half a percent, so that every request counts and none is kept.
"""

import math
from collections.abc import Mapping
from typing import Final

from drivetrain.types import Value

GRAIN: Final = 0.005  # steps of the counts: of their logarithm, so half a percent
LEAST: Final = 1e-9  # what is less counts as this
FINE: Final = 100  # scores are counted in so many steps
EPOCH_S: Final = 600.0  # what came lately is counted apart: in the part of Unix time that is not over

Counts = Mapping[int, int]  # step → how often; step `i` holds what lies between exp(i * GRAIN) and exp((i + 1) * GRAIN)


class Moments(Value, frozen=True, kw_only=True):
    """Of amounts whose mean matters."""

    number: int = 0
    sum: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        return self.sum / self.number if self.number else 0.0

    @property
    def variance(self) -> float:
        """Of a single amount."""
        if self.number < 2:
            return 0.0
        return max(0.0, self.squares - self.sum * self.mean) / (self.number - 1)


class Seen(Value, frozen=True, kw_only=True):
    """What was seen of one arm."""

    requests: int = 0  # attempts at its engines that ended with an answer or by the engine's fault
    failures: int = 0  # of them, by the engine's fault; also those that a further attempt hid from the caller
    first_token_s: Mapping[int, int] = {}
    tokens_per_s: Mapping[int, int] = {}
    cost_micro_usd: Moments = Moments()
    answers: Mapping[int, int] = {}  # of shadow comparisons: hundredths of 1 → how often
    lately: "Lately | None" = None  # None: nobody said when

    @property
    def answered(self) -> int:
        return self.requests - self.failures


class Lately(Value, frozen=True, kw_only=True):
    """What was seen of one arm in the newest epoch that it was seen in."""

    epoch: int
    first: int  # epoch in which it was first seen
    seen: Seen


class Evidence(Value, frozen=True, kw_only=True):
    """For a step of a rollout: both arms over the same time.

    In a stage with all callers at the new arm, the baseline is what it was in the stage before.
    """

    baseline: Seen = Seen()
    arm: Seen = Seen()


class Tally:
    """Counts what is seen of one arm, as a whole and lately."""

    __slots__ = ("_epoch", "_first", "_lately", "_whole")

    def __init__(self) -> None:
        self._whole = _Counting()
        self._lately = _Counting()
        self._epoch: int | None = None
        self._first = 0

    def add(
        self,
        *,
        failed: bool = False,
        first_token_s: float | None = None,
        tokens_per_s: float | None = None,
        cost_micro_usd: float = 0.0,
        at_s: float | None = None,
    ) -> None:
        """Count one attempt, begun at that Unix time. Leave out those that the caller broke off, or that failed by the
        caller's fault."""
        self._whole.add(failed, first_token_s, tokens_per_s, cost_micro_usd)
        if at_s is not None and self._is_late(math.floor(at_s / EPOCH_S)):
            self._lately.add(failed, first_token_s, tokens_per_s, cost_micro_usd)

    def compared(self, score: float) -> None:
        """Count what one shadow comparison said, from 0 (nothing alike) to 1 (the same)."""
        _count(self._whole.answers, math.ceil(min(1.0, max(0.0, score)) * FINE - 1e-9))

    def seen(self) -> Seen:
        if self._epoch is None:
            return self._whole.seen()
        return self._whole.seen(Lately(epoch=self._epoch, first=self._first, seen=self._lately.seen()))

    def _is_late(self, epoch: int) -> bool:
        """Whether it belongs to the newest epoch; the first of a new one ends the one before."""
        if self._epoch is None:
            self._first = epoch
        elif epoch <= self._epoch:
            return epoch == self._epoch
        self._epoch, self._lately = epoch, _Counting()
        return True


class _Counting:
    __slots__ = ("answers", "cost", "failures", "first", "requests", "speed", "squares")

    def __init__(self) -> None:
        self.requests = self.failures = 0
        self.first: dict[int, int] = {}
        self.speed: dict[int, int] = {}
        self.cost = self.squares = 0.0
        self.answers: dict[int, int] = {}

    def add(self, failed: bool, first_token_s: float | None, tokens_per_s: float | None, cost: float) -> None:
        self.requests += 1
        self.failures += failed
        self.cost += cost
        self.squares += cost * cost
        if first_token_s is not None:
            _count(self.first, step_of(first_token_s))
        if tokens_per_s is not None:
            _count(self.speed, step_of(tokens_per_s))

    def seen(self, lately: Lately | None = None) -> Seen:
        return Seen(
            requests=self.requests,
            failures=self.failures,
            first_token_s=dict(self.first),
            tokens_per_s=dict(self.speed),
            cost_micro_usd=Moments(number=self.requests, sum=self.cost, squares=self.squares),
            answers=dict(self.answers),
            lately=lately,
        )


def step_of(amount: float) -> int:
    return math.floor(math.log(max(amount, LEAST)) / GRAIN)


def amount_of(step: int) -> float:
    """The middle of a step."""
    return math.exp((step + 0.5) * GRAIN)


def quantile(counts: Counts, level: float) -> float | None:
    """The amount below which lies the share `level` of what was counted; None of nothing."""
    return amount_at(counts, level * sum(counts.values()))


def amount_at(counts: Counts, rank: float) -> float | None:
    """The amount of a rank, from 1 on; None beyond the last."""
    below = 0
    for step, number in sorted(counts.items()):
        below += number
        if below >= rank:
            return amount_of(step)
    return None


def mean_answer(answers: Counts) -> float | None:
    number = sum(answers.values())
    return sum(step * times for step, times in answers.items()) / number / FINE if number else None


def _count(counts: dict[int, int], step: int) -> None:
    counts[step] = counts.get(step, 0) + 1
