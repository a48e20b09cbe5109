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


async def test_rules_that_come_together_again_count_at_the_counters_in_force(anyio_backend: str) -> None:
    """Which the quota remembers by the rules' tuple: others come, and the counters of those that rested are dropped."""
    clock = Clock()
    quota = MemoryQuota(clock=clock)
    together = (rule("tokens", 10), rule("concurrency", 1))
    quota.settle(await held(quota, together, Demand(tokens=8)), Demand(tokens=8))
    clock.turn(3600)
    for number in range(2 * SWEEP_COUNTERS):
        quota.settle(await held(quota, (rule(name=f"minute {number}"),)), Demand())
    hold = await held(quota, together, Demand(tokens=9))
    assert await used(quota, together[0]) == 9
    await refused(quota, together, Demand(tokens=1))
    await refused(quota, [together[1]], Demand())
    quota.settle(hold, Demand(tokens=4))
    assert (await used(quota, together[0]), await used(quota, together[1])) == (4, 0)


async def test_a_rule_that_was_changed_counts_anew_for_everybody(anyio_backend: str) -> None:
    quota = MemoryQuota()
    by_minute, by_day = (rule(name="r", amount=2),), (rule(name="r", amount=2, per="day"),)
    await held(quota, by_minute)
    await held(quota, by_day)
    await held(quota, by_day)
    await refused(quota, by_day, Demand())
    assert await used(quota, by_day[0]) == 2
