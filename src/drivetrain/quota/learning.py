"""What the ledger knows of the budgets in Redis: what was spent before a counter was born, once; and, when Redis was
away, that no less was spent than the ledger has."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from drivetrain.errors import StoreAway
from drivetrain.quota.seeds import PATIENCE_S, Seed, past
from drivetrain.quota.spots import PURSE, Spot, encode
from drivetrain.quota.wire import Wire

Told = tuple[int, float, float, bool, Sequence[tuple[float, int]]]  # kind, a, b, once, parts

log = logging.getLogger("drivetrain.quota")


class Learning:
    """Owns the questions to the ledger that have no answer yet."""

    def __init__(self, wire: Wire, seed: Seed | None, stamp: Callable[[], float | bool]) -> None:
        self.seed = seed
        self._wire = wire
        self._stamp = stamp
        self._asking: dict[str, asyncio.Event] = {}  # by key: one asks, the others wait
        self._late: dict[str, tuple[Spot, float]] = {}  # and when they were born: nobody waits for these any more

    def awaited(self, spot: Spot) -> bool:
        """Whether a reservation has to wait until this budget has heard from the ledger."""
        return self.seed is not None and spot.kind >= PURSE and spot.keys[0] not in self._late

    async def learn(self, spot: Spot, born_s: float) -> None:
        """Return once it has, or it is clear that it cannot now. Raises `Away`."""
        key = spot.keys[0]
        if (asking := self._asking.get(key)) is not None:
            await asking.wait()
            return
        asking = self._asking[key] = asyncio.Event()
        try:
            await self._learn(spot, born_s)
        finally:
            del self._asking[key]
            asking.set()

    async def _learn(self, spot: Spot, born_s: float) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                parts = await self._parts(spot, born_s)
        except (StoreAway, TimeoutError):
            if spot.keys[0] not in self._late:
                log.warning("a budget of %s goes on without what the ledger has: it is away", spot.rule.owner)
            self._late[spot.keys[0]] = (spot, born_s)
            return False
        self._late.pop(spot.keys[0], None)
        await self._tell(spot, parts, once=True)
        return True

    async def retry(self, now_s: float) -> None:
        for key, (spot, born_s) in list(self._late.items()):
            if now_s >= spot.until_s:
                del self._late[key]
            elif not await self._learn(spot, born_s):
                return

    async def heal(self, spots: Iterable[Spot], now_s: float) -> bool:
        """Compare with the ledger: what was counted elsewhere while Redis was away, or was forgotten by it. False: the
        ledger is away."""
        for spot in [spot for spot in spots if spot.kind >= PURSE and now_s < spot.until_s]:
            try:
                await self._tell(spot, await self._parts(spot, now_s), once=False)
            except StoreAway:
                return False
        return True

    async def _parts(self, spot: Spot, until_s: float) -> Sequence[tuple[float, int]]:
        if self.seed is None:
            return []
        if spot.kind == PURSE:
            return [(spot.from_s, await self.seed(spot.rule, spot.from_s, until_s))]
        return await past(self.seed, spot.rule, until_s, spot.a)

    async def _tell(self, spot: Spot, parts: Sequence[tuple[float, int]], *, once: bool) -> None:
        told: Told = (spot.kind, spot.a, spot.b, once, parts)
        await self._wire.ask("seed", spot.keys[:1], encode((self._stamp(), [told])))
