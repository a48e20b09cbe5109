"""Several processes count together in Redis: exact over all of them, whatever becomes of any."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold
from drivetrain.quota.redis import RedisQuota
from tests.services_redis import RedisServer
from tests.unit.quota.counting import (
    CENT,
    DOLLAR,
    WATCH_S,
    admitted,
    held,
    money,
    nothing_is_used,
    refused,
    rule,
    running,
    shared,
    until,
    used,
)

pytestmark = pytest.mark.anyio
encode = msgspec.json.encode

# What another process does: reserve so often at once when told to, say how many were let in, and hold them.
REPLICA = """
import asyncio, sys
import msgspec
from drivetrain.governance import Rule
from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold
from drivetrain.quota.redis import RedisQuota

async def main(url, rules, micro_usd, times, lease_s):
    quota = RedisQuota(url, deadline_s=30.0, lease_s=lease_s)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(quota.run())
        await quota.spent(rules)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers = await asyncio.gather(*[quota.reserve(rules, Demand(micro_usd=micro_usd)) for _ in range(times)])
        print(sum(isinstance(answer, Hold) and not answer.degraded for answer in answers), flush=True)

rules = msgspec.json.decode(sys.argv[2], type=list[Rule])
asyncio.run(main(sys.argv[1], rules, int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
"""


class Replica:
    """Another process that counts at the same Redis."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(WATCH_S):
            return (await self._process.stdout.readline()).decode().strip()

    async def go(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return int(await self.line())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


@asynccontextmanager
async def replica(
    url: str, rules: bytes, *, times: int, micro_usd: int = 0, lease_s: float = 30.0
) -> AsyncIterator[Replica]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPLICA, url, rules, str(micro_usd), str(times), str(lease_s), stdin=pipe, stdout=pipe
    )
    try:
        started = Replica(process)
        assert await started.line() == "ready"
        yield started
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def quota(redis_url: str) -> AsyncIterator[RedisQuota]:
    async with shared(redis_url) as made:
        yield made


@asynccontextmanager
async def four(url: str, rules: bytes, *, micro_usd: int = 0, times: int = 100) -> AsyncIterator[list[Replica]]:
    async with AsyncExitStack() as stack:
        opened = [replica(url, rules, times=times, micro_usd=micro_usd) for _ in range(4)]
        yield list(await asyncio.gather(*(stack.enter_async_context(each) for each in opened)))


async def test_of_400_requests_of_four_processes_100_a_minute_are_let_in(redis_url: str, quota: RedisQuota) -> None:
    limit = rule(amount=100)
    async with four(redis_url, encode([limit])) as replicas:
        assert sum(await asyncio.gather(*(each.go() for each in replicas))) == 100
        assert await used(quota, limit) == 100


async def test_of_200_cents_at_once_a_budget_of_a_dollar_pays_100(redis_url: str, quota: RedisQuota) -> None:
    budget = rule("money", DOLLAR, "month")
    async with four(redis_url, encode([budget]), micro_usd=CENT, times=50) as replicas:
        assert sum(await asyncio.gather(*(each.go() for each in replicas))) == 100
        assert await used(quota, budget) == DOLLAR


async def test_what_a_killed_process_held_is_free_again_when_its_leases_end(redis_url: str, quota: RedisQuota) -> None:
    rules = [
        rule("concurrency", 50),
        rule("money", DOLLAR, "day"),
        rule("money", DOLLAR, "hour", rolling=True, name="h"),
    ]
    async with replica(redis_url, encode(rules), times=60, micro_usd=CENT, lease_s=1.0) as other:
        assert await other.go() == 50
        assert list((await quota.spent(rules)).values()) == [50, 50 * CENT, 50 * CENT]
        await refused(quota, rules, money(CENT))
        other.kill()
        await until(lambda: nothing_is_used(quota, rules))
        assert len(await admitted(quota, rules, money(CENT), times=60)) == 50


async def test_what_a_living_process_holds_outlives_its_lease(redis_url: str, quota: RedisQuota) -> None:
    rules = [rule("concurrency", 1), rule("money", DOLLAR, "day")]
    async with replica(redis_url, encode(rules), times=1, micro_usd=CENT, lease_s=0.3) as other:
        assert await other.go() == 1
        for _ in range(20):
            assert await quota.spent(rules) == {rules[0].id: 1, rules[1].id: CENT}
            await asyncio.sleep(0.05)


async def test_any_1000_aborts_leave_all_slots_free(quota: RedisQuota) -> None:
    chance = random.Random(4)
    rules = [rule("concurrency", 7), rule("money", DOLLAR, "day"), rule("tokens", 10**9), rule(amount=10**9)]

    async def visit() -> None:
        async with asyncio.timeout(chance.choice([0, 0.001, 0.004, 0.01, 10])):
            answer = await quota.reserve(rules, Demand(tokens=10, micro_usd=CENT))
            if isinstance(answer, Hold):
                try:
                    await asyncio.sleep(chance.choice([0, 0.001, 0.01]))
                    if chance.random() < 0.3:
                        raise ValueError("as a handler may")
                finally:
                    quota.settle(answer, Demand(tokens=3, micro_usd=1))

    for _ in range(20):
        visits = [asyncio.create_task(visit()) for _ in range(50)]
        await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
        for task in chance.sample(visits, 20):
            task.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
    await until(lambda: nothing_is_used(quota, rules[:1]))
    spent = await quota.spent(rules)
    let_in = spent["requests:minute"]
    assert spent == {
        "concurrency:minute": 0,
        "money:day": let_in,
        "tokens:minute": 3 * let_in,
        "requests:minute": let_in,
    }
    assert len(await admitted(quota, rules, times=50)) == 7


async def test_a_reservation_that_is_cancelled_while_it_waits_leaves_nothing(quota: RedisQuota) -> None:
    rules = [rule("concurrency", 1), rule(amount=1), rule("tokens", 10), rule("money", DOLLAR, "day")]
    rules.append(rule("money", DOLLAR, "hour", rolling=True, name="h"))
    await quota.spent(rules)
    for turns in range(8):
        task = asyncio.create_task(quota.reserve(rules, Demand(tokens=10, micro_usd=DOLLAR)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        answers = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answers[0], Hold):
            break
        await until(lambda: nothing_is_used(quota, rules))


async def test_a_script_that_the_server_forgot_is_sent_again(redis_server: RedisServer, quota: RedisQuota) -> None:
    limit = rule("concurrency", 1)
    hold = await held(quota, [limit])
    with redis_server.client() as client:
        client.script_flush()
    quota.settle(hold, Demand())
    await until(lambda: nothing_is_used(quota, [limit]))
    assert not quota.away


async def test_everything_in_redis_ends_by_itself(redis_server: RedisServer, quota: RedisQuota) -> None:
    rules = [rule("concurrency", 9), rule(amount=9), rule("tokens", 99), rule("money", DOLLAR, "total")]
    rules += [rule("money", DOLLAR, "month"), rule("money", DOLLAR, "day", rolling=True, name="r")]
    first = await held(quota, rules, Demand(tokens=10, micro_usd=CENT))
    await held(quota, rules, Demand(tokens=10, micro_usd=CENT))
    quota.settle(first, Demand(tokens=5, micro_usd=5))
    await quota.spent(rules)
    with redis_server.client() as client:
        ends = {key: client.ttl(key) for key in client.scan_iter("*")}
    assert len(ends) == 10  # a key for each rule, another for what is held of each budget, and who is alive
    assert all(0 < seconds <= 31 * 86_400 + 3600 for seconds in ends.values()), ends


async def test_all_keys_have_one_hash_tag_so_that_a_cluster_keeps_them_together(
    redis_server: RedisServer, quota: RedisQuota
) -> None:
    await held(quota, [rule("concurrency", 9), rule("money", DOLLAR, "month")], money(CENT))
    with redis_server.client() as client:
        assert all(key.startswith("{drivetrain}:") for key in client.scan_iter("*"))


async def test_replicas_are_known_while_they_live(redis_url: str, quota: RedisQuota) -> None:
    async with shared(redis_url, lease_s=0.3) as second, shared(redis_url, lease_s=0.3) as third:
        await until(lambda: second.replicas == 3 == third.replicas)
        assert quota.replicas <= 3
    async with shared(redis_url, lease_s=0.3) as fourth:
        await until(lambda: fourth.replicas == 2)


async def test_the_time_is_that_of_redis(redis_server: RedisServer, redis_url: str) -> None:
    """A replica with a clock of its own takes part as soon as it has heard the other's."""
    budget = rule("money", DOLLAR, "day")
    async with shared(redis_url) as one, shared(redis_url) as other:
        other._ahead_s = 40 * 86_400.0  # what it believes until it hears better
        quota_of = await held(one, [budget], money(CENT))
        await held(other, [budget], money(CENT))
        assert await used(one, budget) == 2 * CENT
        one.settle(quota_of, money(CENT))
        assert await used(other, budget) == 2 * CENT


async def test_at_the_end_what_was_settled_is_handed_in(redis_url: str, quota: RedisQuota) -> None:
    limits = [rule("concurrency", 1), rule("money", DOLLAR, "day")]
    leaving = RedisQuota(redis_url, deadline_s=30.0)
    async with running(leaving):
        hold = await held(leaving, limits, money(DOLLAR))
        leaving.settle(hold, money(CENT))
    assert await quota.spent(limits) == {limits[0].id: 0, limits[1].id: CENT}


async def test_a_cluster_tells_which_of_its_nodes_has_the_keys(tmp_path: Path) -> None:
    limit = rule(amount=1)
    with cluster(tmp_path, "{drivetrain}") as url_of_the_other_node:
        async with shared(url_of_the_other_node) as quota:
            await until(lambda: counts_together(quota, limit))
            await held(quota, [limit])
            await refused(quota, [limit])


async def counts_together(quota: RedisQuota, limit: Rule) -> bool:
    await quota.spent([limit])
    return not quota.away


@contextmanager
def cluster(folder: Path, key: str) -> Iterator[str]:
    """Two nodes, one of which has the slot of this key only; the address of the other."""
    names = [folder / "first", folder / "second"]
    for name in names:
        name.mkdir()
    nodes = [RedisServer(name, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no") for name in names]
    try:
        for node in nodes:
            node.start()
        with nodes[0].client() as first, nodes[1].client() as second:
            slot = int(first.execute_command("CLUSTER", "KEYSLOT", key))
            first.execute_command("CLUSTER", "ADDSLOTS", *(other for other in range(16_384) if other != slot))
            second.execute_command("CLUSTER", "ADDSLOTS", slot)
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
        yield nodes[0].url
    finally:
        for node in nodes:
            node.stop()
