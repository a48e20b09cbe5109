"""A choice in full: who is asked after the first one, and how every target stood. Worked out when somebody asks."""

from collections.abc import Sequence
from operator import attrgetter

from drivetrain.config.schema import Target
from drivetrain.router import goals, sticky
from drivetrain.router.field import UNABLE, Rank, Seen, admitted, expected_s, load, state, why
from drivetrain.router.fit import lacks
from drivetrain.router.hat import Standings
from drivetrain.router.standing import ORDINARY, Facts
from drivetrain.router.terms import Terms
from drivetrain.types import Value

_tier: Rank = attrgetter("tier")


class Considered(Value, frozen=True, kw_only=True):
    """One target in the record of a decision."""

    engine: str
    model: str  # the engine's own name of it
    tier: int
    weight: int
    region: str
    position: int | None  # 1 for the one that is asked first; None: out of rotation
    state: str  # able, trial, open, resting, away
    outstanding: int
    load: float  # outstanding work per weight, more after failures and while it warms up
    expected_s: float | None  # for this request if it were idle; None: not measured yet
    micro_usd: float | None  # what this request is expected to cost; None: not looked at
    score: float  # least is best: seconds until what the goal looks at; for goal cost, how dear it is
    why: str


class Field:
    """A look at every target in rotation."""

    def __init__(self, seen: Sequence[Seen], facts: Facts, terms: Terms | None) -> None:
        self.seen = seen
        self._facts = facts
        self._terms = terms
        self._rank: Rank = terms.rank if terms is not None else _tier
        self.lacking = {} if terms is None else _lacking(seen, facts, terms)
        self.admitted = admitted(seen, self._rank, self.lacking)
        self._in = {id(target) for target, _ in self.admitted}
        measured = [found for each in self.admitted if (found := expected_s(each, facts)) is not None]
        self._usual_s = min(measured, default=1.0)  # of one that has not been measured
        self._scores = self._scored()

    @classmethod
    def of(cls, targets: Sequence[Target], standings: Standings, facts: Facts, terms: Terms | None) -> "Field":
        """Of those in rotation."""
        rotation = [target for target in targets if target.weight] if len(targets) > 1 else targets
        return cls([(target, standings(target)) for target in rotation], facts, terms)

    def best(self) -> Sequence[Seen]:
        """Those admitted of the lowest rank."""
        least = min((self._rank(target) for target, _ in self.admitted), default=None)
        return [seen for seen in self.admitted if self._rank(seen[0]) == least]

    def ranked(self) -> Sequence[Seen]:
        """Those admitted, rank by rank and best first; then the others, rank by rank; at last those that lack
        something."""
        places = self._homes()
        others = [seen for seen in self.seen if id(seen[0]) not in self._in]
        return (
            *sorted(
                self.admitted,
                key=lambda seen: (self._rank(seen[0]), places.get(id(seen[0]), 0), self._scores[id(seen[0])]),
            ),
            *sorted(
                others,
                key=lambda seen: (
                    id(seen[0]) in self.lacking,
                    self._rank(seen[0]),
                    UNABLE.index(state(seen)) if not seen[1].able else -1,
                ),
            ),
        )

    def why(self, seen: Seen) -> str:
        """Of one that is not asked first."""
        target, standing = seen
        tier = f"tier {target.tier}" if self._terms is None else self._terms.words(target)
        if lack := self.lacking.get(id(target)):
            return f"{tier}, {lack}, last resort"
        if id(target) not in self._in:
            words = {"away": "not ready", "open": "set aside after failures", "resting": "asked not to be asked"}
            return f"{tier}, {words[state(seen)]}, last resort"
        if not standing.able:
            return f"{tier}, most of it fails, next by load {load(seen):.3g}"
        if self._terms is None:
            return why(seen, "next by ")
        return f"{tier}, next by {'trial after failures' if standing.state == 'trial' else f'load {load(seen):.3g}'}"

    def considered(self, seen: Seen, words: str, position: int | None) -> Considered:
        target, standing = seen
        terms = self._terms
        return Considered(
            engine=target.engine,
            model=target.model,
            tier=target.tier,
            weight=target.weight,
            region=(terms.traits(target) if terms is not None else ORDINARY).region,
            position=position,
            state=state(seen),
            outstanding=standing.outstanding,
            load=load(seen),
            expected_s=expected_s(seen, self._facts),
            micro_usd=terms.micro_usd(target) if terms is not None else None,
            score=self._scores.get(id(target), self._alone(seen)),
            why=words,
        )

    def _scored(self) -> dict[int, float]:
        """Of those in rotation, by their ids; those of another region count as so many times slower."""
        terms, facts = self._terms, self._facts
        if terms is None:
            return {id(seen[0]): self._alone(seen) for seen in self.seen}
        found = goals.scores(self.seen, facts, terms)
        factor = terms.wish.spill_factor
        return {
            id(seen[0]): score * (1.0 if terms.roster.near(seen[0], facts.region) else factor)
            for seen, score in zip(self.seen, found, strict=True)
        }

    def _alone(self, seen: Seen) -> float:
        """Seconds until this request would be done, behind the engine's outstanding work."""
        expected = expected_s(seen, self._facts)
        return (self._usual_s if expected is None else expected) * (1.0 + load(seen))

    def _homes(self) -> dict[int, int]:
        """Where something is kept together: how near each target is to its home."""
        terms, facts = self._terms, self._facts
        if terms is None or terms.wish.affinity == "none" or not facts.own:
            return {}
        found: dict[int, int] = {}
        for group in terms.roster.groups(terms.wish, facts.region):
            parts = (group,) if group.near is None or group.far is None else (group.near, group.far)
            for part in parts:
                for place in sticky.order(part, facts, terms):
                    found[id(part.targets[place])] = len(found)
        return found


def _lacking(seen: Sequence[Seen], facts: Facts, terms: Terms) -> dict[int, str]:
    found = {id(each[0]): lacks(each, facts, terms.traits(each[0])) for each in seen}
    return {target: words for target, words in found.items() if words}
