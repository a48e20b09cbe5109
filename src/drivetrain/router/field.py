"""All targets of a model side by side: who may be chosen, in which order the others follow, and why."""

from collections.abc import Sequence

from drivetrain.config.schema import Target
from drivetrain.router.standing import Facts, Standing

Seen = tuple[Target, Standing]

UNABLE = ("open", "away", "resting")  # in this order they are tried where nothing else is left


def load(seen: Seen) -> float:
    """Outstanding work per weight, as if this request were the share of it that an ailing engine takes."""
    target, standing = seen
    if standing.share == 1.0:
        return standing.outstanding / (target.weight or 1)
    return ((1 + standing.outstanding) / standing.share - 1) / (target.weight or 1)


def expected_s(seen: Seen, facts: Facts) -> float | None:
    """For this request, if the engine were idle. None: it has not been measured."""
    speed = seen[1].speed
    return speed.expected_s(facts.prompt_tokens, facts.output_tokens) if speed is not None else None


def state(seen: Seen) -> str:
    standing = seen[1]
    if not standing.ready:
        return "away"
    if standing.wait_s:
        return "resting"
    return {"closed": "able", "trial": "trial", "open": "open", "trying": "open"}[standing.state]


def why(seen: Seen, place: str = "") -> str:
    """For the record: the tier, and what decided."""
    target, standing = seen
    if standing.state == "trial":
        return f"tier {target.tier}, {place}trial after failures"
    return f"tier {target.tier}, {place}load {load(seen):.3g}"


class Field:
    """A look at every target in rotation."""

    def __init__(self, seen: Sequence[Seen], facts: Facts) -> None:
        self.seen = seen
        self._facts = facts
        self.admitted = _admitted(seen)
        self._in = {id(each) for each in self.admitted}
        measured = [found for each in self.admitted if (found := expected_s(each, facts)) is not None]
        self._usual_s = min(measured, default=1.0)  # of one that has not been measured

    def score(self, seen: Seen) -> float:
        """Seconds until this request would be done, behind the engine's outstanding work."""
        expected = expected_s(seen, self._facts)
        return (self._usual_s if expected is None else expected) * (1.0 + load(seen))

    def expected_s(self, seen: Seen) -> float | None:
        return expected_s(seen, self._facts)

    def ranked(self) -> Sequence[Seen]:
        """Those admitted, tier by tier and best first; then the others, tier by tier."""
        others = [seen for seen in self.seen if id(seen) not in self._in]
        return (
            *sorted(self.admitted, key=lambda seen: (seen[0].tier, self.score(seen))),
            *sorted(others, key=lambda seen: (seen[0].tier, UNABLE.index(state(seen)))),
        )

    def why(self, seen: Seen) -> str:
        """Of one that is not asked first."""
        target, standing = seen
        if id(seen) not in self._in:
            words = {"away": "not ready", "open": "set aside after failures", "resting": "asked not to be asked"}
            return f"tier {target.tier}, {words[state(seen)]}, last resort"
        if not standing.able:
            return f"tier {target.tier}, most of it fails, next by load {load(seen):.3g}"
        return why(seen, "next by ")


def _admitted(seen: Sequence[Seen]) -> Sequence[Seen]:
    """Who may be chosen: the able ones, and those that a breaker set aside where it would leave less than half of a
    tier, and nobody in a higher one."""
    tiers: dict[int, tuple[list[Seen], list[Seen]]] = {}  # of each: those who could answer, and the able ones
    for each in seen:
        standing = each[1]
        if standing.ready and not standing.wait_s:
            here, able = tiers.setdefault(each[0].tier, ([], []))
            here.append(each)
            if standing.able:
                able.append(each)
    found: list[Seen] = []
    spare = False
    for tier in sorted(tiers, reverse=True):
        here, able = tiers[tier]
        found += here if 2 * len(able) < len(here) and not spare else able
        spare = spare or bool(able)
    return found
