"""The choice among the targets of a model, and the record of it.

Of the targets that are able (ready, not set aside by their breaker, not at rest), those of the lowest tier are drawn
from by weight, twice, and the better of the two goes first (power of two choices). Better is, of engines that are about
as fast or not measured yet, the one with less outstanding work per weight; of unlike ones, the one that is expected to
be done sooner with this request, behind its outstanding work. An engine on trial goes before the other one drawn.

Then come the other able ones, tier by tier, then those that are not able: if nothing else is left, they are tried all
the same. A breaker never sets aside most of a tier, unless a higher tier has somebody who is able.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter

from drivetrain.config.schema import Target
from drivetrain.router.field import Field, Seen, expected_s, load, state, why
from drivetrain.router.standing import USUAL, Facts, Standing
from drivetrain.types import Value

ALIKE = 1.5  # engines whose expected times are within this factor are equals,
NEAR_S = 0.05  # or within so many seconds
FEW = 8  # targets that are cheap to look at
TRIES = 3  # draws among more of them, before everybody is looked at

Standings = Callable[[Target], Standing]
Draw = Callable[[], float]
Reasoned = tuple[Target, str]  # who goes first, and why

_tier, _weight = attrgetter("tier"), attrgetter("weight")


class Candidate(Value, frozen=True, kw_only=True):
    engine: str
    model: str  # the engine's own name of it
    why: str  # for the record of decisions


class Considered(Value, frozen=True, kw_only=True):
    """One target in the record of a decision."""

    engine: str
    model: str
    tier: int
    weight: int
    position: int | None  # 1 for the one that is asked first; None: out of rotation
    state: str  # able, trial, open, resting, away
    outstanding: int
    load: float  # outstanding work per weight, more after failures and while it warms up
    expected_s: float | None  # for this request if it were idle; None: not measured yet
    score: float  # seconds until it would be done, in units of the fastest where nobody is measured: least is best
    why: str


class Decision:
    """`first` is worked out at once; `order` and `considered` when somebody asks, by how the engines stand then."""

    __slots__ = ("_facts", "_head", "_ranked", "_standings", "_targets", "first")

    def __init__(
        self, targets: Sequence[Target], standings: Standings, facts: Facts, head: Target | None, reason: str
    ) -> None:
        self._targets = targets
        self._standings = standings
        self._facts = facts
        self._head = head
        self._ranked: Sequence[tuple[Seen, str]] | None = None
        self.first = _candidate(head, reason) if head is not None else None  # None: all are out of rotation

    @property
    def order(self) -> Sequence[Candidate]:
        """Best first: every target of positive weight, and a single target whatever its weight."""
        if self.first is None or len(self._targets) == 1:
            return (self.first,) if self.first is not None else ()
        return (self.first, *(_candidate(seen[0], reason) for seen, reason in self._others(self._field())))

    @property
    def considered(self) -> Sequence[Considered]:
        """Every target, in the order in which it would be asked; at the end those out of rotation."""
        field = self._field()
        named = [(seen, self.first.why) for seen in field.seen if self.first and seen[0] is self._head]
        named += self._others(field)
        asked = {id(seen[0]) for seen, _ in named}
        out = [target for target in self._targets if id(target) not in asked]
        return (
            *(_considered(field, seen, reason, place) for place, (seen, reason) in enumerate(named, 1)),
            *(
                _considered(field, (target, self._standings(target)), "weight 0, out of rotation", None)
                for target in out
            ),
        )

    def _field(self) -> Field:
        targets = [target for target in self._targets if target.weight] if len(self._targets) > 1 else self._targets
        return Field([(target, self._standings(target)) for target in targets], self._facts)

    def _others(self, field: Field) -> list[tuple[Seen, str]]:
        return [(seen, field.why(seen)) for seen in field.ranked() if seen[0] is not self._head]


def candidates(targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts = USUAL) -> Decision:
    """`standings` tells how a target's engine stands now; `draw` gives uniform numbers in [0, 1)."""
    if len(targets) == 1:
        return Decision(targets, standings, facts, targets[0], "only target")
    found = _at_once(targets, standings, draw, facts) or _after_a_look(targets, standings, draw, facts)
    return Decision(targets, standings, facts, *found)


def _at_once(targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts) -> Reasoned | None:
    """The first, if those drawn from the lowest tier are able, as they nearly always are: nobody else is looked at."""
    tiers = set(map(_tier, targets))
    if len(tiers) > 1:
        lowest = min(tiers)
        targets = [target for target in targets if target.tier == lowest]
    hat = _Hat(targets, standings, draw, facts)
    for _ in range(TRIES if len(targets) > FEW else 1):
        if (found := hat.best_of_two(picky=True)) is not None:
            return found
    return None


def _after_a_look(
    targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts
) -> Reasoned | tuple[None, str]:
    field = Field([(target, standings(target)) for target in targets if target.weight], facts)
    if not field.admitted:
        seen = next(iter(field.ranked()), None)
        return (seen[0], field.why(seen)) if seen is not None else (None, "")
    lowest = min(target.tier for target, _ in field.admitted)
    known = {id(target): standing for target, standing in field.admitted if target.tier == lowest}
    among = [target for target, _ in field.admitted if target.tier == lowest]
    found = _Hat(among, lambda target: known[id(target)], draw, facts).best_of_two(picky=False)
    if found is None:
        raise AssertionError("whoever is admitted may be drawn")
    target, reason = found
    return target, reason if known[id(target)].able else f"{reason}, most of the tier fails"


class _Hat:
    """Targets to draw from, each as often as its weight says."""

    __slots__ = ("_bounds", "_draw", "_facts", "_standings", "_targets")

    def __init__(self, targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts) -> None:
        self._targets = targets
        self._bounds = list(accumulate(map(_weight, targets)))
        self._standings = standings
        self._draw = draw
        self._facts = facts

    def best_of_two(self, *, picky: bool) -> Reasoned | None:
        """None if there is nobody to draw; `picky`: or if one of the two is not able."""
        if not self._bounds[-1]:
            return None
        one, two = self._drawn(self._bounds), self._drawn(self._bounds)
        first = self._seen(one)
        if picky and not first[1].able:
            return None
        if one == two:
            return self._of_unlike(first) if first[1].speed is not None else (first[0], why(first))
        second = self._seen(two)
        if picky and not second[1].able:
            return None
        return _better(first, second, self._facts)

    def _of_unlike(self, first: Seen) -> Reasoned:
        """Both draws fell on `first`: it goes, unless one drawn from the others is of another speed, and better."""
        bounds = list(accumulate(0 if target is first[0] else target.weight for target in self._targets))
        if bounds[-1]:
            second = self._seen(self._drawn(bounds))
            if second[1].able and _apart(first, second, self._facts) is not None:
                return _better(first, second, self._facts)
        return first[0], why(first)

    def _seen(self, place: int) -> Seen:
        target = self._targets[place]
        return target, self._standings(target)

    def _drawn(self, bounds: Sequence[int]) -> int:
        """On which of the targets a point in [0, 1) falls when each is as wide as its weight."""
        return bisect_right(bounds, min(int(self._draw() * bounds[-1]), bounds[-1] - 1))


def _better(one: Seen, two: Seen, facts: Facts) -> Reasoned:
    """The one to go first. Where there is nothing to choose, the first one drawn: that keeps the shares of weights."""
    for seen in (one, two):
        if seen[1].state == "trial":
            return seen[0], why(seen)
    if (apart := _apart(one, two, facts)) is not None:
        scores = apart[0] * (1 + load(one)), apart[1] * (1 + load(two))
        found, score = (two, scores[1]) if scores[1] < scores[0] else (one, scores[0])
        return found[0], f"tier {found[0].tier}, done in {score:.3g} s, load {load(found):.3g}"
    found = two if load(two) < load(one) else one
    return found[0], why(found)


def _apart(one: Seen, two: Seen, facts: Facts) -> tuple[float, float] | None:
    """The times that two engines of unlike speed are expected to take; None: they count as equals."""
    first_s, second_s = expected_s(one, facts), expected_s(two, facts)
    if first_s is None or second_s is None:
        return None
    less_s, more_s = min(first_s, second_s), max(first_s, second_s)
    return None if more_s <= max(ALIKE * less_s, less_s + NEAR_S) else (first_s, second_s)


def _candidate(target: Target, reason: str) -> Candidate:
    return Candidate(engine=target.engine, model=target.model, why=reason)


def _considered(field: Field, seen: Seen, words: str, position: int | None) -> Considered:
    target, standing = seen
    return Considered(
        engine=target.engine,
        model=target.model,
        tier=target.tier,
        weight=target.weight,
        position=position,
        state=state(seen),
        outstanding=standing.outstanding,
        load=load(seen),
        expected_s=field.expected_s(seen),
        score=field.score(seen),
        why=words,
    )
