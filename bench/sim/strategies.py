"""What is compared: plain ways to choose an engine, and the router's own under several policies.

All of them respect weights and ask no engine that probes found away. Breakers and measures of speed are known to the
router only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

from sim.boxes import Box
from sim.traffic import Asked

from drivetrain import router
from drivetrain.config.schema import Routing, Target
from drivetrain.gateway.choose import MANY
from drivetrain.policies import prices
from drivetrain.router import USUAL, Facts, Heat, Roster, Standing, Terms, Work
from drivetrain.types import Usage

DRAWS = 50  # of one that has to be ready, at most


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0


class Yard(NamedTuple):
    """The engines that have a model, and the time."""

    boxes: Sequence[Box]
    chance: Random
    clock: Clock


class Choice(Protocol):
    def order(self, asked: Asked) -> Iterator[Box]:
        """Who is to be asked, best first; worked out as it is asked for. May name one more than once."""


class Strategy(NamedTuple):
    name: str
    begin: Callable[[Yard], Choice]
    fair: bool = True  # turns at the door go round between tenants, by class; else in order of arrival


class Drawn:
    """By chance, as often as weights say."""

    def __init__(self, yard: Yard) -> None:
        self._boxes, self._draw = yard.boxes, yard.chance.random
        self._bounds = list(accumulate(box.target.weight for box in yard.boxes))

    def order(self, asked: Asked) -> Iterator[Box]:
        for _ in range(DRAWS):
            if (box := self._one()).ready:
                yield box

    def _one(self) -> Box:
        return self._boxes[bisect_right(self._bounds, self._draw() * self._bounds[-1])]


class Round:
    """One after the other, each as often in a round as its weight says."""

    def __init__(self, yard: Yard) -> None:
        self._round = [box for box in yard.boxes for _ in range(box.target.weight)]
        yard.chance.shuffle(self._round)
        self._at = 0

    def order(self, asked: Asked) -> Iterator[Box]:
        for _ in self._round:
            self._at = (self._at + 1) % len(self._round)
            if (box := self._round[self._at]).ready:
                yield box


class Least:
    """Least outstanding requests for its weight; among equals the first from a place that is drawn."""

    def __init__(self, yard: Yard) -> None:
        self._boxes, self._draw = yard.boxes, yard.chance.random

    def order(self, asked: Asked) -> Iterator[Box]:
        yield from filter(None, (self._one() for _ in range(DRAWS)))

    def _one(self) -> Box | None:
        boxes, found, least = self._boxes, None, float("inf")
        begin = int(self._draw() * len(boxes))
        for box in (*boxes[begin:], *boxes[:begin]):
            if box.ready and (load := box.outstanding / box.target.weight) < least:
                found, least = box, load
                if not load:
                    break
        return found


class Two(Drawn):
    """The one with less outstanding requests for its weight, of two that are drawn."""

    def _one(self) -> Box:
        one, two = super()._one(), super()._one()
        if one.ready is not two.ready:
            return one if one.ready else two
        return one if one.outstanding / one.target.weight <= two.outstanding / two.target.weight else two


class Ours:
    """The router, asked as the gateway asks it."""

    def __init__(self, yard: Yard, routing: Routing, *, regional: bool = False) -> None:
        self._clock = yard.clock
        self._routing = routing
        self._regional = regional
        self._draw = yard.chance.random
        self._by_name = {box.target.engine: box for box in yard.boxes}
        self._targets = tuple(box.target for box in yard.boxes)
        self._roster = Roster(self._targets, lambda target: self._by_name[target.engine].traits)
        self._heat = Heat()
        self._kept: dict[int, tuple[Work, list[int]]] = {}

    def order(self, asked: Asked) -> Iterator[Box]:
        decision = self._decide(asked)
        if decision.first is None:
            return
        yield self._by_name[decision.first.engine]
        yield from (self._by_name[candidate.engine] for candidate in decision.order[1:])

    def _decide(self, asked: Asked) -> router.Decision:
        facts = self._facts(asked)
        return router.candidates(self._roster, self._standing, self._draw, facts, self._terms(facts))

    def _facts(self, asked: Asked) -> Facts:
        affinity = self._routing.affinity
        own = asked.own if affinity != "none" else 0
        return Facts(
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.limit or USUAL.output_tokens,
            limit=asked.limit,
            priority=asked.priority,
            region=asked.region if self._regional else "",
            shared=asked.shared if affinity == "prefix" else own,
            own=own,
        )

    def _terms(self, facts: Facts) -> Terms:
        return Terms(
            wish=router.wish(self._routing, facts),
            micro_usd=lambda target: self._micro_usd(target, facts),
            work=self._work,
            share=self._heat.met(facts.shared) if self._routing.affinity == "prefix" else 0.0,
        )

    def _standing(self, target: Target) -> Standing:
        return self._by_name[target.engine].standing(self._clock.now_s)

    def _micro_usd(self, target: Target, facts: Facts) -> float:
        usage = Usage(prompt=facts.prompt_tokens, completion=facts.output_tokens)
        return prices.cost(self._by_name[target.engine].kind.price, usage, 0.0).micro_usd

    def _work(self, targets: Sequence[Target]) -> Work:
        """As old as the gateway lets it become."""
        kept = self._kept.get(id(targets))
        if kept is not None and kept[1][0] > 0:
            kept[1][0] -= 1
            return kept[0]
        boxes = [self._by_name[target.engine] for target in targets]
        able = [box for box in boxes if box.ready and not box.breaker.opened]
        work = router.work_of([box.outstanding for box in able], [box.target.weight for box in able])
        self._kept[id(targets)] = work, [len(targets) // MANY]
        return work


def _ours(routing: Routing, *, regional: bool = False) -> Callable[[Yard], Choice]:
    return lambda yard: Ours(yard, routing, regional=regional)


STRATEGIES = (
    Strategy("random", Drawn),
    Strategy("round robin", Round),
    Strategy("least outstanding", Least),
    Strategy("two choices", Two),
    Strategy("balanced", _ours(Routing())),
    Strategy("balanced, in order of arrival", _ours(Routing()), fair=False),
    Strategy("latency", _ours(Routing(goal="latency"))),
    Strategy("throughput", _ours(Routing(goal="throughput"))),
    Strategy("cost", _ours(Routing(goal="cost"))),
    Strategy("prefix", _ours(Routing(affinity="prefix"))),
    Strategy("session", _ours(Routing(affinity="session"))),
    Strategy("regions", _ours(Routing(), regional=True)),
    Strategy("prefix in regions", _ours(Routing(affinity="prefix"), regional=True)),
)
