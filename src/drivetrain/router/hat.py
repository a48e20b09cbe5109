"""Two targets drawn by weight, and the better of the two (power of two choices)."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from drivetrain.router.case import Case, Draw
from drivetrain.router.field import Seen, expected_s, load, why
from drivetrain.router.fit import late
from drivetrain.router.roster import Group
from drivetrain.router.standing import Facts

ALIKE = 1.5  # engines whose expected times are within this factor are equals,
NEAR_S = 0.05  # or within so many seconds

Reasoned = tuple[Seen, str]  # who goes first, and what decided


def best_of_two(group: Group, case: Case, *, picky: bool) -> Reasoned | None:
    """Each target is drawn as often as its weight says. `picky`: None if one of the two is not able, or too late."""
    one, two = places(group, case.draw, 2)
    targets, standings = group.targets, case.standings
    first = (targets[one], standings(targets[one]))
    if picky and not good(first, case.facts):
        return None
    if one == two:
        return _of_unlike(first, one, group, case) if first[1].speed is not None else (first, why(first))
    second = (targets[two], standings(targets[two]))
    if picky and not good(second, case.facts):
        return None
    return better(first, second, case.facts)


def some(group: Group, case: Case, many: int) -> list[Seen]:
    """The able ones, not too late, of so many that are drawn, or of all where there are no more: each once, in the
    order of the draws."""
    targets, standings, facts, size = group.targets, case.standings, case.facts, len(group.targets)
    if size <= many:
        (begin,) = places(group, case.draw, 1)
        drawn: Iterable[int] = (*range(begin, size), *range(begin))
    else:
        drawn = dict.fromkeys(places(group, case.draw, many))
    able = [seen for place in drawn if (seen := (targets[place], standings(targets[place])))[1].able]
    return able if facts.deadline_s is None else [seen for seen in able if good(seen, facts)]


def good(seen: Seen, facts: Facts) -> bool:
    """Whether it may be chosen at once."""
    return seen[1].able and (facts.deadline_s is None or not late(seen[1], facts))


def places(group: Group, draw: Draw, many: int) -> list[int]:
    """On which of the targets so many points in [0, 1) fall when each is as wide as its weight."""
    bounds = group.bounds
    width, last = bounds[-1], len(bounds) - 1
    return [bisect_right(bounds, draw() * width, 0, last) for _ in range(many)]


def _of_unlike(first: Seen, place: int, group: Group, case: Case) -> Reasoned:
    """Both draws fell on `first`: it goes, unless one drawn from the others is of another speed, and better."""
    if len(group.targets) > 1:
        target = group.targets[_other(place, group.bounds, case.draw)]
        second = (target, case.standings(target))
        if good(second, case.facts) and apart(first, second, case.facts) is not None:
            return better(first, second, case.facts)
    return first, why(first)


def _other(place: int, bounds: Sequence[float], draw: Draw) -> int:
    """As `places`, of one point, as if this one had no width."""
    begin = bounds[place - 1] if place else 0.0
    width = bounds[place] - begin
    point = draw() * (bounds[-1] - width)
    return bisect_right(bounds, point if point < begin else point + width, 0, len(bounds) - 1)


def better(one: Seen, two: Seen, facts: Facts) -> Reasoned:
    """The one to go first. Where there is nothing to choose, the first one drawn: that keeps the shares of weights."""
    for seen in (one, two):
        if seen[1].state == "trial":
            return seen, why(seen)
    first_load, second_load = load(one), load(two)
    if (times := apart(one, two, facts)) is not None:
        scores = times[0] * (1 + first_load), times[1] * (1 + second_load)
        found, score, its = (two, scores[1], second_load) if scores[1] < scores[0] else (one, scores[0], first_load)
        return found, f"done in {score:.3g} s, load {its:.3g}"
    found, its = (two, second_load) if second_load < first_load else (one, first_load)
    return found, f"load {its:.3g}"


def apart(one: Seen, two: Seen, facts: Facts) -> tuple[float, float] | None:
    """The times that two engines of unlike speed are expected to take; None: they count as equals."""
    first_s, second_s = expected_s(one, facts), expected_s(two, facts)
    if first_s is None or second_s is None:
        return None
    less_s, more_s = (first_s, second_s) if first_s < second_s else (second_s, first_s)
    return None if more_s <= ALIKE * less_s or more_s <= less_s + NEAR_S else (first_s, second_s)


def sooner(one: Seen, two: Seen, facts: Facts) -> float:
    """How many times sooner the second would be done than the first, behind the work that each has in hand; by that
    work alone where one is not measured, or where they are about as fast."""
    first, second = 1 + load(one), 1 + load(two)
    times = apart(one, two, facts)
    return first / second if times is None else times[0] * first / ((times[1] or 1e-9) * second)
