"""What only the quota in memory keeps to."""

import pytest

from drivetrain.quota import Demand, Hold
from drivetrain.quota.memory import SWEEP_COUNTERS, MemoryQuota
from tests.unit.quota.counting import DOLLAR, Clock, held, money, refused, rule, used

pytestmark = pytest.mark.anyio


async def test_a_reservation_never_waits(anyio_backend: str) -> None:
    quota = MemoryQuota()
    rules = [rule(), rule("tokens"), rule("concurrency"), rule("money", DOLLAR, "month")]
    with pytest.raises(StopIteration) as done:
        quota.reserve(rules, Demand(tokens=1, micro_usd=1)).send(None)
    assert isinstance(done.value.value, Hold)


async def test_a_clock_that_is_put_back_stands_still(anyio_backend: str) -> None:
    clock = Clock()
    quota = MemoryQuota(clock=clock)
    limits = [rule(amount=2), rule("money", DOLLAR, "day")]
    quota.settle(await held(quota, limits, money(DOLLAR)), money(DOLLAR))
    clock.turn(-86_400)
    await refused(quota, limits, money(1))
    assert await quota.spent(limits) == {limits[0].id: 1, limits[1].id: DOLLAR}


async def test_counters_of_keys_that_nobody_uses_any_more_are_dropped(anyio_backend: str) -> None:
    clock = Clock()
    quota = MemoryQuota(clock=clock)
    kept = rule("money", DOLLAR, "total", name="kept")
    quota.settle(await held(quota, [kept], money(7)), money(7))
    for number in range(20 * SWEEP_COUNTERS):
        limits = [rule(name=f"minute {number}"), rule("concurrency", name=f"slots {number}")]
        quota.settle(await held(quota, limits), Demand())
        clock.turn(1)
    assert len(quota._counters) <= SWEEP_COUNTERS
    assert await used(quota, kept) == 7
