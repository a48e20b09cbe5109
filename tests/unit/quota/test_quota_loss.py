"""The shared state is slow, or gone: no request waits for it, each rule does as it says, and later all is counted."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Quota, Refusal
from drivetrain.quota.learning import Learning
from drivetrain.quota.redis import RedisQuota
from drivetrain.quota.spots import Spot
from drivetrain.quota.wire import Wire
from tests.services_redis import RedisServer
from tests.unit.quota.counting import (
    CENT,
    DOLLAR,
    PATIENT_S,
    Clock,
    Ledger,
    admitted,
    held,
    money,
    refused,
    rule,
    shared,
    tokens,
    until,
    used,
)
from tests.unit.quota.wirecut import Way, way_to

pytestmark = pytest.mark.anyio

DEADLINE_S = 0.1
FAR_BELOW_THE_DELAY_S = 1.0
DELAY_S = 2.0


@pytest.fixture
async def way(redis_server: RedisServer, redis_url: str) -> AsyncIterator[Way]:
    async with way_to(redis_server.port) as opened:
        yield opened


@pytest.fixture
async def quota(way: Way) -> AsyncIterator[RedisQuota]:
    """Connected over a way that can be cut."""
    async with shared(way.url, deadline_s=DEADLINE_S) as made:
        await until(lambda: connected(made))
        yield made


@pytest.fixture
async def observer(redis_url: str) -> AsyncIterator[RedisQuota]:
    """Another replica, whose way is never cut."""
    async with shared(redis_url) as made:
        yield made


async def connected(quota: RedisQuota) -> bool:
    await quota.spent([rule(name="any")])
    return not quota.away


def at_once(reservation: Coroutine[Any, Any, Hold | Refusal]) -> Hold | Refusal:
    """Its answer, which it has to have without any wait."""
    try:
        reservation.send(None)
    except StopIteration as done:
        answer: Hold | Refusal = done.value
        return answer
    reservation.close()
    raise AssertionError("it waited")


async def is_used(quota: Quota, one: Rule, amount: int) -> bool:
    return await used(quota, one) == amount


# --- slow -------------------------------------------------------------------------------------------------------------


async def test_nobody_waits_for_answers_that_take_seconds(way: Way, quota: RedisQuota) -> None:
    way.delay_s = DELAY_S
    limit = rule(amount=1000)
    async with asyncio.timeout(FAR_BELOW_THE_DELAY_S):
        first = await held(quota, [limit])
        rest = [await held(quota, [limit]) for _ in range(50)]
    assert first.degraded
    assert all(hold.degraded for hold in rest)
    for hold in (first, *rest):
        quota.settle(hold, Demand())


async def test_after_a_miss_requests_do_not_even_ask(way: Way, quota: RedisQuota) -> None:
    way.delay_s = DELAY_S
    await held(quota, [rule(amount=1000)])
    for _ in range(20):
        assert isinstance(at_once(quota.reserve([rule(amount=1000)], Demand())), Hold)


async def test_what_a_late_answer_set_aside_goes_back(way: Way, quota: RedisQuota, observer: RedisQuota) -> None:
    rules = [rule(amount=10), rule("tokens", 1000), rule("concurrency", 5), rule("money", DOLLAR, "day")]
    way.delay_s = 0.5
    hold = await held(quota, rules, Demand(tokens=100, micro_usd=CENT))
    assert hold.degraded
    assert await used(observer, rules[0]) == 1  # Redis did let it in, which nobody heard
    quota.settle(hold, Demand(tokens=70, micro_usd=7))
    way.delay_s = 0
    expected = {rules[0].id: 1, rules[1].id: 70, rules[2].id: 0, rules[3].id: 7}
    await until(lambda: _spent(observer, rules, expected))


async def test_it_is_asked_again_when_it_is_quick_again(way: Way, quota: RedisQuota) -> None:
    way.delay_s = DELAY_S
    assert (await held(quota, [rule()])).degraded
    way.delay_s = 0
    await until(lambda: not quota.away)
    assert not (await held(quota, [rule()])).degraded


# --- gone -------------------------------------------------------------------------------------------------------------


async def test_each_rule_does_as_it_says(way: Way, quota: RedisQuota) -> None:
    await way.cut()
    await until(lambda: quota.away)
    share = [rule(amount=2)]
    assert len(await admitted(quota, share, times=5)) == 2
    assert (await refused(quota, share)).degraded
    nothing = [rule(amount=2, name="open", on_loss="open")]
    assert len(await admitted(quota, nothing, times=5)) == 5
    closed = rule(amount=2, name="closed", on_loss="closed")
    assert await refused(quota, [*nothing, closed]) == Refusal(rule=closed, wait_s=None, degraded=True)
    soft = rule(amount=2, name="soft", on_loss="closed", hard=False)
    assert (await held(quota, [soft])).degraded


async def test_a_share_is_the_part_of_one_of_the_replicas_that_were_alive(redis_url: str, way: Way) -> None:
    async with shared(redis_url), shared(redis_url), shared(way.url, lease_s=0.3) as quota:
        await until(lambda: quota.replicas == 3)
        await way.cut()
        await until(lambda: quota.away)
        for amount, share in ((90, 30), (10, 3), (2, 1)):
            limit = rule(amount=amount, name=f"of {amount}")
            assert len(await admitted(quota, [limit], times=100)) == share
            assert (await refused(quota, [limit])).rule == limit


async def test_a_share_begins_with_what_is_known_to_be_used(way: Way, quota: RedisQuota) -> None:
    rules = [rule(amount=10), rule("tokens", 1000), rule("money", DOLLAR, "day"), rule("concurrency", 5)]
    holds = [await held(quota, rules, Demand(tokens=100, micro_usd=20 * CENT)) for _ in range(4)]
    await way.cut()
    await until(lambda: quota.away)
    assert len(await admitted(quota, rules[:1], times=20)) == 6
    assert len(await admitted(quota, rules[1:2], tokens(100), times=20)) == 6
    assert len(await admitted(quota, rules[2:3], money(20 * CENT), times=20)) == 1
    assert len(await admitted(quota, rules[3:], times=20)) == 1
    quota.settle(holds[0], Demand())
    assert len(await admitted(quota, rules[3:], times=20)) == 1


async def test_a_dearer_attempt_is_covered_by_the_share(way: Way, quota: RedisQuota) -> None:
    budget = rule("money", DOLLAR, "day")
    hold = await held(quota, [budget], money(CENT))
    await way.cut()
    await until(lambda: quota.away)
    more = await quota.extend(hold, 50 * CENT)
    assert isinstance(more, Hold)
    assert more.degraded
    assert isinstance(await quota.extend(more, 60 * CENT), Refusal)


# --- back -------------------------------------------------------------------------------------------------------------


async def _spent(quota: Quota, rules: list[Rule], expected: dict[str, int]) -> bool:
    return dict(await quota.spent(rules)) == expected


async def test_what_was_done_meanwhile_is_counted_when_it_is_back(
    way: Way, quota: RedisQuota, observer: RedisQuota
) -> None:
    rules = [rule(amount=100), rule("tokens", 10_000), rule("concurrency", 9), rule("money", DOLLAR, "day")]
    rules.append(rule("money", DOLLAR, "hour", rolling=True, name="hour"))
    demand = Demand(tokens=100, micro_usd=CENT)
    before = [await held(quota, rules, demand) for _ in range(2)]
    await way.cut()
    await until(lambda: quota.away)
    meanwhile = [await held(quota, rules, demand) for _ in range(3)]
    quota.settle(before[0], Demand(tokens=70, micro_usd=7))
    quota.settle(meanwhile[0], Demand(tokens=70, micro_usd=7))
    quota.settle(meanwhile[0], Demand(tokens=70, micro_usd=7))
    await way.open()
    await until(lambda: not quota.away)
    assert await observer.spent(rules) == {
        "requests:minute": 3,  # those that still run are counted when they end
        "tokens:minute": 70 + 100 + 70,
        "concurrency:minute": 3,
        "money:day": 3 * CENT + 14,
        "hour": 3 * CENT + 14,
    }
    for hold in (before[1], *meanwhile[1:]):
        quota.settle(hold, Demand(tokens=70, micro_usd=7))
    after = {"requests:minute": 5, "tokens:minute": 350, "concurrency:minute": 0, "money:day": 35, "hour": 35}
    await until(lambda: _spent(observer, rules, after))


async def test_a_server_that_forgot_everything_learns_it_again(tmp_path: Path) -> None:
    """What is held from whoever holds it, what was spent from the ledger."""
    ledger: list[tuple[float, int]] = []

    async def seed(asked: Rule, from_s: float, until_s: float) -> int:
        return sum(micro_usd for at_s, micro_usd in ledger if from_s <= at_s < until_s)

    slot, budget = rule("concurrency", 6), rule("money", DOLLAR, "month")
    server = RedisServer(tmp_path)
    server.start()
    try:
        async with shared(server.url, seed=seed, deadline_s=DEADLINE_S) as quota, shared(server.url) as other:
            await until(lambda: connected(quota))
            spent = await held(quota, [slot, budget], money(30 * CENT))
            running = await held(quota, [slot, budget], money(20 * CENT))
            quota.settle(spent, money(30 * CENT))
            ledger.append((spent.at_s, 30 * CENT))
            server.stop()
            await until(lambda: quota.away)
            lonely = await held(quota, [slot, budget], money(10 * CENT))
            quota.settle(lonely, money(10 * CENT))
            ledger.append((lonely.at_s, 10 * CENT))
            server.start()
            await until(lambda: not quota.away)
            await until(lambda: not other.away)
            assert await quota.spent([slot, budget]) == {slot.id: 1, budget.id: 60 * CENT}
            quota.settle(running, money(15 * CENT))
            ledger.append((running.at_s, 15 * CENT))
            await until(lambda: is_used(quota, budget, 55 * CENT))
            assert await used(quota, slot) == 0
    finally:
        server.stop()


async def test_budgets_are_compared_with_the_ledger_when_it_is_back(way: Way, redis_url: str) -> None:
    """What a replica spent that never came back, the ledger has."""
    ledger: list[tuple[float, int]] = []

    async def seed(asked: Rule, from_s: float, until_s: float) -> int:
        return sum(micro_usd for at_s, micro_usd in ledger if from_s <= at_s < until_s)

    budgets = [rule("money", DOLLAR, "month"), rule("money", DOLLAR, "day", rolling=True, name="rolling")]
    async with shared(way.url, seed=seed, deadline_s=DEADLINE_S) as quota:
        await until(lambda: connected(quota))
        first = await held(quota, budgets, money(CENT))
        quota.settle(first, money(CENT))
        ledger.append((first.at_s, CENT))
        await way.cut()
        await until(lambda: quota.away)
        ledger.append((first.at_s, 40 * CENT))
        await way.open()
        await until(lambda: not quota.away)
        expected = {budget.id: 41 * CENT for budget in budgets}
        await until(lambda: _spent(quota, budgets, expected))


async def test_no_connection_at_the_start_is_a_loss_like_any_other(way: Way) -> None:
    await way.cut()
    async with shared(way.url, deadline_s=DEADLINE_S) as quota:
        assert (await held(quota, [rule()])).degraded
        await way.open()
        await until(lambda: not quota.away)
        assert await used(quota, rule()) == 0


async def test_a_budget_that_still_misses_its_past_is_not_told_of_it_twice(redis_url: str) -> None:
    """One process compares with the ledger before another, whose way to it is longer, has told what Redis forgot."""
    clock, budget = Clock(), rule("money", DOLLAR, "month")
    past = [(clock() - 1, 30 * CENT)]
    near, far = Ledger(*past), Ledger(*past)
    far.away = True
    async with shared(redis_url, clock, seed=far) as quota, connection(redis_url) as wire:
        quota.settle(await held(quota, [budget], money(CENT)), money(CENT))
        near.spent.append((clock(), CENT))
        comparing = Learning(wire, near, clock)
        spot = Spot("{drivetrain}", budget, clock())
        assert await comparing.heal([spot], clock() + 1)
        assert await used(quota, budget) == CENT
        far.away = False
        await until(lambda: is_used(quota, budget, 31 * CENT))
        near.spent.append((clock(), 9 * CENT))
        assert await comparing.heal([spot], clock() + 1)
        assert await used(quota, budget) == 40 * CENT


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Wire]:
    wire = Wire(url, PATIENT_S)
    connected = asyncio.Event()

    async def keep() -> None:
        connected.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(wire.run(keep, lambda: None))
    try:
        await connected.wait()
        yield wire
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
