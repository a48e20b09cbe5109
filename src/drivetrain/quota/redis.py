"""Counts limits and budgets together with other processes, in Redis or Valkey: exact while it answers, each process on
its own share while it does not.

What is held has a lease that `run` renews, so what a process leaves behind when it dies is free again. Nothing in Redis
has to survive: all of it has a TTL, and budgets are learned again from the ledger.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import anyio
import msgspec

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Refusal, Standing
from drivetrain.quota.fallback import Fallback
from drivetrain.quota.learning import Learning
from drivetrain.quota.memory import RETRY_S, longer
from drivetrain.quota.returns import Live, Return, Returns
from drivetrain.quota.seeds import Seed
from drivetrain.quota.spots import OTHER_WINDOW, RATE, REFUSED, TAKEN, UNSEEDED, Row, Spot, decode, encode
from drivetrain.quota.wire import Away, Call, Wire
from drivetrain.ulid import ulid

Mode = Literal["reserve", "extend", "look"]

AWAY_S = (0.05, 1.0)  # so long requests go straight to the fallback: first, and if it is lost again and again
STEADY_S = 10.0  # after so long the next loss is a first one
FAREWELL_S = 1.0  # for what is left to hand in at the end
HEAL_S = (1.0, 4.0, 25.0, 90.0, 480.0)  # after a return, and from then on, when budgets are compared with the ledger
TRIES = 4  # of one reservation: another window has begun, a budget has to be learned
REMEMBERED = 20_000  # rules, of which it is known where they are counted
RENEWED = 64  # requests whose leases are renewed in one call

log = logging.getLogger("drivetrain.quota")


class RedisQuota:
    """Owns what this process holds. Let `run` run; until it has connected, reservations wait as long as the deadline.

    The time is Redis's own, whatever the replicas' clocks say; with a `clock`, that one's.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 0.05,
        lease_s: float = 30.0,
        seed: Seed | None = None,
        clock: Callable[[], float] | None = None,
        prefix: str = "drivetrain",
        shares: int | None = None,
    ) -> None:
        """`shares`: into how many parts each amount is divided while Redis is away; None: as many as there are
        processes."""
        self.replicas = 1  # processes that count here, when last heard of
        self._deadline_s = deadline_s
        self._lease_s = lease_s
        self._clock = clock
        self._ahead_s = 0.0  # of our clock is Redis's
        self._shares = shares
        self._tag = f"{{{prefix}}}"
        self._wire = Wire(url, deadline_s)
        self._learning = Learning(self._wire, seed, self._stamp)
        self._returns = Returns(self._wire, self._stamp, self._lose)
        self._flushing = False
        self._spots: dict[str, Spot] = {}  # by the rule's id
        self._used: dict[str, int] = {}  # of each rule, when last heard of
        self._live: dict[str, Live] = {}  # by the hold's id
        self._name = ulid()
        self._count = 0
        self._fallback: Fallback | None = None  # while Redis is away
        self._lost = asyncio.Event()
        self._away_s = AWAY_S[0]
        self._back_at = 0.0  # by the event loop's time
        self._heal_at = math.inf  # by the event loop's time
        self._heal_in: list[float] = []  # seconds from each to the next

    @property
    def away(self) -> bool:
        """Whether each process counts its own share now."""
        return self._fallback is not None

    async def reserve(self, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        self._count += 1
        name = f"{self._name}.{self._count}"
        if self._fallback is not None:
            return await self._alone(self._fallback, name, rules, demand)
        try:
            return await self._together(name, rules, demand)
        except Away:
            return await self._alone(self._lose(), name, rules, demand)

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        live = self._live[hold.id]
        refusal = await self._cover(live, micro_usd)
        if refusal is not None:
            return refusal
        return hold.with_more(micro_usd, degraded=self._fallback is not None)

    def settle(self, hold: Hold, spent: Demand) -> None:
        live = self._live.pop(hold.id, None)
        if live is None:
            return
        for number, (fallback, local) in enumerate(live.local):
            fallback.settle(local, spent if number == 0 else Demand())
        self._hand_in(Return(live, live.lines(spent, self._learning.seed is not None)))

    def refund(self, hold: Hold, amount: int) -> None:
        """Of what a hold of one rate took, so much was not needed; the rest is still held."""
        live = self._live.get(hold.id)
        if live is not None and live.counted:
            live.costs[0] -= amount
            spot = live.spots[0]
            self._hand_in(Return(live, iter([(spot, (RATE, 0, -amount, False, spot.a, 0))])))

    def room(self, rule: Rule) -> int:
        """What was left of it when last heard of."""
        return rule.amount - self._used.get(rule.id, 0)

    async def spent(self, rules: Sequence[Rule]) -> Mapping[str, int]:
        if self._fallback is None:
            try:
                _, _, rows = await self._ask("look", "", rules, Demand())
                return {rule.id: row[1] for rule, row in zip(rules, rows, strict=True)}
            except Away:
                self._lose()
        return {rule.id: self._used.get(rule.id, 0) for rule in rules}

    # --- reservations -------------------------------------------------------------------------------------------------

    async def _together(self, name: str, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        live, status, rows = await self._ask("reserve", name, rules, demand)
        if status == REFUSED:
            return _refusal(rules, rows)
        live.held = demand.micro_usd
        self._live[name] = live
        return Hold(id=name, rules=rules, demand=demand, at_s=live.at_s, standings=_standings(rules, rows))

    async def _alone(self, fallback: Fallback, name: str, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        answer = await fallback.reserve(rules, demand)
        if isinstance(answer, Refusal):
            return answer
        live = self._at(name, rules, demand)
        live.counted = False
        live.local.append((fallback, answer))
        self._live[name] = live
        return Hold(id=name, rules=rules, demand=demand, at_s=live.at_s, standings=answer.standings, degraded=True)

    async def _cover(self, live: Live, micro_usd: int) -> Refusal | None:
        """Set aside more money for a request that is inside."""
        fallback = self._fallback
        if fallback is None:
            try:
                return await self._cover_together(live, micro_usd)
            except Away:
                fallback = self._lose()
        answer = await fallback.cover(live.rules, micro_usd)
        if isinstance(answer, Refusal):
            return answer
        live.local.append((fallback, answer))
        live.micro_usd += micro_usd
        return None

    async def _cover_together(self, live: Live, micro_usd: int) -> Refusal | None:
        part = live.money(micro_usd)
        if not part.spots:
            return None
        live.growing = True
        try:
            status, rows = await self._call("extend", part, live.held, partial(self._covered_late, live, micro_usd))
        finally:
            live.growing = False
        if status == REFUSED:
            return _refusal(part.rules, rows)
        live.held += micro_usd
        live.micro_usd += micro_usd
        return None

    async def _ask(
        self, mode: Mode, name: str, rules: Sequence[Rule], demand: Demand
    ) -> tuple[Live, int, Sequence[Row]]:
        """Raises `Away`."""
        for _ in range(TRIES):
            live = self._at(name, rules, demand)
            late = partial(self._reserved_late, live) if mode == "reserve" else None
            status, rows = await self._call(mode, live, 0, late)
            if status == UNSEEDED:
                for spot, (_, _, born_s) in zip(live.spots, rows, strict=True):
                    if born_s:
                        await self._learning.learn(spot, born_s)
            elif status != OTHER_WINDOW:
                self._remember(rules, rows)
                return live, status, rows
        raise Away("the shared state has another time")

    async def _call(
        self, mode: Mode, live: Live, had: int, late: Callable[[bytes], None] | None
    ) -> tuple[int, Sequence[Row]]:
        """Run the script that reserves. Raises `Away`."""
        if self._flushing:
            self._flush()  # what was settled before counts before
        learning = self._learning
        told = [
            (spot.kind, rule.amount, cost, rule.hard, learning.awaited(spot), spot.a, spot.b)
            for spot, rule, cost in zip(live.spots, live.rules, live.costs, strict=True)
        ]
        keys = [key for spot in live.spots for key in spot.keys]
        argument = encode((self._stamp(), live.id, self._lease_s, mode, had, told))
        live.at_s, status, rows = decode(await self._wire.ask("reserve", keys, argument, late))
        if self._clock is None:
            self._ahead_s = live.at_s - time.time()
        return status, rows

    def _reserved_late(self, live: Live, answer: bytes) -> None:
        """Nobody waits any more: what was set aside goes back."""
        live.at_s, status, _ = decode(answer)
        if status == TAKEN:
            self._hand_in(Return(live, live.undone()))

    def _covered_late(self, live: Live, micro_usd: int, answer: bytes) -> None:
        """It has more than it asked for in the end; its settlement has to name all of it."""
        _, status, _ = decode(answer)
        if status == TAKEN:
            live.held += micro_usd
            if live.id not in self._live:
                self._hand_in(Return(live, live.money(live.held).undone()))

    def _at(self, name: str, rules: Sequence[Rule], demand: Demand) -> Live:
        now_s = self.now_s()
        live = Live(name, rules, [self._spot(rule, now_s) for rule in rules], demand)
        live.at_s = now_s
        return live

    def _spot(self, rule: Rule, now_s: float) -> Spot:
        spot = self._spots.get(rule.id)
        if spot is None or not spot.fits(rule, now_s):
            if len(self._spots) >= REMEMBERED:
                self._spots.clear()
                self._used.clear()
            spot = self._spots[rule.id] = Spot(self._tag, rule, now_s)
        return spot

    def _remember(self, rules: Sequence[Rule], rows: Sequence[Row]) -> None:
        for rule, (_, used, _) in zip(rules, rows, strict=True):
            self._used[rule.id] = used

    def now_s(self) -> float:
        """Unix time, as Redis has it."""
        return self._clock() if self._clock is not None else time.time() + self._ahead_s

    def _stamp(self) -> float | bool:
        """What the scripts take for the time; False: Redis's own."""
        return self._clock() if self._clock is not None else False

    # --- what goes on beside ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._wire.run(self._keep, self._lose))
                tasks.create_task(self._look_after_budgets())
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(FAREWELL_S):
                await self._wire.last([*self._returns.calls(), self._beat(0.0)])

    async def _keep(self) -> None:
        """Along with each connection: say that we live, renew what is held, notice when Redis is back."""
        while True:
            try:
                await self._refresh()
            except Away:
                self._lose()
                self._away_s = min(2 * self._away_s, AWAY_S[1])
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._lease_s / 3):
                        await self._lost.wait()
            if self._fallback is not None:
                await asyncio.sleep(self._away_s)

    async def _refresh(self) -> None:
        """Raises `Away`."""
        _, self.replicas = msgspec.msgpack.decode(
            await self._wire.answered(self._beat(self._lease_s)), type=tuple[float, int]
        )
        await self._renew()
        if self._fallback is None:
            return
        for call in self._returns.calls():
            await self._wire.answered(call)
        self._fallback = None
        self._lost.clear()
        self._back_at = asyncio.get_running_loop().time()
        self._heal_at, *self._heal_in = self._back_at + HEAL_S[0], *HEAL_S[1:]
        log.info("limits and budgets are counted together with other replicas again")

    def _beat(self, lease_s: float) -> Call:
        return Call("beat", (f"{self._tag}:alive",), encode((self._stamp(), self._name, lease_s)))

    async def _renew(self) -> None:
        """All that is held, also what Redis has never heard of, or has forgotten. Raises `Away`."""
        held = list(self._live.values())
        for start in range(0, len(held), RENEWED):
            spots: dict[str, tuple[Spot, list[tuple[str, int]]]] = {}
            for live in held[start : start + RENEWED]:
                if live.id not in self._live:
                    continue  # settled meanwhile
                if not live.counted and not live.held:
                    live.held = live.micro_usd
                for spot, micro_usd in live.leases():
                    spots.setdefault(spot.keys[0], (spot, []))[1].append((live.id, micro_usd))
            keys = [key for spot, _ in spots.values() for key in spot.keys]
            told = [(spot.kind, spot.a, spot.b, leases) for spot, leases in spots.values()]
            await self._wire.ask("renew", keys, encode((self._stamp(), self._lease_s, told)))

    async def _look_after_budgets(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            with suppress(Away):
                if self._fallback is not None:
                    await self._fallback.retry()
                else:
                    await self._learning.retry(self.now_s())
                    await self._heal()

    async def _heal(self) -> None:
        """Several times: the ledger may hear late of what was spent, here and elsewhere."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._heal_at and await self._learning.heal(list(self._spots.values()), self.now_s()):
            self._heal_at = now_s + self._heal_in.pop(0) if self._heal_in else math.inf

    def _lose(self) -> Fallback:
        """Go on without Redis."""
        if self._fallback is not None:
            return self._fallback
        steady = asyncio.get_running_loop().time() - self._back_at > STEADY_S
        self._away_s = AWAY_S[0] if steady else min(2 * self._away_s, AWAY_S[1])
        log.warning("the shared state is away: limits and budgets are counted on this process's share of them")
        fallback = self._fallback = Fallback(
            seed=self._learning.seed,
            clock=self.now_s,
            replicas=self._shares or self.replicas,
            used=dict(self._used),
            patience_s=self._wire.deadline_s,
        )
        for live in self._live.values():
            if (adopted := fallback.adopt(live.rules)) is not None:
                live.local.append((fallback, adopted))
        self._lost.set()
        return fallback

    def _hand_in(self, back: Return) -> None:
        self._returns.add(back)
        if self._fallback is None and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._fallback is None:
            self._returns.flush()


def _refusal(rules: Sequence[Rule], rows: Sequence[Row]) -> Refusal:
    refusal = None
    for rule, (wait_s, _, _) in zip(rules, rows, strict=True):
        if wait_s and rule.hard:
            refusal = longer(refusal, Refusal(rule=rule, wait_s=None if wait_s < 0 else wait_s))
    if refusal is None:
        raise RuntimeError("the shared state refused, and no rule did")
    return refusal


def _standings(rules: Sequence[Rule], rows: Sequence[Row]) -> Sequence[Standing]:
    return [
        Standing(rule=rule, remaining=rule.amount - used, reset_s=reset_s)
        for rule, (_, used, reset_s) in zip(rules, rows, strict=True)
        if rule.resource in ("requests", "tokens")
    ]
