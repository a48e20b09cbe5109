"""A second engine that is asked as well when the first is slow to begin: the one that begins first answers.

What counts as slow is learned from the model's own times to the first token. Both attempts are on record, and cost.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from msgspec.structs import replace

from drivetrain.config.schema import Hedge
from drivetrain.config.schema import Retries as Rule
from drivetrain.errors import DrivetrainError
from drivetrain.gateway.account import tell
from drivetrain.gateway.attempt import Attempts
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.retries import Retries
from drivetrain.gateway.visit import Visit
from drivetrain.gateway.way import Leg
from drivetrain.types import Event, Request

KNOWN = 20  # times, before their quantile means something
RECENT = 200  # times that are remembered of a model
FRESH = 10  # times that may come before the quantile is worked out again

Batches = AsyncGenerator[Sequence[Event], None]


class Times:
    """A model's last times to the first token."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._new = FRESH
        self._quantile = 0
        self._value_s = 0.0

    def add(self, first_token_s: float) -> None:
        self._recent.append(first_token_s)
        self._new += 1

    def slow_s(self, rule: Hedge) -> float:
        """After so long without a token the model is slow."""
        if len(self._recent) < KNOWN:
            return rule.most_s
        if self._new >= FRESH or self._quantile != rule.quantile:
            ordered = sorted(self._recent)
            self._value_s = ordered[min(len(ordered) - 1, len(ordered) * rule.quantile // 100)]
            self._new, self._quantile = 0, rule.quantile
        return min(max(self._value_s, rule.least_s), rule.most_s)


class _Lane:
    """One of the attempts that race."""

    __slots__ = ("meter", "more", "over")

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.more = asyncio.Event()  # what it gave was taken: it may go on
        self.over = False  # nothing more comes of it


class _News(NamedTuple):
    lane: _Lane
    events: Sequence[Event] | None  # None: it has ended
    error: DrivetrainError | None = None


class _Race:
    """Attempts side by side, each read by a task of its own, and no further than it was asked for. `end` it in a
    `finally`: nobody runs on then."""

    def __init__(self) -> None:
        self._tasks: dict[_Lane, asyncio.Task[None]] = {}
        self._left: set[_Lane] = set()  # their end has not been told
        self._winner: _Lane | None = None
        self._news: asyncio.Queue[_News] = asyncio.Queue()  # one of each lane at most
        self._waiting: _Lane | None = None  # whose news was the last

    @property
    def lanes(self) -> Sequence[_Lane]:
        return list(self._tasks)

    def start(self, batches: Batches, meter: Meter) -> _Lane:
        lane = _Lane(meter)
        self._left.add(lane)
        self._tasks[lane] = asyncio.get_running_loop().create_task(self._read(lane, batches))
        return lane

    async def _read(self, lane: _Lane, batches: Batches) -> None:
        last = _News(lane, None)
        task = asyncio.current_task()
        try:
            async with aclosing(batches):
                async for events in batches:
                    self._news.put_nowait(_News(lane, events))
                    await lane.more.wait()
                    lane.more.clear()
        except DrivetrainError as error:
            last = _News(lane, None, error)
        finally:
            lane.over = True
            if task is not None and not task.cancelling():  # else nobody listens any more
                self._news.put_nowait(last)

    async def news(self, until_s: float | None) -> _News | None:
        """What happens next; None if nothing does until this time of the loop. That one failed is no news while others
        run."""
        try:
            async with asyncio.timeout_at(until_s):
                while True:
                    self._go_on()
                    news = await self._news.get()
                    self._waiting = news.lane
                    if news.events is None:
                        self._left.discard(news.lane)
                    if self._winner not in (None, news.lane):
                        continue
                    if news.error is None or self._winner or not self._left:
                        return news
        except TimeoutError:
            return None

    def _go_on(self) -> None:
        if self._waiting is not None:
            self._waiting.more.set()
            self._waiting = None

    def won(self, winner: _Lane, visit: Visit) -> None:
        """The others have lost, and are not heard of any more."""
        self._winner = winner
        for lane, task in self._tasks.items():
            if lane is not winner and not lane.over:
                lane.meter.lost = True
                visit.running -= 1
                task.cancel()

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for ended in await asyncio.gather(*self._tasks.values(), return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended  # a defect of ours


class Hedges:
    """Owns what is known of the models' times, and how many second engines were asked of late."""

    def __init__(self, attempts: Attempts, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempts = attempts
        self._budget = Retries(clock)
        self._times: dict[str, Times] = {}

    def watches(self, visit: Visit) -> bool:
        """Whether a second engine may be asked for this request: only beside its first attempt."""
        return bool(visit.leg.entry.policy.hedge.percent) and visit.attempts == 1 and not visit.call.alone

    def times(self, model: str) -> Times:
        if (known := self._times.get(model)) is None:
            known = self._times[model] = Times()
        return known

    async def generate(self, request: Request, visit: Visit, meter: Meter) -> Batches:
        """As `Attempts.generate`, from whoever begins first. Raises the error of the attempt that failed last."""
        leg, race = visit.leg, _Race()
        name, rule = leg.entry.name, leg.entry.policy.hedge
        self._budget.asked(name)
        first = race.start(self._attempts.generate(request, visit, leg, meter), meter)
        due_s: float | None = asyncio.get_running_loop().time() + self.times(name).slow_s(rule)
        winner: _Lane | None = None
        try:
            while True:
                news = await race.news(due_s if winner is None else None)
                if news is None:
                    due_s = None
                    await self._second(request, visit, leg, race, first)
                    continue
                lane = news.lane
                if news.error is not None:
                    raise news.error
                if news.events is None:
                    return
                if winner is None and lane.meter.first_token_s is not None:
                    winner = lane
                    race.won(lane, visit)
                    tell(visit, lane.meter)
                if lane is (winner or first):
                    yield news.events
        finally:
            await race.end()
            self._learn(name, race)

    async def _second(self, request: Request, visit: Visit, asked: Leg, race: _Race, first: _Lane) -> None:
        entry, waits_s = asked.entry, time.perf_counter() - first.meter.began
        share = Rule(budget_percent=entry.policy.hedge.percent, least=0)
        if visit.receipt.left or not self._budget.left(entry.name, share):
            return
        leg = await visit.beside()
        if leg is None or first.over or first.meter.first_token_s is not None:
            return
        meter = visit.join(leg)
        self._budget.take(entry.name, share)
        why = f"beside {first.meter.candidate.engine}, which gave nothing in {waits_s:.3g} s"
        meter.candidate = replace(meter.candidate, why=why)
        race.start(self._attempts.generate(request, visit, leg, meter), meter)

    def _learn(self, model: str, race: _Race) -> None:
        """Of one that lost is known only that it takes longer."""
        times = self.times(model)
        for lane in race.lanes:
            if (first_s := lane.meter.first_token_s) is not None:
                times.add(first_s)
            elif lane.meter.lost:
                times.add(time.perf_counter() - lane.meter.began)
