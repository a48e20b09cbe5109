"""Two targets drawn by weight, and the better of the two (power of two choices)."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter

from drivetrain.config.schema import Target
from drivetrain.router.field import Seen, expected_s, load, why
from drivetrain.router.standing import Facts, Standing

ALIKE = 1.5  # engines whose expected times are within this factor are equals,
NEAR_S = 0.05  # or within so many seconds

Standings = Callable[[Target], Standing]
Draw = Callable[[], float]
Reasoned = tuple[Target, str]  # who goes first, and why
Fit = Callable[[Seen], bool]

_weight = attrgetter("weight")


class Hat:
    """Targets to draw from, each as often as its weight says."""

    __slots__ = ("_bounds", "_draw", "_facts", "_fit", "_standings", "_targets")

    def __init__(
        self,
        targets: Sequence[Target],
        standings: Standings,
        draw: Draw,
        facts: Facts,
        *,
        bounds: Sequence[int] | None = None,
        fit: Fit | None = None,
    ) -> None:
        """`bounds`: the weights, summed up, where they are known; `fit`: whether a target can do what is asked."""
        self._targets = targets
        self._bounds = list(accumulate(map(_weight, targets))) if bounds is None else bounds
        self._standings = standings
        self._draw = draw
        self._facts = facts
        self._fit = fit

    def best_of_two(self, *, picky: bool) -> Reasoned | None:
        """None if there is nobody to draw; `picky`: or if one of the two is not able or does not fit."""
        if not self._bounds[-1]:
            return None
        one, two = self._drawn(self._bounds), self._drawn(self._bounds)
        first = self.seen(one)
        if picky and not self._good(first):
            return None
        if one == two:
            return self._of_unlike(first) if first[1].speed is not None else (first[0], why(first))
        second = self.seen(two)
        if picky and not self._good(second):
            return None
        return better(first, second, self._facts)

    def some(self, many: int) -> list[Seen]:
        """The able and fit ones of so many that are drawn, or of all where there are no more: each once, in the order
        of the draws."""
        if len(self._targets) <= many:
            begin = self._drawn(self._bounds)
            places = [*range(begin, len(self._targets)), *range(begin)]
        else:
            places = list(dict.fromkeys(self._drawn(self._bounds) for _ in range(many)))
        return [seen for seen in map(self.seen, places) if self._good(seen)]

    def seen(self, place: int) -> Seen:
        target = self._targets[place]
        return target, self._standings(target)

    def _good(self, seen: Seen) -> bool:
        return seen[1].able and (self._fit is None or self._fit(seen))

    def _of_unlike(self, first: Seen) -> Reasoned:
        """Both draws fell on `first`: it goes, unless one drawn from the others is of another speed, and better."""
        bounds = list(accumulate(0 if target is first[0] else target.weight for target in self._targets))
        if bounds[-1]:
            second = self.seen(self._drawn(bounds))
            if self._good(second) and apart(first, second, self._facts) is not None:
                return better(first, second, self._facts)
        return first[0], why(first)

    def _drawn(self, bounds: Sequence[int]) -> int:
        """On which of the targets a point in [0, 1) falls when each is as wide as its weight."""
        return bisect_right(bounds, min(int(self._draw() * bounds[-1]), bounds[-1] - 1))


def better(one: Seen, two: Seen, facts: Facts) -> Reasoned:
    """The one to go first. Where there is nothing to choose, the first one drawn: that keeps the shares of weights."""
    for seen in (one, two):
        if seen[1].state == "trial":
            return seen[0], why(seen)
    if (times := apart(one, two, facts)) is not None:
        scores = times[0] * (1 + load(one)), times[1] * (1 + load(two))
        found, score = (two, scores[1]) if scores[1] < scores[0] else (one, scores[0])
        return found[0], f"tier {found[0].tier}, done in {score:.3g} s, load {load(found):.3g}"
    found = two if load(two) < load(one) else one
    return found[0], why(found)


def apart(one: Seen, two: Seen, facts: Facts) -> tuple[float, float] | None:
    """The times that two engines of unlike speed are expected to take; None: they count as equals."""
    first_s, second_s = expected_s(one, facts), expected_s(two, facts)
    if first_s is None or second_s is None:
        return None
    less_s, more_s = min(first_s, second_s), max(first_s, second_s)
    return None if more_s <= max(ALIKE * less_s, less_s + NEAR_S) else (first_s, second_s)


def sooner(one: Seen, two: Seen, facts: Facts) -> float:
    """How many times sooner the second would be done than the first, behind the work that each has in hand; by that
    work alone where one is not measured, or where they are about as fast."""
    times = apart(one, two, facts)
    first_s, second_s = times if times is not None else (1.0, 1.0)
    return first_s * (1 + load(one)) / (max(second_s, 1e-9) * (1 + load(two)))
