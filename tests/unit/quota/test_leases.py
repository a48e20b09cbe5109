"""Limits that several processes count on batches taken ahead: nobody waits for what is at hand, and no more is let in
than the limit, but for what a process had at hand when its way to the others was cut."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Quota, Refusal
from drivetrain.quota.leased import LeasedQuota
from drivetrain.quota.redis import RedisQuota
from tests.services_redis import RedisServer
from tests.unit.quota.counting import (
    CENT,
    DOLLAR,
    ONE,
    Clock,
    admitted,
    held,
    leased,
    money,
    nothing_is_used,
    refused,
    rule,
    shared,
    tokens,
    until,
    used,
)
from tests.unit.quota.wirecut import way_to

pytestmark = pytest.mark.anyio

_prefixes = count()


@pytest.fixture
async def observer(redis_url: str) -> AsyncIterator[RedisQuota]:
    """Counts exactly, at the same Redis."""
    async with shared(redis_url) as made:
        yield made


@asynccontextmanager
async def several(url: str, number: int, **more: Any) -> AsyncIterator[Sequence[LeasedQuota]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(leased(url, **more)) for _ in range(number)]


def at_once(reservation: Coroutine[Any, Any, Hold | Refusal]) -> Hold | Refusal | None:
    """Its answer if it has one without any wait."""
    try:
        reservation.send(None)
    except StopIteration as done:
        answer: Hold | Refusal = done.value
        return answer
    reservation.close()
    return None


async def warm(quota: Quota, rules: list[Rule], demand: Demand = ONE, *, times: int = 60) -> list[Hold]:
    """Requests one after the other, as fast as they come."""
    holds = [await held(quota, rules, demand) for _ in range(times)]
    await asyncio.sleep(0.05)
    return holds


# --- nobody waits -----------------------------------------------------------------------------------------------------


async def test_what_is_at_hand_is_let_in_without_a_wait_however_far_the_shared_state_is(
    redis_server: RedisServer, redis_url: str
) -> None:
    rules = [rule(amount=1000), rule("tokens", 100_000), rule("concurrency", 400), rule("money", 10 * DOLLAR, "day")]
    demand = Demand(tokens=10, micro_usd=100)
    async with way_to(redis_server.port) as way, leased(way.url) as quota:
        for hold in await warm(quota, rules, demand):
            quota.settle(hold, demand)
        await asyncio.sleep(0.05)
        way.delay_s = 5.0
        for _ in range(20):
            answer = at_once(quota.reserve(rules, demand))
            assert isinstance(answer, Hold)
            assert not answer.degraded


async def test_a_thousand_requests_are_a_few_questions(redis_server: RedisServer, redis_url: str) -> None:
    limits = [rule(amount=100_000), rule("tokens", 10_000_000, "day")]
    async with leased(redis_url) as quota:
        await used(quota, limits[0])
        with redis_server.client() as client:
            client.config_resetstat()
            for _ in range(1000):
                quota.settle(await held(quota, limits, tokens(100)), tokens(80))
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] < 60


async def test_a_refusal_is_not_asked_for_again_and_again(redis_server: RedisServer, redis_url: str) -> None:
    limit = rule(amount=20)
    async with leased(redis_url, Clock()) as quota:
        await admitted(quota, [limit], times=20)
        first = await refused(quota, [limit])
        for _ in range(50):
            assert at_once(quota.reserve([limit], ONE)) == first


# --- no more than the limit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 4])
async def test_of_400_requests_of_several_processes_100_a_minute_are_let_in(redis_url: str, number: int) -> None:
    limit = rule(amount=100)
    async with several(redis_url, number) as quotas:
        holds = await asyncio.gather(*(admitted(quota, [limit], times=400 // number) for quota in quotas))
        assert 100 - 10 * number <= sum(map(len, holds)) <= 100  # what is at hand of one is not let in at another


async def test_of_400_requests_at_once_as_many_are_inside_as_there_are_slots(redis_url: str) -> None:
    limit = rule("concurrency", 50)
    async with several(redis_url, 2) as (one, other):
        holds = await asyncio.gather(*(admitted(quota, [limit], times=200) for quota in (one, other)))
        assert sum(map(len, holds)) == 50
        for hold in holds[0]:
            one.settle(hold, ONE)
        assert len(await admitted(other, [limit], times=50)) >= len(holds[0]) - 5  # but for what `one` keeps at hand


async def test_of_200_cents_at_once_a_budget_of_a_dollar_pays_100(redis_url: str) -> None:
    budget = rule("money", DOLLAR, "month")
    async with several(redis_url, 4) as quotas:
        holds = await asyncio.gather(*(admitted(quota, [budget], money(CENT), times=50) for quota in quotas))
        assert 60 <= sum(map(len, holds)) <= 100


async def test_it_counts_together_with_processes_that_ask_each_time(redis_url: str, observer: RedisQuota) -> None:
    limit = rule(amount=100)
    async with leased(redis_url) as quota:
        await admitted(quota, [limit], times=60)
        await until(lambda: not quota._asking)
        at_hand = 100 - 60 - len(await admitted(observer, [limit], times=100))
        assert 0 <= at_hand <= 10
        assert len(await admitted(quota, [limit], times=100)) == at_hand


async def test_no_more_than_a_part_is_at_hand_and_of_the_last_half(redis_url: str, observer: RedisQuota) -> None:
    limit = rule(amount=1000)
    async with leased(redis_url, percent=5) as quota:
        for taken in range(50, 1000, 50):
            await warm(quota, [limit], times=50)
            await until(lambda: not quota._asking)
            assert taken <= await used(observer, limit) <= taken + min(50, (1000 - taken + 1) // 2 + 1)


# --- processes that are lost ------------------------------------------------------------------------------------------


async def test_who_is_cut_off_lets_in_what_is_at_hand_and_a_lease_at_most(
    redis_server: RedisServer, redis_url: str
) -> None:
    limit = rule(amount=100)
    async with way_to(redis_server.port) as way, leased(way.url, deadline_s=0.2) as far, leased(redis_url) as near:
        before = len(await warm(far, [limit], times=20))
        await way.cut()
        after = len(await admitted(far, [limit], times=200))
        assert far.away
        here = len(await admitted(near, [limit], times=200))
        assert before + here <= 100
        assert 100 <= before + after + here <= 110


async def test_what_was_let_in_meanwhile_is_counted_when_the_way_is_open_again(
    redis_server: RedisServer, redis_url: str, observer: RedisQuota
) -> None:
    limits = [rule(amount=100), rule("tokens", 10_000), rule("money", DOLLAR, "day"), rule("concurrency", 100)]
    demand = Demand(tokens=10, micro_usd=CENT // 10)
    async with way_to(redis_server.port) as way, leased(way.url, deadline_s=0.2) as far:
        holds = await warm(far, limits, demand, times=20)
        await way.cut()
        holds += await admitted(far, limits, demand, times=30)
        for hold in holds:
            far.settle(hold, demand)
        await way.open()
        await until(lambda: not far.away)
        far.tidy()
        spent = await far.spent(limits)
        number = len(holds)
        assert number >= 25
        assert list(spent.values()) == [number, 10 * number, number * CENT // 10, 0]


async def test_slots_and_money_of_a_process_that_died_are_free_when_its_leases_end(
    redis_server: RedisServer, observer: RedisQuota
) -> None:
    rules = [rule("concurrency", 50), rule("money", DOLLAR, "day")]
    async with way_to(redis_server.port) as way, leased(way.url, lease_s=1.0) as dying:
        await warm(dying, rules, money(CENT), times=20)
        await way.cut()  # as others see it, it has died
        assert not await nothing_is_used(observer, rules)
        await until(lambda: nothing_is_used(observer, rules))


# --- what is not used goes back ---------------------------------------------------------------------------------------


async def test_what_nobody_uses_goes_back(redis_url: str, observer: RedisQuota) -> None:
    clock = Clock()
    rules = [rule(amount=100), rule("tokens", 10_000), rule("concurrency", 100), rule("money", DOLLAR, "day")]
    demand = Demand(tokens=10, micro_usd=100)
    async with leased(redis_url, clock) as quota, shared(redis_url, clock) as exact:
        for hold in await warm(quota, rules, demand, times=20):
            quota.settle(hold, demand)
        clock.turn(6)
        quota.tidy()
        await until(lambda: at_most(exact, rules[0], 21))
        await until(lambda: not quota._asking)
        late = at_once(quota.reserve(rules, demand))
        assert isinstance(late, Hold)  # as much as one request takes was kept
        quota.settle(late, demand)
        clock.turn(62)
        quota.tidy()
        await until(lambda: same(exact, rules, [0, 0, 0, 2100]))
        clock.turn(90)
        quota.tidy()
        assert quota._rations == {}


async def same(quota: Quota, rules: list[Rule], amounts: list[int]) -> bool:
    return list((await quota.spent(rules)).values()) == amounts


async def test_at_the_end_what_is_at_hand_is_handed_in(redis_url: str, observer: RedisQuota) -> None:
    rules = [rule(amount=100), rule("concurrency", 100), rule("money", DOLLAR, "day")]
    async with leased(redis_url) as leaving:
        for hold in await warm(leaving, rules, money(CENT), times=20):
            leaving.settle(hold, money(1))
    assert list((await observer.spent(rules)).values()) == [20, 0, 20]


async def test_an_estimate_that_was_too_high_goes_back_although_others_are_inside(redis_url: str) -> None:
    clock = Clock()
    limit = rule("tokens", 10_000)
    async with leased(redis_url, clock) as quota, shared(redis_url, clock) as exact:
        await held(quota, [limit], tokens(100))
        holds = await warm(quota, [limit], tokens(500), times=10)
        clock.turn(10)
        for hold in holds:
            quota.settle(hold, tokens(10))
        await until(lambda: at_most(exact, limit, 100 + 10 * 10 + 1000))


async def at_most(quota: Quota, limit: Rule, amount: int) -> bool:
    return await used(quota, limit) <= amount


async def test_a_budget_of_yesterday_is_not_used_today(redis_url: str) -> None:
    clock = Clock()
    budget = rule("money", DOLLAR, "day")
    async with leased(redis_url, clock) as quota, shared(redis_url, clock) as exact:
        await warm(quota, [budget], money(100), times=20)
        clock.turn(12 * 3600)
        quota.tidy()
        await held(quota, [budget], money(CENT))
        assert CENT <= await used(exact, budget) <= 11 * CENT


async def test_any_1000_aborts_leave_nothing_behind(redis_url: str, observer: RedisQuota) -> None:
    chance = random.Random(4)
    rules = [rule("concurrency", 7), rule("money", DOLLAR, "day"), rule("tokens", 10**9), rule(amount=10**9)]
    let_in = 0

    async def visit(quota: Quota) -> None:
        nonlocal let_in
        async with asyncio.timeout(chance.choice([0, 0.001, 0.004, 0.01, 10])):
            answer = await quota.reserve(rules, Demand(tokens=10, micro_usd=CENT))
            if isinstance(answer, Hold):
                let_in += 1
                try:
                    await asyncio.sleep(chance.choice([0, 0.001, 0.01]))
                finally:
                    quota.settle(answer, Demand(tokens=3, micro_usd=1))

    async with several(redis_url, 2) as quotas:
        for _ in range(20):
            visits = [asyncio.create_task(visit(chance.choice(quotas))) for _ in range(50)]
            await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
            for task in chance.sample(visits, 20):
                task.cancel()
            await asyncio.gather(*visits, return_exceptions=True)
    assert let_in > 20
    assert list((await observer.spent(rules)).values()) == [0, let_in, 3 * let_in, let_in]


# --- any history ------------------------------------------------------------------------------------------------------

LIMITS = [rule(amount=40), rule("tokens", 1000), rule("concurrency", 12), rule("money", 900, "hour", rolling=True)]
Step = tuple[str, int, float, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("burst"), st.integers(0, 2), st.integers(1, 15), st.integers(0, 60)),
        st.tuples(st.just("settle"), st.integers(0, 2), st.floats(0, 1), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([0.5, 2, 7, 31, 61]), st.just(0)),
        st.tuples(st.just("tidy"), st.integers(0, 2), st.just(0.0), st.just(0)),
    ),
    max_size=25,
)  # fmt: skip


class History:
    """What three processes did, and when."""

    def __init__(self, quotas: Sequence[LeasedQuota], clock: Clock) -> None:
        self.quotas = quotas
        self.clock = clock
        self.log: list[tuple[float, Demand]] = []
        self.live: list[list[tuple[Hold, int]]] = [[] for _ in quotas]  # and their places in the log

    async def do(self, step: Step) -> None:
        kind, who, number, amount = step
        if kind == "burst":
            demand = Demand(tokens=amount, micro_usd=amount)
            for hold in await admitted(self.quotas[who], LIMITS, demand, times=int(number)):
                self.live[who].append((hold, len(self.log)))
                self.log.append((self.clock(), demand))
        elif kind == "settle":
            for _ in range(round(number * len(self.live[who]))):
                hold, place = self.live[who].pop()
                spent = min(amount, hold.demand.tokens)
                self.quotas[who].settle(hold, Demand(tokens=spent, micro_usd=spent))
                self.log[place] = (self.log[place][0], Demand(tokens=spent, micro_usd=spent))
        elif kind == "wait":
            self.clock.turn(number)
        else:
            self.quotas[who].tidy()

    def check(self) -> None:
        """In no minute there was more than the limit and what may be at hand."""
        now_s = self.clock()
        minute = [demand for at_s, demand in self.log if at_s > now_s - 60]
        at_hand = len(self.quotas) * 10 / 100
        assert len(minute) <= 40 * (1 + at_hand)
        assert (
            sum(demand.tokens for demand in minute) <= 1000 * (1 + at_hand) + 60
        )  # one more may pass when none counts
        assert sum(map(len, self.live)) <= 12
        hour = [demand for at_s, demand in self.log if at_s > now_s - 3600]
        assert sum(demand.micro_usd for demand in hour) <= 900


@settings(max_examples=25)
@given(steps=STEPS)
async def test_no_history_lets_in_more_than_the_limit_and_the_leases(
    redis_server: RedisServer, steps: Sequence[Step]
) -> None:
    clock = Clock()
    prefix = f"leases{next(_prefixes)}"
    async with several(redis_server.url, 3, clock=clock, prefix=prefix, lease_s=1e6) as quotas:
        history = History(quotas, clock)
        for step in steps:
            await history.do(step)
            history.check()
    async with shared(redis_server.url, clock, prefix=prefix, lease_s=1e6) as exact:
        slots = LIMITS[2]
        inside = sum(map(len, history.live))
        assert await used(exact, slots) == inside
