"""A choice in full: who is asked after the first one, and how every target stood. Worked out when somebody asks."""

from collections.abc import Sequence

from drivetrain.router import goals, sticky
from drivetrain.router.case import Case
from drivetrain.router.field import UNABLE, Rank, Seen, admitted, expected_s, load, state, why
from drivetrain.router.fit import lacks
from drivetrain.types import Value


class Considered(Value, frozen=True, kw_only=True):
    """One target in the record of a decision."""

    engine: str
    model: str  # the engine's own name of it
    tier: int
    weight: int  # 0 while it is drained
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

    def __init__(self, seen: Sequence[Seen], case: Case) -> None:
        self.seen = seen
        self._roster, self._facts, self._terms = case.roster, case.facts, case.terms
        self._rank: Rank = self._terms.rank
        self.lacking = _lacking(seen, case)
        self.admitted = admitted(seen, self._rank, self.lacking)
        self._in = {id(target) for target, _ in self.admitted}
        measured = [found for each in self.admitted if (found := expected_s(each, self._facts)) is not None]
        self._usual_s = min(measured, default=1.0)  # of one that has not been measured
        self._scores = self._scored()

    @classmethod
    def of(cls, case: Case) -> "Field":
        """Of those in rotation."""
        targets = case.roster.targets
        rotation = [target for target in targets if target.weight] if len(targets) > 1 else targets
        return cls([(target, case.standings(target)) for target in rotation], case)

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
        tier = self._terms.words(target)
        if lack := self.lacking.get(id(target)):
            return f"{tier}, {lack}, last resort"
        if id(target) not in self._in:
            words = {"away": "not ready", "open": "set aside after failures", "resting": "asked not to be asked"}
            return f"{tier}, {words[state(seen)]}, last resort"
        if not standing.able:
            return f"{tier}, most of it fails, next by load {load(seen):.3g}"
        return f"{tier}, next by {why(seen)}"

    def considered(self, seen: Seen, words: str, position: int | None) -> Considered:
        target, standing = seen
        note = self._roster.note(target)
        return Considered(
            engine=target.engine,
            model=target.model,
            tier=target.tier,
            weight=target.weight,
            region=self._roster.traits[id(target)].region,
            position=position,
            state=state(seen),
            outstanding=standing.outstanding,
            load=load(seen),
            expected_s=expected_s(seen, self._facts),
            micro_usd=self._terms.micro_usd(target),
            score=self._scores.get(id(target), self._alone(seen)),
            why=f"{words} ({note})" if note and note not in words else words,
        )

    def _scored(self) -> dict[int, float]:
        """Of those in rotation, by their ids; those of another region count as so many times slower."""
        roster, terms, facts = self._roster, self._terms, self._facts
        found = goals.scores(self.seen, facts, terms)
        factor = terms.wish.spill_factor
        return {
            id(seen[0]): score * (1.0 if roster.near(seen[0], facts.region) else factor)
            for seen, score in zip(self.seen, found, strict=True)
        }

    def _alone(self, seen: Seen) -> float:
        """Seconds until this request would be done, behind the engine's outstanding work."""
        expected = expected_s(seen, self._facts)
        return (self._usual_s if expected is None else expected) * (1.0 + load(seen))

    def _homes(self) -> dict[int, int]:
        """Where something is kept together: how near each target is to its home."""
        terms, facts = self._terms, self._facts
        if terms.wish.affinity == "none" or not facts.own:
            return {}
        found: dict[int, int] = {}
        for group in self._roster.groups(terms.wish, facts.region):
            parts = (group,) if group.near is None or group.far is None else (group.near, group.far)
            for part in parts:
                for place in sticky.order(part, facts, terms):
                    found[id(part.targets[place])] = len(found)
        return found


def _lacking(seen: Sequence[Seen], case: Case) -> dict[int, str]:
    traits = case.roster.traits
    found = {id(target): lacks(standing, case.facts, traits[id(target)]) for target, standing in seen}
    return {target: words for target, words in found.items() if words}
