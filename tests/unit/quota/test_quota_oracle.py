"""Any history of reservations and settlements, against a naive reckoning over the log of all of it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Quota
from drivetrain.quota.memory import MemoryQuota
from tests.services_redis import RedisServer
from tests.unit.quota.counting import Clock, rule, shared

pytestmark = pytest.mark.anyio

PERIOD_S = {"minute": 60, "hour": 3600, "day": 86_400}
BERLIN = ZoneInfo("Europe/Berlin")
RULES = (  # a tuple, as the gateway has it: who counts them may know it again
    rule("requests", 4),
    rule("requests", 7, "day"),
    rule("tokens", 100),
    rule("concurrency", 3),
    rule("money", 90, "day", zone="Europe/Berlin"),
    rule("money", 70, "hour", rolling=True, name="rolling"),
    rule("money", 30, "day", name="soft", hard=False),
)
_prefixes = count()


class Entry:
    """One request that was let in."""

    def __init__(self, at_s: float, demand: Demand) -> None:
        self.at_s = at_s
        self.reserved = demand
        self.spent: Demand | None = None

    @property
    def now(self) -> Demand:
        return self.reserved if self.spent is None else self.spent


class Oracle:
    def __init__(self) -> None:
        self.log: list[Entry] = []

    def used(self, one: Rule, now_s: float) -> int:
        if one.resource == "concurrency":
            return sum(entry.spent is None for entry in self.log)
        if one.resource == "requests":
            return sum(self._counts(entry, one, now_s) for entry in self.log)
        if one.resource == "tokens":
            return sum(entry.now.tokens for entry in self.log if self._counts(entry, one, now_s))
        if one.rolling:
            still = (entry for entry in self.log if entry.spent is None or self._counts(entry, one, now_s))
            return sum(entry.now.micro_usd for entry in still)
        today = _day(now_s, one)
        return sum(entry.now.micro_usd for entry in self.log if _day(entry.at_s, one) == today)

    def has_room(self, one: Rule, demand: Demand, now_s: float) -> bool:
        cost = {"tokens": demand.tokens, "money": demand.micro_usd}.get(one.resource, 1)
        used = self.used(one, now_s)
        return used + cost <= one.amount or (one.resource in ("tokens", "requests") and used == 0)

    def _counts(self, entry: Entry, one: Rule, now_s: float) -> bool:
        """Until its whole bucket, a sixtieth of the period, lies a period back."""
        width_s = PERIOD_S[one.per] / 60
        return entry.at_s // width_s >= now_s // width_s - 60

    def busiest(self, one: Rule) -> int:
        """The most requests that were let in within any period."""
        times = [entry.at_s for entry in self.log]
        return max((sum(start <= at < start + PERIOD_S[one.per] for at in times) for start in times), default=0)


def _day(at_s: float, one: Rule) -> object:
    zone = BERLIN if one.zone == "Europe/Berlin" else UTC
    return datetime.fromtimestamp(at_s, zone).date()


Step = tuple[str, float, int, int]
WAITS_S = [0.5, 1, 7, 20, 59.75, 61, 700, 3600, 40_000]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.just(0.0), st.integers(0, 120), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.sampled_from(WAITS_S), st.just(0), st.just(0)),
        st.tuples(st.just("settle"), st.floats(0, 0.999), st.integers(0, 150), st.integers(0, 80)),
        st.tuples(st.just("extend"), st.floats(0, 0.999), st.just(0), st.integers(0, 40)),
    ),
    max_size=30,
)  # fmt: skip


class History:
    def __init__(self, quota: Quota, clock: Clock) -> None:
        self.quota = quota
        self.clock = clock
        self.oracle = Oracle()
        self.live: list[tuple[Hold, Entry]] = []

    async def do(self, step: Step) -> None:
        kind, number, tokens, micro_usd = step
        demand = Demand(tokens=tokens, micro_usd=micro_usd)
        if kind == "wait":
            self.clock.turn(number)
        elif kind == "reserve":
            await self.reserve(demand)
        elif self.live and kind == "settle":
            hold, entry = self.live.pop(int(number * len(self.live)))
            self.quota.settle(hold, demand)
            entry.spent = demand
        elif self.live:
            await self.extend(int(number * len(self.live)), micro_usd)
        now_s = self.clock()
        assert dict(await self.quota.spent(RULES)) == {one.id: self.oracle.used(one, now_s) for one in RULES}

    async def reserve(self, demand: Demand) -> None:
        now_s, oracle = self.clock(), self.oracle
        full = [one for one in RULES if one.hard and not oracle.has_room(one, demand, now_s)]
        answer = await self.quota.reserve(RULES, demand)
        assert isinstance(answer, Hold) == (not full), answer
        if isinstance(answer, Hold):
            oracle.log.append(Entry(now_s, demand))
            self.live.append((answer, oracle.log[-1]))
            return
        assert answer.rule in full
        if answer.wait_s is not None:
            then_s = now_s + answer.wait_s
            assert not oracle.has_room(answer.rule, demand, then_s - 0.01)
            assert all(oracle.has_room(one, demand, then_s) for one in full if one.resource != "concurrency")

    async def extend(self, number: int, micro_usd: int) -> None:
        hold, entry = self.live[number]
        now_s, more = self.clock(), Demand(micro_usd=micro_usd)
        bound = [one for one in RULES if one.resource == "money" and one.hard]
        bound = [one for one in bound if one.rolling or _day(entry.at_s, one) == _day(now_s, one)]
        answer = await self.quota.extend(hold, micro_usd)
        assert isinstance(answer, Hold) == all(self.oracle.has_room(one, more, now_s) for one in bound), answer
        if isinstance(answer, Hold):
            entry.reserved = answer.demand
            self.live[number] = (answer, entry)


async def follow(quota: Quota, clock: Clock, steps: Sequence[Step]) -> None:
    history = History(quota, clock)
    for step in steps:
        await history.do(step)
    for one in RULES[:2]:
        assert history.oracle.busiest(one) <= one.amount


@asynccontextmanager
async def alone(clock: Clock) -> AsyncIterator[Quota]:
    yield MemoryQuota(clock=clock)


Opened = Callable[[Clock], AbstractAsyncContextManager[Quota]]
START = datetime(2026, 3, 28, 12, tzinfo=UTC)  # clocks are put forward the night after


@settings(max_examples=300)
@given(steps=STEPS, offset_s=st.integers(0, 86_400))
async def test_memory_counts_like_the_log(steps: Sequence[Step], offset_s: int) -> None:
    clock = Clock((START + timedelta(seconds=offset_s)).timestamp() + 0.25)
    async with alone(clock) as quota:
        await follow(quota, clock, steps)


@settings(max_examples=100)
@given(steps=STEPS, offset_s=st.integers(0, 86_400))
async def test_redis_counts_like_the_log(redis_server: RedisServer, steps: Sequence[Step], offset_s: int) -> None:
    clock = Clock((START + timedelta(seconds=offset_s)).timestamp() + 0.25)
    # Requests outlive any lease when the clock is turned by hours: `run` would have renewed it on the way.
    async with shared(redis_server.url, clock, prefix=f"o{next(_prefixes)}", lease_s=1e6) as quota:
        await follow(quota, clock, steps)
