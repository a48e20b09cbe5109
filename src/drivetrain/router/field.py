"""All targets of a model side by side: how each stands, who may be chosen, and why. Pure."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from drivetrain.config.schema import Target
from drivetrain.router.standing import Facts, Standing

Seen = tuple[Target, Standing]
Rank = Callable[[Target], Any]  # what is less is asked earlier

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


def why(seen: Seen) -> str:
    """For the record: what decided."""
    return "trial after failures" if seen[1].state == "trial" else f"load {load(seen):.3g}"


def admitted(seen: Sequence[Seen], rank: Rank, lacking: Collection[int] = ()) -> Sequence[Seen]:
    """Who may be chosen: the able ones, and those that a breaker set aside where it would leave less than half of a
    rank, and nobody in a higher one. `lacking`: ids of targets that cannot do what is asked."""
    ranks: dict[Any, tuple[list[Seen], list[Seen]]] = {}  # of each: those who could answer, and the able ones
    for each in seen:
        standing = each[1]
        if standing.ready and not standing.wait_s and id(each[0]) not in lacking:
            here, able = ranks.setdefault(rank(each[0]), ([], []))
            here.append(each)
            if standing.able:
                able.append(each)
    found: list[Seen] = []
    spare = False
    for key in sorted(ranks, reverse=True):
        here, able = ranks[key]
        found += here if 2 * len(able) < len(here) and not spare else able
        spare = spare or bool(able)
    return found
