"""What budgets had spent before they were counted here: the ledger knows, unless it is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from drivetrain.governance import Rule
from drivetrain.quota import Quota
from drivetrain.quota.memory import MemoryQuota
from tests.services import new_redis
from tests.unit.quota.counting import (
    CENT,
    DOLLAR,
    Clock,
    Ledger,
    held,
    money,
    refused,
    rule,
    running,
    shared,
    until,
    used,
    wait_of,
)

pytestmark = pytest.mark.anyio


Opened = Callable[[Ledger], AbstractAsyncContextManager[Quota]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
def opened(request: pytest.FixtureRequest, clock: Clock) -> Opened:
    """A new process with a quota that asks a ledger."""
    url = new_redis(request) if request.param == "redis" else None

    @asynccontextmanager
    async def start(ledger: Ledger) -> AsyncIterator[Quota]:
        if url is not None:
            async with shared(url, clock, seed=ledger) as quota:
                yield quota
            return
        alone = MemoryQuota(ledger, clock)
        async with running(alone):
            yield alone

    return start


async def test_a_budget_goes_on_where_the_ledger_says(opened: Opened, clock: Clock) -> None:
    budget, total = rule("money", DOLLAR, "day"), rule("money", 2 * DOLLAR, "total")
    ledger = Ledger((clock() - 3600, 60 * CENT), (clock() - 86_400, 90 * CENT))
    async with opened(ledger) as quota:
        await held(quota, [budget, total], money(40 * CENT))
        assert (await refused(quota, [budget], money(1))).rule == budget
        assert await quota.spent([budget, total]) == {budget.id: DOLLAR, total.id: 190 * CENT}


async def test_the_ledger_is_asked_once(opened: Opened, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "day")
    ledger = Ledger((clock() - 1, CENT))
    async with opened(ledger) as quota:
        await asyncio.gather(*(quota.reserve([budget, rule()], money(1)) for _ in range(20)))
        await quota.spent([budget])
        midnight_s = clock() // 86_400 * 86_400
        assert ledger.questions == [(budget.id, midnight_s, clock())]


async def test_a_rolling_budget_learns_when_it_was_spent(opened: Opened, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "hour", rolling=True)
    ledger = Ledger(
        (clock() - 3500, 30 * CENT), (clock() - 1800, 60 * CENT), (clock() - 4000, DOLLAR), (clock(), DOLLAR)
    )
    async with opened(ledger) as quota:
        assert await used(quota, budget) == 90 * CENT
        refusal = await refused(quota, [budget], money(40 * CENT))
        assert 100 <= wait_of(refusal) <= 160  # until what was spent 3500 s ago is an hour old, and its minute is over
        clock.turn(wait_of(refusal))
        await held(quota, [budget], money(40 * CENT))


async def test_an_idle_rolling_budget_costs_one_question(opened: Opened) -> None:
    ledger = Ledger()
    async with opened(ledger) as quota:
        await held(quota, [rule("money", DOLLAR, "month", rolling=True)], money(1))
        assert len(ledger.questions) == 1


async def test_without_the_ledger_it_goes_on_with_what_is_known_and_learns_later(opened: Opened, clock: Clock) -> None:
    budget = rule("money", DOLLAR, "day")
    ledger = Ledger((clock() - 3600, 60 * CENT))
    ledger.away = True
    async with opened(ledger) as quota:
        hold = await held(quota, [budget], money(90 * CENT))
        quota.settle(hold, money(10 * CENT))
        assert await used(quota, budget) == 10 * CENT
        clock.turn(5)
        ledger.spent.append((clock(), 10 * CENT))  # the row of the request above: not to be counted twice
        ledger.away = False
        await until(lambda: _is(quota, budget, 70 * CENT))
        await refused(quota, [budget], money(31 * CENT))


async def test_a_request_that_leaves_while_it_waits_for_the_ledger_sets_nothing_aside(opened: Opened) -> None:
    budget, slot = rule("money", DOLLAR, "day"), rule("concurrency", 1)
    ledger = Ledger()
    ledger.slow = asyncio.Event()
    async with opened(ledger) as quota:
        waiting = asyncio.create_task(quota.reserve([slot, budget], money(1)))
        await until(lambda: bool(ledger.questions))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ledger.slow.set()
        assert await quota.spent([slot, budget]) == {slot.id: 0, budget.id: 0}
        await held(quota, [slot, budget], money(1))


async def test_a_limit_never_asks_the_ledger(opened: Opened) -> None:
    ledger = Ledger()
    async with opened(ledger) as quota:
        await held(quota, [rule(), rule("tokens"), rule("concurrency")])
        assert ledger.questions == []


async def _is(quota: Quota, budget: Rule, micro_usd: int) -> bool:
    return await used(quota, budget) == micro_usd
