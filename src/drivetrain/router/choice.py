"""The choice among the targets of a model.

Of the targets that are able (ready, not set aside by their breaker, not at rest), those of the lowest tier are drawn
from by weight, twice, and the better of the two goes first (power of two choices). Better is, of engines that are about
as fast or not measured yet, the one with less outstanding work per weight; of unlike ones, the one that is expected to
be done sooner with this request, behind its outstanding work. An engine on trial goes before the other one drawn.

A policy may want more (`Terms`): a goal, rules that prefer targets, prompts or sessions kept together, engines of one's
own region first. And whoever lacks what a request needs goes last.

Then come the other able ones, tier by tier, then those that are not able: if nothing else is left, they are tried all
the same. A breaker never sets aside most of a tier, unless a higher tier has somebody who is able.
"""

from collections.abc import Sequence
from operator import attrgetter

from drivetrain.config.schema import Target
from drivetrain.router import goals, sticky
from drivetrain.router.field import Seen
from drivetrain.router.fit import lacks
from drivetrain.router.hat import Draw, Hat, Reasoned, Standings, sooner
from drivetrain.router.record import Considered, Field
from drivetrain.router.roster import Group
from drivetrain.router.standing import USUAL, Facts
from drivetrain.router.terms import Terms
from drivetrain.types import Value

FEW = 8  # targets that are cheap to look at
DRAWS = 4  # among more of them, where a goal is set
TRIES = 3  # draws among more of them, before everybody is looked at

_tier = attrgetter("tier")


class Candidate(Value, frozen=True, kw_only=True):
    engine: str
    model: str  # the engine's own name of it
    why: str  # for the record of decisions
    version: str = ""  # of the model, if the configuration names it


class Decision:
    """`first` is worked out at once; `order` and `considered` when somebody asks, by how the engines stand then."""

    __slots__ = ("_facts", "_head", "_standings", "_targets", "_terms", "first")

    def __init__(
        self,
        targets: Sequence[Target],
        standings: Standings,
        facts: Facts,
        terms: Terms | None,
        head: Target | None,
        reason: str,
    ) -> None:
        self._targets = targets
        self._standings = standings
        self._facts = facts
        self._terms = terms
        self._head = head
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
            *(field.considered(seen, reason, place) for place, (seen, reason) in enumerate(named, 1)),
            *(field.considered((target, self._standings(target)), "weight 0, out of rotation", None) for target in out),
        )

    def _field(self) -> Field:
        return Field.of(self._targets, self._standings, self._facts, self._terms)

    def _others(self, field: Field) -> list[tuple[Seen, str]]:
        return [(seen, field.why(seen)) for seen in field.ranked() if seen[0] is not self._head]


def candidates(
    targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts = USUAL, terms: Terms | None = None
) -> Decision:
    """`standings` tells how a target's engine stands now; `draw` gives uniform numbers in [0, 1)."""
    if len(targets) == 1:
        return Decision(targets, standings, facts, terms, targets[0], "only target")
    at_once = _at_once(targets, standings, draw, facts) if terms is None else _on_terms(standings, draw, facts, terms)
    found = at_once or _after_a_look(targets, standings, draw, facts, terms)
    return Decision(targets, standings, facts, terms, *found)


def _at_once(targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts) -> Reasoned | None:
    """The first, if those drawn from the lowest tier are able, as they nearly always are: nobody else is looked at."""
    tiers = set(map(_tier, targets))
    if len(tiers) > 1:
        lowest = min(tiers)
        targets = [target for target in targets if target.tier == lowest]
    hat = Hat(targets, standings, draw, facts)
    for _ in range(TRIES if len(targets) > FEW else 1):
        if (found := hat.best_of_two(picky=True)) is not None:
            return found
    return None


def _on_terms(standings: Standings, draw: Draw, facts: Facts, terms: Terms) -> Reasoned | None:
    """The first of the group that is to be asked first, if there is one who is able and lacks nothing."""
    groups = terms.roster.groups(terms.wish, facts.region)
    if not groups:
        return None
    group = groups[0]
    if group.near is None or group.far is None:
        found = _of_group(group, standings, draw, facts, terms)
        return (found[0][0], found[1]) if found is not None else None
    near = _of_group(group.near, standings, draw, facts, terms)
    far = _of_group(group.far, standings, draw, facts, terms)
    if near is not None and far is not None:
        return _nearer(near, far, facts, terms)
    if near is not None:
        return near[0][0], f"{near[1]}, in region {facts.region}"
    return (far[0][0], f"{far[1]}, nobody in region {facts.region} is able") if far is not None else None


def _of_group(group: Group, standings: Standings, draw: Draw, facts: Facts, terms: Terms) -> tuple[Seen, str] | None:
    wish = terms.wish
    if wish.affinity != "none" and facts.own and (kept := sticky.kept(group, standings, draw, facts, terms)):
        return kept

    def fit(seen: Seen) -> bool:
        return not lacks(seen, facts, terms.traits(seen[0]))

    hat = Hat(group.targets, standings, draw, facts, bounds=group.bounds, fit=fit)
    if wish.goal != "balanced":
        some = hat.some(FEW if len(group.targets) <= FEW else DRAWS)
        return goals.chosen(some, facts, terms, draw) if some else None
    for _ in range(TRIES):
        if (found := hat.best_of_two(picky=True)) is not None:
            target, reason = found
            return (target, standings(target)), f"{terms.words(target)}{reason.removeprefix(f'tier {target.tier}')}"
    return None


def _nearer(near: tuple[Seen, str], far: tuple[Seen, str], facts: Facts, terms: Terms) -> Reasoned:
    """The one of the region that was asked for, unless the other one is much sooner."""
    if far[0][1].state == "trial" or sooner(near[0], far[0], facts) <= terms.wish.spill_factor:
        return near[0][0], f"{near[1]}, in region {facts.region}"
    region = terms.traits(far[0][0]).region
    return far[0][0], f"{far[1]}, spilled over to region {region or 'unknown'}"


def _after_a_look(
    targets: Sequence[Target], standings: Standings, draw: Draw, facts: Facts, terms: Terms | None
) -> Reasoned | tuple[None, str]:
    field = Field.of(targets, standings, facts, terms)
    among = field.best()
    if not among:
        seen = next(iter(field.ranked()), None)
        return (seen[0], field.why(seen)) if seen is not None else (None, "")
    if terms is not None:
        near = [seen for seen in among if terms.roster.near(seen[0], facts.region)]
        among = near or among
    known = {id(target): standing for target, standing in among}
    if terms is not None and terms.wish.goal != "balanced":
        (target, _), reason = goals.chosen(among, facts, terms, draw)
    else:
        hat = Hat([target for target, _ in among], lambda target: known[id(target)], draw, facts)
        found = hat.best_of_two(picky=False)
        if found is None:
            raise AssertionError("whoever is admitted may be drawn")
        target, reason = found
    return target, reason if known[id(target)].able else f"{reason}, most of the tier fails"


def _candidate(target: Target, reason: str) -> Candidate:
    return Candidate(engine=target.engine, model=target.model, why=reason, version=target.version)
