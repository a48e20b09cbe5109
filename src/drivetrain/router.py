"""Which engines may answer a request, best first. A pure decision: no clock, no logging, chance handed in.

Within the lowest tier that has a ready engine: two are drawn by weight and the one with less outstanding work per
weight goes first (power of two choices); the others follow by load. Higher tiers come after. An engine that is not
ready stands at the end of its tier: if nothing else is left, it is tried all the same.
"""

from collections.abc import Callable, Mapping, Sequence

from drivetrain.config.schema import Target
from drivetrain.types import Value


class Standing(Value, frozen=True, kw_only=True):
    """How an engine stands at this moment."""

    ready: bool = True
    outstanding: int = 0  # requests it is working on for us


class Candidate(Value, frozen=True, kw_only=True):
    engine: str
    model: str  # the engine's own name of it
    why: str  # for the record of decisions


UNKNOWN = Standing()


def candidates(
    targets: Sequence[Target], standings: Mapping[str, Standing], draw: Callable[[], float]
) -> Sequence[Candidate]:
    """`draw` gives uniform numbers in [0, 1). Every target of positive weight appears once."""
    if len(targets) == 1:
        return (Candidate(engine=targets[0].engine, model=targets[0].model, why="only target"),)
    ordered: list[Candidate] = []
    for tier in sorted({target.tier for target in targets}):
        ordered += _of_tier([target for target in targets if target.tier == tier and target.weight], standings, draw)
    return ordered


def _of_tier(
    targets: Sequence[Target], standings: Mapping[str, Standing], draw: Callable[[], float]
) -> list[Candidate]:
    def load(target: Target) -> float:
        return standings.get(target.engine, UNKNOWN).outstanding / target.weight

    ready = [target for target in targets if standings.get(target.engine, UNKNOWN).ready]
    unready = [target for target in targets if target not in ready]
    first = min((_drawn(ready, draw()), _drawn(ready, draw())), key=load) if ready else None
    rest = sorted((target for target in ready if target is not first), key=load)
    chosen = [_candidate(first, f"tier {first.tier}, load {load(first):g}")] if first else []
    return [
        *chosen,
        *(_candidate(target, f"tier {target.tier}, next by load {load(target):g}") for target in rest),
        *(_candidate(target, f"tier {target.tier}, not ready, last resort") for target in unready),
    ]


def _candidate(target: Target, why: str) -> Candidate:
    return Candidate(engine=target.engine, model=target.model, why=why)


def _drawn(targets: Sequence[Target], point: float) -> Target:
    """The target on which a point in [0, 1) falls when each is as wide as its weight."""
    left = point * sum(target.weight for target in targets)
    for target in targets:
        left -= target.weight
        if left < 0:
            return target
    return targets[-1]
