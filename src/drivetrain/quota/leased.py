"""Counts limits and budgets together with other processes, on batches that are taken from the shared state ahead of
time: a request waits for it only where what is at hand is used up.

What is at hand counts as used for all others. So no more is let in than the amount says, but for what a process still
had at hand when its way to the shared state was cut, and that is `percent` of the amount at most.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

import anyio

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Refusal
from drivetrain.quota.memory import longer
from drivetrain.quota.rations import Batch, Part, Ration
from drivetrain.quota.redis import FAREWELL_S, RedisQuota
from drivetrain.quota.seeds import Seed
from drivetrain.ulid import ulid

TEND_S = 1.0  # how often it is looked for batches that nobody uses
FAR_S = 1.0  # how long an answer of the shared state may take at least
FORGET_S = 90.0  # a rule that was not used for so long

Clock = Callable[[], float]
Drawn = list[tuple[Ration, Sequence[Part]]]


def opened(
    url: str, *, percent: int, deadline_s: float, lease_s: float, seed: Seed | None, clock: Clock | None = None
) -> "LeasedQuota":
    """On a shared state that may be far: nobody waits for it who has something at hand, so it may take its time. While
    it is away, a process's share of a rule is what it may have at hand at most."""
    exact = RedisQuota(
        url,
        deadline_s=max(deadline_s, FAR_S),
        lease_s=lease_s,
        seed=seed,
        clock=clock,
        shares=math.ceil(100 / percent),
    )
    return LeasedQuota(exact, percent=percent, clock=clock or time.monotonic)


class _Asking:
    """A question to the shared state that several may wait for."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.refused: tuple[int, Refusal] | None = None

    def refusal_of(self, cost: int) -> Refusal | None:
        return self.refused[1] if self.refused is not None and cost >= self.refused[0] else None


class LeasedQuota:
    """Owns what is at hand of each rule. Let `run` run; it runs `exact`, which owns what was taken for that."""

    def __init__(self, exact: RedisQuota, *, percent: int, clock: Clock = time.monotonic) -> None:
        self._exact = exact
        self._clock = clock
        self._percent = percent
        self._rations: dict[str, Ration] = {}  # by the rule's id
        self._asking: dict[str, _Asking] = {}  # by the rule's id: one asks, the others wait
        self._awaited: dict[str, int] = {}  # by the rule's id: how much
        self._live: dict[str, Drawn] = {}  # by the hold's id
        self._low: set[str] = set()  # ids of rules of which more is needed soon
        self._wake = asyncio.Event()
        self._name = ulid()
        self._numbers = itertools.count(1)

    @property
    def away(self) -> bool:
        """Whether this process counts for itself what is not at hand."""
        return self._exact.away

    async def reserve(self, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        now_s = self._clock()
        rations = [self._ration(rule, now_s) for rule in rules]
        drawn: Drawn = []
        short: list[Ration] = []
        for ration in rations:
            if ration.has(cost := ration.cost(demand)):
                drawn.append((ration, ration.draw(cost, now_s)))
                if ration.low:
                    self._need(ration)
            else:
                short.append(ration)
        if short:
            known = [found for each in short if (found := each.refusal(each.cost(demand), now_s)) is not None]
            if known:
                self._undo(drawn)
                return _longest(known)
            if (refusal := await self._wait_for(short, demand, drawn)) is not None:
                return refusal
        return self._hold(rules, rations, demand, drawn)

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        """Budgets whose window is over by now have it in the one that is."""
        now_s = self._clock()
        money = [self._ration(rule, now_s) for rule in hold.rules if rule.resource == "money"]
        drawn: Drawn = []
        if (refusal := await self._wait_for(money, Demand(micro_usd=micro_usd), drawn)) is not None:
            return refusal
        self._live[hold.id] += drawn
        return hold.with_more(micro_usd, degraded=_alone(drawn))

    def settle(self, hold: Hold, spent: Demand) -> None:
        drawn = self._live.pop(hold.id, None)
        if drawn is None:
            return
        now_s = self._clock()
        of: dict[int, tuple[Ration, list[Part]]] = {}
        for ration, parts in drawn:
            of.setdefault(id(ration), (ration, []))[1].extend(parts)
        for ration, parts in of.values():
            slot = ration.rule.resource == "concurrency"
            self._back(ration, parts, 0 if slot else ration.cost(spent), now_s)

    async def spent(self, rules: Sequence[Rule]) -> Mapping[str, int]:
        """What others have at hand counts as used."""
        used = await self._exact.spent(rules)
        at_hand = {rule_id: ration.unused for rule_id, ration in self._rations.items()}
        return {rule_id: max(0, amount - at_hand.get(rule_id, 0)) for rule_id, amount in used.items()}

    # --- what requests take -------------------------------------------------------------------------------------------

    def _hold(self, rules: Sequence[Rule], rations: Sequence[Ration], demand: Demand, drawn: Drawn) -> Hold:
        name = f"{self._name}.{next(self._numbers)}"
        self._live[name] = drawn
        now_s = self._clock()
        standings = [found for ration in rations if (found := ration.standing(now_s)) is not None]
        return Hold(
            id=name, rules=rules, demand=demand, at_s=self._exact.now_s(), standings=standings, degraded=_alone(drawn)
        )

    async def _wait_for(self, short: Sequence[Ration], demand: Demand, drawn: Drawn) -> Refusal | None:
        """Draw from these too, or give back everything."""
        refusals: list[Refusal] = []
        whole = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for ration in short:
                    tasks.create_task(self._draw(ration, ration.cost(demand), drawn, refusals))
            whole = not refusals
        finally:
            if not whole:
                self._undo(drawn)
        return _longest(refusals) if refusals else None

    def _undo(self, drawn: Drawn) -> None:
        for ration, parts in drawn:
            self._back(ration, parts, 0, self._clock())

    async def _draw(self, ration: Ration, cost: int, drawn: Drawn, refusals: list[Refusal]) -> None:
        rule_id = ration.rule.id
        self._awaited[rule_id] = self._awaited.get(rule_id, 0) + cost
        try:
            refusal = ration.refusal(cost, self._clock())
            while not ration.has(cost) and refusal is None:
                if (asking := self._asking.get(rule_id)) is None:
                    refusal = await self._ask(ration, cost)
                else:
                    await asking.over.wait()
                    refusal = asking.refusal_of(cost)
            if refusal is not None and not ration.has(cost):
                refusals.append(refusal)
                return
            drawn.append((ration, ration.draw(cost, self._clock())))
        finally:
            self._awaited[rule_id] = self._awaited.get(rule_id, 0) - cost
            if self._awaited[rule_id] <= 0:
                del self._awaited[rule_id]

    def _back(self, ration: Ration, parts: Sequence[Part], spent: int, now_s: float) -> None:
        """A request is over; what is over with it is handed in."""
        self._refund(ration, ration.back(parts, spent, now_s))
        self._hand_in(ration, ration.finished())

    def _refund(self, ration: Ration, parts: Sequence[Part]) -> None:
        if ration.rate:
            for batch, amount in parts:
                self._exact.refund(batch.hold, amount)

    def _hand_in(self, ration: Ration, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._exact.settle(batch.hold, ration.demand(batch.spent))

    def _ration(self, rule: Rule, now_s: float) -> Ration:
        found = self._rations.get(rule.id)
        if found is not None and found.rule is rule:
            return found
        if found is not None and found.fits(rule):
            found.bind(rule, self._percent)
            return found
        if found is not None:
            self._hand_in(found, found.spare())
        made = self._rations[rule.id] = Ration(rule, self._percent, now_s)
        return made

    # --- what is taken from the shared state --------------------------------------------------------------------------

    async def _ask(self, ration: Ration, need: int) -> Refusal | None:
        """Until so much more is at hand, and some ahead for others; a refusal if there is not so much."""
        with self._one_asks(ration) as asking:
            ration.ask(need, self._clock())
            refusal = None
            for size in self._sizes(ration, need):
                refusal = await self._take(ration, size)
                if refusal is None:
                    return None
            if ration.left:
                self._hand_in(ration, ration.spare())  # it may be what is missing
                refusal = await self._take(ration, need)
            if refusal is not None:
                asking.refused = (need, refusal)
                ration.refused(need, refusal, self._clock())
            return refusal

    async def _ask_ahead(self, ration: Ration) -> None:
        """So that nobody has to wait."""
        if ration.rule.id in self._asking or not ration.low or self._exact.away:
            return
        with self._one_asks(ration):
            ration.ask(0, self._clock())
            if (size := ration.wanted(0)) > 0:
                await self._take(ration, size)

    @contextmanager
    def _one_asks(self, ration: Ration) -> Iterator["_Asking"]:
        asking = self._asking[ration.rule.id] = _Asking()
        try:
            yield asking
        finally:
            del self._asking[ration.rule.id]
            asking.over.set()

    def _sizes(self, ration: Ration, need: int) -> Iterator[int]:
        """How much to ask for, and how much if that is refused."""
        if not self._exact.away:
            wanted = ration.wanted(max(need, self._awaited.get(ration.rule.id, 0)))
            if (size := min(wanted, ration.room) if ration.rule.hard else wanted) > need:
                yield size
        yield need

    async def _take(self, ration: Ration, size: int) -> Refusal | None:
        if ration.rule.resource != "concurrency":
            return await self._reserve(ration, size)
        refusals: list[Refusal] = []  # slots come back one by one, so they are taken one by one
        async with asyncio.TaskGroup() as tasks:
            for _ in range(size):
                tasks.create_task(self._take_slot(ration, refusals))
        return refusals[0] if len(refusals) == size else None

    async def _take_slot(self, ration: Ration, refusals: list[Refusal]) -> None:
        if (refusal := await self._reserve(ration, 1)) is not None:
            refusals.append(refusal)

    async def _reserve(self, ration: Ration, size: int) -> Refusal | None:
        answer = await self._exact.reserve([ration.rule], ration.demand(size))
        ration.room = 0 if self._exact.away else self._exact.room(ration.rule)
        if isinstance(answer, Refusal):
            return answer
        now_s = self._clock()
        ration.add(answer, size, now_s, now_s + ration.window_s(self._exact.now_s()))
        return None

    def _need(self, ration: Ration) -> None:
        if not self._exact.away and ration.rule.id not in self._asking:
            self._low.add(ration.rule.id)
            self._wake.set()

    # --- what goes on beside ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._exact.run())
            try:
                tasks.create_task(self._tend())
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    low, self._low = self._low, set()
                    for rule_id in low - self._asking.keys():
                        if (ration := self._rations.get(rule_id)) is not None:
                            tasks.create_task(self._ask_ahead(ration))
            finally:
                await self._farewell()

    async def _farewell(self) -> None:
        """Hand back what is at hand, before `exact` says goodbye; what was just asked for too."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(FAREWELL_S):
            for asking in list(self._asking.values()):
                await asking.over.wait()
        for ration in self._rations.values():
            self._hand_in(ration, ration.spare())

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            self.tidy()

    def tidy(self) -> None:
        """Hand back what nobody uses."""
        now_s = self._clock()
        for rule_id, ration in list(self._rations.items()):
            self._refund(ration, ration.over(now_s, alone=self._exact.away))
            self._hand_in(ration, ration.finished())
            if ration.low:
                self._need(ration)
            if not ration.batches and rule_id not in self._asking and now_s - ration.used_s >= FORGET_S:
                del self._rations[rule_id]


def _alone(drawn: Drawn) -> bool:
    return any(batch.hold.degraded for _, parts in drawn for batch, _ in parts)


def _longest(refusals: Sequence[Refusal]) -> Refusal:
    return reduce(longer, refusals)
