"""The choice among the targets of a model.

Of the targets that are able (ready, not set aside by their breaker, not at rest), those of the lowest tier are drawn
from by weight, twice, and the better of the two goes first (power of two choices). Better is, of engines that are about
as fast or not measured yet, the one with less outstanding work per weight; of unlike ones, the one that is expected to
be done sooner with this request, behind its outstanding work. An engine on trial goes before the other one drawn.
Of more than eight, two more are drawn if both of the first are at work: idle ones are missed less often.

A policy may want more (`Terms`): a goal, rules that prefer targets, prompts or sessions kept together, engines of one's
own region first. And whoever lacks what a request needs goes last. Who that is, and who is away, is known before: the
groups without them are kept until something changes (`Roster`), and nobody else is drawn.

Then come the other able ones, tier by tier, then those that are not able: if nothing else is left, they are tried all
the same. A breaker never sets aside most of a tier, unless a higher tier has somebody who is able.
"""

from collections.abc import Callable, Sequence

from drivetrain.config.schema import Target
from drivetrain.router import goals, sticky
from drivetrain.router.case import Case, Draw, Standings
from drivetrain.router.field import Seen
from drivetrain.router.hat import Reasoned, best_of_two, better, good, some, sooner
from drivetrain.router.record import Considered, Field
from drivetrain.router.roster import Group, Roster
from drivetrain.router.standing import DRAINED, USUAL, Facts
from drivetrain.router.terms import PLAIN, Terms
from drivetrain.types import Value

FEW = 8  # targets that are cheap to look at
DRAWS = 4  # among more of them, where a goal is set
TRIES = 3  # draws among more of them, before everybody is looked at


class Candidate(Value, frozen=True, kw_only=True):
    engine: str
    model: str  # the engine's own name of it
    why: str  # for the record of decisions
    version: str = ""  # of the model, if the configuration names it


class Decision:
    """`first` is worked out at once; `order` and `considered` when somebody asks, by how the engines stand then."""

    __slots__ = ("_found", "_head", "_lone", "first")

    def __init__(self, case: Callable[[], Case], head: Target | None, reason: str, *, lone: bool = False) -> None:
        self._found = case
        self._head = head
        self._lone = lone
        self.first = _candidate(head, reason) if head is not None else None  # None: all are out of rotation

    @property
    def order(self) -> Sequence[Candidate]:
        """Best first: every target of positive weight, and a single target whatever its weight."""
        if self.first is None or self._lone:
            return (self.first,) if self.first is not None else ()
        return (self.first, *(_candidate(seen[0], reason) for seen, reason in self._others(Field.of(self._found()))))

    @property
    def considered(self) -> Sequence[Considered]:
        """Every target, in the order in which it would be asked; at the end those out of rotation."""
        case = self._found()
        field, standings, targets = Field.of(case), case.standings, case.roster.targets
        named = [(seen, self.first.why) for seen in field.seen if self.first and seen[0] is self._head]
        named += self._others(field)
        asked = {id(seen[0]) for seen, _ in named}
        out = [(target, standings(target)) for target in targets if id(target) not in asked]
        return (
            *(field.considered(seen, reason, place) for place, (seen, reason) in enumerate(named, 1)),
            *(field.considered(seen, _out(seen[0], case), None) for seen in out),
        )

    def _others(self, field: Field) -> list[tuple[Seen, str]]:
        return [(seen, field.why(seen)) for seen in field.ranked() if seen[0] is not self._head]


def only(target: Target, case: Callable[[], Case]) -> Decision:
    """Of one target there is nothing to choose; the case is made if somebody asks how it stands."""
    return Decision(case, target, "only target", lone=True)


def candidates(
    roster: Roster, standings: Standings, draw: Draw, facts: Facts = USUAL, terms: Terms = PLAIN
) -> Decision:
    """`standings` tells how a target's engine stands now; `draw` gives uniform numbers in [0, 1)."""
    case, targets = Case(roster, standings, draw, facts, terms), roster.targets
    if len(targets) == 1:
        return only(targets[0], lambda: case)
    group = roster.first(terms.wish, facts)
    found = _at_once(group, case) if group is not None else None
    if found is None:
        return Decision(lambda: case, *_after_a_look(case))
    (target, _), reason = found
    return Decision(lambda: case, target, f"{terms.words(target)}, {reason}")


def _out(target: Target, case: Case) -> str:
    """An engine that was drained counts as one without weight."""
    drained = case.roster.note(target) == DRAINED
    return f"{DRAINED if drained else 'weight 0'}, out of rotation"


def _at_once(group: Group, case: Case) -> Reasoned | None:
    """The first, if those drawn from the group are able, as they nearly always are: nobody else is looked at."""
    if group.near is None and group.far is None:
        return _drawn(group, case)
    near, far = _near(group.near, case), _drawn(group.far, case)
    if near is None:
        return (far[0], f"{far[1]}, nobody in region {case.facts.region} is able") if far is not None else None
    if far is None or far[0][1].state == "trial" or sooner(near[0], far[0], case.facts) <= case.terms.wish.spill_factor:
        return near[0], f"{near[1]}, in region {case.facts.region}"
    region = case.roster.traits[id(far[0][0])].region
    return far[0], f"{far[1]}, spilled over to region {region or 'unknown'}"


def _near(group: Group | None, case: Case) -> Reasoned | None:
    """As `_drawn`; None only if nobody is able: they are all looked at before the region is left."""
    found = _drawn(group, case)
    if found is not None or group is None:
        return found
    return _drawn(group.of(lambda target: good((target, case.standings(target)), case.facts)), case)


def _drawn(group: Group | None, case: Case) -> Reasoned | None:
    if group is None:
        return None
    wish, few = case.terms.wish, len(group.targets) <= FEW
    if wish.affinity != "none" and case.facts.own and (kept := sticky.kept(group, case)) is not None:
        return kept
    if wish.goal != "balanced":
        able = some(group, case, FEW if few else DRAWS)
        return goals.chosen(able, case) if able else None
    for _ in range(1 if few else TRIES):
        if (found := best_of_two(group, case, picky=True)) is not None:
            return found if few or not found[0][1].outstanding else _once_more(found, group, case)
    return None


def _once_more(found: Reasoned, group: Group, case: Case) -> Reasoned:
    """Both that were drawn are at work: two more are, and the best of the four goes."""
    other = best_of_two(group, case, picky=True)
    return found if other is None else better(found[0], other[0], case.facts)


def _after_a_look(case: Case) -> tuple[Target | None, str]:
    field, roster = Field.of(case), case.roster
    among = field.best()
    if not among:
        seen = next(iter(field.ranked()), None)
        return (seen[0], field.why(seen)) if seen is not None else (None, "")
    among = [seen for seen in among if roster.near(seen[0], case.facts.region)] or among
    if case.terms.wish.goal != "balanced":
        found: Reasoned | None = goals.chosen(among, case)
    else:
        known = {id(target): standing for target, standing in among}
        able = Group([target for target, _ in among])
        found = best_of_two(able, case._replace(standings=lambda target: known[id(target)]), picky=False)
    if found is None:
        raise AssertionError("whoever is admitted may be drawn")
    (target, standing), reason = found
    return target, f"{case.terms.words(target)}, {reason}{'' if standing.able else ', most of the tier fails'}"


def _candidate(target: Target, reason: str) -> Candidate:
    return Candidate(engine=target.engine, model=target.model, why=reason, version=target.version)
