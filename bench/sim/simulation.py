"""A day of one gateway in simulated time: who is let in, where each request goes, what its engine makes of it.

Nothing waits and no socket is opened. The choice, the breakers, the measures of speed, the line at the door and the
budget of retries are those of the product; engines and callers are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from time import process_time
from typing import Any, NamedTuple

from sim.boxes import Blow, Box, boxes_of
from sim.figures import Tally
from sim.strategies import Clock, Strategy, Yard
from sim.traffic import Asked

from drivetrain.config.schema import Queue, Retries, Timeouts
from drivetrain.errors import Busy
from drivetrain.gateway.lines import Line, Seat, Turn
from drivetrain.gateway.retries import Budget

QUEUE, RETRIES, TIMEOUTS = Queue(), Retries(), Timeouts()  # what a policy has that says nothing of them
INSIDE = 1.1  # requests at once, for each slot of all engines
PROBED_S = 10.0  # at most, until a probe finds that an engine is away
BACK_S = 1.0  # at most, until a probe finds it back
RULE = "policy:concurrency"


class World(NamedTuple):
    """What is the same for every strategy."""

    asked: Sequence[Asked]
    blows: Sequence[Blow]
    boxes: int
    models: int  # each at as many of the boxes; a conversation keeps to one
    hours: float
    seed: int


class Journey:
    """One request on its way: the attempt that is going on, and what it holds at the door."""

    __slots__ = (
        "asked",
        "attempt",
        "began_s",
        "begun",
        "box",
        "cached",
        "end_s",
        "first_s",
        "let_in_s",
        "order",
        "paid",
        "sent_s",
        "tried",
    )

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.attempt = 0
        self.box: Box | None = None
        self.begun = False  # it has a slot
        self.sent_s = self.began_s = self.first_s = self.end_s = self.let_in_s = 0.0
        self.cached = 0
        self.order: Iterator[Box] | None = None
        self.tried: set[int] = set()
        self.paid: tuple[Line, float] | None = None


class Simulation:
    """Owns the time, and all that is to happen in it."""

    def __init__(self, world: World, strategy: Strategy) -> None:
        self.world = world
        self.boxes = boxes_of(world.boxes)
        self.tally = Tally(world.hours, self.boxes)
        self.waiting: dict[Turn, Journey] = {}
        self.inside = 0
        self._chance = Random(world.seed)
        self._clock = Clock()
        self._choices = [
            strategy.begin(Yard(self.boxes[model :: world.models], self._chance, self._clock))
            for model in range(world.models)
        ]
        self._fair = strategy.fair
        self._most = round(INSIDE * sum(box.kind.slots for box in self.boxes))
        self._line = Line()
        self._seats = count()
        self._budget = Budget()
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._numbers = count()

    def run(self) -> Tally:
        for blow in self.world.blows:
            self._at(blow.at_s, self._strike, blow)
        for asked in self.world.asked:
            self._until(asked.at_s)
            self._arrive(Journey(asked))
        self._until(float("inf"))
        return self.tally

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    def _at(self, at_s: float, what: Any, *about: Any) -> None:
        heappush(self._events, (at_s, next(self._numbers), what, about))

    def _until(self, until_s: float) -> None:
        events, clock = self._events, self._clock
        while events and events[0][0] <= until_s:
            clock.now_s, _, what, about = heappop(events)
            what(*about)
        if until_s != float("inf"):
            clock.now_s = until_s

    # At the door.

    def _arrive(self, journey: Journey) -> None:
        self._budget.asked(self.now_s)
        seat = self._seat(journey)
        if (self._line.size and not self._line.goes_ahead(seat.rank)) or self.inside >= self._most:
            self._queue(journey, seat)
            return
        if self._line.size:
            self._line.passed(seat.rank)
        self._enter(journey)

    def _seat(self, journey: Journey) -> Seat:
        if not self._fair:
            return Seat(next(self._seats), "default", "")
        return Seat(next(self._seats), journey.asked.priority, journey.asked.tenant)

    def _queue(self, journey: Journey, seat: Seat) -> None:
        line = self._line
        if line.size >= QUEUE.size:
            out = line.crowded_out(seat)
            if out is None:
                self.tally.lost(journey, "refused")
                return
            line.shed(out, Busy("full"))
            self.tally.lost(self.waiting.pop(out), "refused")
        turn = line.join(seat)
        self.waiting[turn] = journey
        self._at(self.now_s + QUEUE.timeout_s, self._give_up, line, turn)

    def _give_up(self, line: Line, turn: Turn) -> None:
        if (journey := self.waiting.pop(turn, None)) is not None:
            line.leave(turn)
            self.tally.lost(journey, "refused")

    def _enter(self, journey: Journey) -> None:
        self.inside += 1
        journey.let_in_s = self.now_s
        began = process_time()
        choice = self._choices[(journey.asked.own >> 1) % len(self._choices)]
        journey.order = choice.order(journey.asked)
        box = next(journey.order, None)
        self.tally.decided(process_time() - began)
        self._send(journey, box)

    def _leave(self, journey: Journey) -> None:
        """What it held at the door is free, and whoever's turn it is comes in."""
        self.inside -= 1
        line, asked = self._line, journey.asked
        if not line.size:
            return
        charged = journey.paid[1] if journey.paid is not None and journey.paid[0] is line else 0.0
        tokens = asked.prompt_tokens + asked.output_tokens
        line.learn(self._seat(journey), tokens - charged, tokens=tokens, service_s=self.now_s - journey.let_in_s)
        line.freed(RULE)
        while self.inside < self._most and (turn := line.head()) is not None:
            following = self.waiting.pop(turn)
            following.paid = line, line.served(turn)
            line.leave(turn)
            self._enter(following)
        if not line.size:
            self._line = Line()  # as the gateway: it is made anew for the next who has to wait

    # At an engine.

    def _send(self, journey: Journey, box: Box | None) -> None:
        if box is None:
            self._over(journey)
            self.tally.lost(journey, "failed")
            return
        journey.attempt += 1
        journey.box, journey.begun, journey.sent_s = box, False, self.now_s
        journey.tried.add(box.place)
        box.begins(journey)
        if not box.up:
            box.ready = False  # as a request finds it that is refused
            self._fail(journey, begun=False)
        elif box.hung or len(box.running) >= box.kind.slots:
            box.queue.append(journey)
            self._at(self.now_s + TIMEOUTS.first_token_s, self._silent, journey, journey.attempt)
        else:
            self._start(journey, box)

    def _start(self, journey: Journey, box: Box) -> None:
        box.run(journey, self.now_s)
        if journey.first_s - journey.sent_s > TIMEOUTS.first_token_s:
            self._at(journey.sent_s + TIMEOUTS.first_token_s, self._silent, journey, journey.attempt)
        self._at(journey.end_s, self._done, journey, journey.attempt)

    def _done(self, journey: Journey, attempt: int) -> None:
        box = journey.box
        if box is None or journey.attempt != attempt or box.hung:
            return
        box.forget(journey, self.now_s)
        box.ends(journey, self.now_s, worked=True)
        self._over(journey)
        self.tally.answered(journey, box, self.now_s)
        self._next(box)

    def _next(self, box: Box) -> None:
        while box.queue and box.up and not box.hung and len(box.running) < box.kind.slots:
            self._start(box.queue.popleft(), box)

    def _silent(self, journey: Journey, attempt: int) -> None:
        """Its time for a first token is over."""
        box = journey.box
        if box is None or journey.attempt != attempt or (journey.begun and journey.first_s <= self.now_s):
            return
        box.forget(journey, self.now_s)
        self._fail(journey, begun=False)
        self._next(box)

    def _idle(self, journey: Journey, attempt: int) -> None:
        """Its engine has hung in the middle of the answer, for longer than a caller waits for the next piece."""
        box = journey.box
        if box is None or journey.attempt != attempt or not box.hung:
            return
        box.forget(journey, self.now_s)
        self._fail(journey, begun=True)

    def _fail(self, journey: Journey, *, begun: bool) -> None:
        """`begun`: the caller has a part of the answer, so that it cannot be had from another engine."""
        box = journey.box
        if box is None:
            raise AssertionError("it was somewhere")
        box.ends(journey, self.now_s, worked=False)
        journey.box = None
        following = None
        if not begun and journey.attempt <= RETRIES.max and self._budget.take(RETRIES, self.now_s):
            following = self._other(journey)
        if following is not None:
            self.tally.retries += 1
            self._send(journey, following)
            return
        self._over(journey)
        self.tally.lost(journey, "broken off" if begun else "failed")

    def _other(self, journey: Journey) -> Box | None:
        return next((box for box in journey.order or () if box.place not in journey.tried), None)

    def _over(self, journey: Journey) -> None:
        journey.box = journey.order = None
        self._leave(journey)

    # Faults.

    def _strike(self, blow: Blow) -> None:
        box = self.boxes[blow.place]
        if blow.fault == "slow":
            box.slow = True
            self._at(blow.until_s, self._quick, box)
            return
        if blow.fault == "hang":
            box.hung = True
            for journey in self._by_age(box):
                wait_s = TIMEOUTS.idle_s if journey.first_s <= self.now_s else TIMEOUTS.first_token_s
                what = self._idle if journey.first_s <= self.now_s else self._silent
                journey.first_s = journey.first_s if what == self._idle else float("inf")
                self._at(self.now_s + wait_s, what, journey, journey.attempt)
        else:
            box.up = False
            self._at(self.now_s + self._chance.random() * PROBED_S, self._missed, box)
            self._drop(box)
        self._at(blow.until_s, self._restart, box)

    def _quick(self, box: Box) -> None:
        box.slow = False

    def _missed(self, box: Box) -> None:
        if not box.up:
            box.ready = False

    def _restart(self, box: Box) -> None:
        """A process begins anew: who was in the old one has lost it, and nothing is cached."""
        self._drop(box)
        box.up, box.hung = True, False
        box.cache.clear()
        if not box.ready:
            self._at(self.now_s + self._chance.random() * BACK_S, self._found, box)

    def _found(self, box: Box) -> None:
        if box.up and not box.ready:
            box.ready = True
            box.breaker.returned(self.now_s)

    def _drop(self, box: Box) -> None:
        was_up, box.up = box.up, False
        for journey in self._by_age(box) + list(box.queue):
            begun = journey.begun and journey.first_s <= self.now_s
            box.forget(journey, self.now_s)
            self._fail(journey, begun=begun)
        box.up = was_up

    @staticmethod
    def _by_age(box: Box) -> list[Journey]:
        """A set has no order that is the same in the next run."""
        return sorted(box.running, key=lambda journey: (journey.began_s, journey.asked))
