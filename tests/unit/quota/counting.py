"""What tests of quotas share: a clock to turn, short rules, and a quota of each kind at work."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from drivetrain.errors import StoreAway
from drivetrain.governance import OnLoss, Per, Resource, Rule
from drivetrain.quota import Demand, Hold, Quota, Refusal
from drivetrain.quota.leased import LeasedQuota
from drivetrain.quota.redis import RedisQuota
from drivetrain.quota.seeds import Seed

CENT = 10_000  # micro-dollars
DOLLAR = 100 * CENT
WATCH_S = 30.0
PATIENT_S = 30.0  # a deadline for tests that are not about it


class Clock:
    """Unix time, turned by hand. It starts on 15 January 2026 at noon, UTC, in the middle of a bucket of any width."""

    def __init__(self, now_s: float = 1_768_478_400.25) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def turn(self, seconds: float) -> None:
        self.now_s += seconds


class Ledger:
    """A log of instants and micro-dollars."""

    def __init__(self, *spent: tuple[float, int]) -> None:
        self.spent = list(spent)
        self.away = False
        self.slow: asyncio.Event | None = None
        self.questions: list[tuple[str, float, float]] = []

    async def __call__(self, asked: Rule, from_s: float, until_s: float) -> int:
        self.questions.append((asked.id, from_s, until_s))
        if self.slow is not None:
            await self.slow.wait()
        if self.away:
            raise StoreAway("the database is away")
        return sum(micro_usd for at_s, micro_usd in self.spent if from_s <= at_s < until_s)


def rule(
    resource: Resource = "requests",
    amount: int = 10,
    per: Per = "minute",
    *,
    name: str = "",
    rolling: bool = False,
    zone: str = "UTC",
    hard: bool = True,
    on_loss: OnLoss = "share",
) -> Rule:
    return Rule(
        id=name or f"{resource}:{per}",
        owner="key 'ci'",
        resource=resource,
        amount=amount,
        per="" if resource == "concurrency" else per,
        rolling=rolling,
        zone=zone,
        hard=hard,
        on_loss=on_loss,
    )


def tokens(number: int) -> Demand:
    return Demand(tokens=number)


def money(micro_usd: int) -> Demand:
    return Demand(micro_usd=micro_usd)


ONE = Demand()


async def held(quota: Quota, rules: Sequence[Rule], demand: Demand = ONE) -> Hold:
    answer = await quota.reserve(rules, demand)
    assert isinstance(answer, Hold), answer
    return answer


async def refused(quota: Quota, rules: Sequence[Rule], demand: Demand = ONE) -> Refusal:
    answer = await quota.reserve(rules, demand)
    assert isinstance(answer, Refusal), answer
    return answer


def wait_of(refusal: Refusal) -> float:
    assert refusal.wait_s is not None
    return refusal.wait_s


async def admitted(quota: Quota, rules: Sequence[Rule], demand: Demand = ONE, *, times: int) -> list[Hold]:
    """Of so many reservations at once, those that were let in."""
    answers = await asyncio.gather(*(quota.reserve(rules, demand) for _ in range(times)))
    return [answer for answer in answers if isinstance(answer, Hold)]


async def used(quota: Quota, one: Rule) -> int:
    return (await quota.spent([one]))[one.id]


async def nothing_is_used(quota: Quota, rules: Sequence[Rule]) -> bool:
    return not any((await quota.spent(rules)).values())


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Watch for what is to happen."""
    async with asyncio.timeout(WATCH_S):
        while True:
            seen = holds()
            if seen if isinstance(seen, bool) else await seen:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(quota: Quota) -> AsyncIterator[None]:
    task = asyncio.create_task(quota.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def shared(
    url: str,
    clock: Clock | None = None,
    *,
    deadline_s: float = PATIENT_S,
    lease_s: float = 30.0,
    seed: Seed | None = None,
    prefix: str = "drivetrain",
) -> AsyncIterator[RedisQuota]:
    quota = RedisQuota(url, deadline_s=deadline_s, lease_s=lease_s, seed=seed, clock=clock, prefix=prefix)
    async with running(quota):
        yield quota


@asynccontextmanager
async def leased(
    url: str,
    clock: Clock | None = None,
    *,
    percent: int = 10,
    deadline_s: float = PATIENT_S,
    lease_s: float = 30.0,
    seed: Seed | None = None,
    prefix: str = "drivetrain",
) -> AsyncIterator[LeasedQuota]:
    shares = math.ceil(100 / percent)
    exact = RedisQuota(
        url, deadline_s=deadline_s, lease_s=lease_s, seed=seed, clock=clock, prefix=prefix, shares=shares
    )
    quota = LeasedQuota(exact, percent=percent, clock=clock or time.monotonic)
    async with running(quota):
        yield quota
