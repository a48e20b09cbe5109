"""A budget begins anew exactly once for each window of its calendar, however many replicas count it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.governance import Per
from drivetrain.quota import Hold, Quota
from drivetrain.quota.memory import MemoryQuota
from tests.services_redis import RedisServer
from tests.unit.quota.counting import DOLLAR, Clock, held, money, rule, shared, used

pytestmark = pytest.mark.anyio

STEP_S = {"hour": 600, "day": 3_000, "week": 20_000, "month": 80_000}  # several in each window, none of them even
TURNS = [
    datetime(2026, 1, 31, 22, tzinfo=UTC),  # a month ends
    datetime(2028, 2, 28, 20, tzinfo=UTC),  # a leap day follows
    datetime(2027, 2, 28, 20, tzinfo=UTC),  # none does
    datetime(2026, 12, 31, 20, tzinfo=UTC),  # a year ends, within a week
    datetime(2026, 3, 28, 20, tzinfo=UTC),  # clocks go forward in Europe
    datetime(2026, 10, 24, 20, tzinfo=UTC),  # and back
    datetime(2026, 3, 8, 2, tzinfo=UTC),  # forward in America
    datetime(2026, 11, 1, 2, tzinfo=UTC),  # and back
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"]
_prefixes = count()


def window_of(per: str, zone: str, at_s: float) -> Any:
    """What tells one window from the next, as somebody who looks at a clock on the wall would say."""
    local = datetime.fromtimestamp(at_s, ZoneInfo(zone))
    if per == "hour":
        return local.date(), local.hour, local.utcoffset()
    return {"day": local.date(), "week": local.isocalendar()[:2], "month": (local.year, local.month)}[per]


@asynccontextmanager
async def replicas(url: str, clock: Clock) -> AsyncIterator[list[Quota]]:
    prefix = f"r{next(_prefixes)}"
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(shared(url, clock, prefix=prefix)) for _ in range(3)]


async def spent_all(quotas: list[Quota], clock: Clock, per: Per, zone: str, start: datetime) -> None:
    """Each step, each replica spends all that it can."""
    budget = rule("money", DOLLAR, per, zone=zone)
    clock.now_s = start.timestamp()
    windows, times = set(), 0
    for _ in range(30):
        for quota in quotas:
            answer = await quota.reserve([budget], money(DOLLAR))
            if isinstance(answer, Hold):
                quota.settle(answer, money(DOLLAR))
                times += 1
        windows.add(window_of(per, zone, clock()))
        assert times == len(windows)
        clock.turn(STEP_S[per])


cases = given(
    per=st.sampled_from(["hour", "day", "week", "month"]),
    zone=st.sampled_from(ZONES),
    turn=st.sampled_from(TURNS),
    before_s=st.integers(0, 90_000),
)


@settings(max_examples=200)
@cases
async def test_one_process_begins_anew_once_for_each_window(per: Per, zone: str, turn: datetime, before_s: int) -> None:
    clock = Clock()
    await spent_all([MemoryQuota(clock=clock)], clock, per, zone, turn - timedelta(seconds=before_s))


@settings(max_examples=25)
@cases
async def test_three_replicas_begin_anew_once_for_each_window(
    redis_server: RedisServer, per: Per, zone: str, turn: datetime, before_s: int
) -> None:
    clock = Clock()
    async with replicas(redis_server.url, clock) as quotas:
        await spent_all(quotas, clock, per, zone, turn - timedelta(seconds=before_s))


async def test_a_window_begins_at_the_instant_that_the_one_before_it_ends(redis_server: RedisServer) -> None:
    clock = Clock()
    midnight = datetime(2026, 4, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    budget = rule("money", DOLLAR, "month", zone="Europe/Berlin")
    async with replicas(redis_server.url, clock) as quotas:
        for offset_s, times in ((-1.0, 1), (-0.001, 0), (0.0, 1), (0.001, 0), (1.0, 0)):
            clock.now_s = midnight + offset_s
            answers = [await quota.reserve([budget], money(DOLLAR)) for quota in quotas]
            assert sum(isinstance(answer, Hold) for answer in answers) == times


async def test_what_runs_over_the_turn_is_booked_once_by_whichever_replica_settles(redis_server: RedisServer) -> None:
    clock = Clock(datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC).timestamp())
    budget = rule("money", DOLLAR, "month")
    async with replicas(redis_server.url, clock) as quotas:
        holds = [await held(quota, [budget], money(DOLLAR // 4)) for quota in quotas]
        clock.turn(2)
        for quota, hold in zip(quotas, holds, strict=True):
            assert await used(quota, budget) == 0
            quota.settle(hold, money(DOLLAR // 4))
        assert [await used(quota, budget) for quota in quotas] == [0, 0, 0]
        clock.turn(-2)
        assert [await used(quota, budget) for quota in quotas] == [DOLLAR // 4 * 3] * 3
