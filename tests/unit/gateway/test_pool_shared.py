"""Replicas tell each other how engines are: each is probed once for all, and who sets one aside warns the rest."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Engine
from drivetrain.gateway import hearsay, pool
from drivetrain.gateway.hearsay import Hearsay, subject
from drivetrain.gateway.member import Member
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.pool import Pool
from drivetrain.quota.board import Board
from drivetrain.router import Candidate
from drivetrain.types import Notice
from tests.fakes import FakeUpstream, Raw, Whole
from tests.fakes.engine import NoHost
from tests.fakes.manners import MODEL

pytestmark = pytest.mark.anyio


class Replica(Pool):
    def __init__(self) -> None:
        self.told: list[Notice] = []
        super().__init__(NoHost(), self.told.append)

    @property
    def box(self) -> Member:
        return self.members["box"]


@asynccontextmanager
async def replicas(count: int, upstream: FakeUpstream, url: str) -> AsyncIterator[Sequence[Replica]]:
    """So many, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        made = [Replica() for _ in range(count)]
        tasks = []
        for replica in made:
            board = Board(url, deadline_s=0.5)
            replica.hearsay = Hearsay(board)
            replica.open({"box": Engine(kind="openai", url=upstream.url)}, Rules(failures=3, open_s=5.0))
            tasks += [group.create_task(board.run()), group.create_task(replica.run())]
        yield made
        for task in tasks:
            task.cancel()
        for replica in made:
            await replica.aclose()


def probes(upstream: FakeUpstream) -> int:
    return [received.path for received in upstream.requests].count("/health")


async def test_five_replicas_probe_an_engine_about_as_often_as_one(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROBE_S", 0.2)
    async with FakeUpstream() as upstream, replicas(5, upstream, redis_url) as five:
        async with asyncio.timeout(10):
            while probes(upstream) < 6:
                await asyncio.sleep(0.01)
        began_s = asyncio.get_running_loop().time()
        await upstream.wait(lambda: probes(upstream) >= 11, within_s=10)
        assert asyncio.get_running_loop().time() - began_s > 4 * 0.2  # five more, and not five for each
        assert [[model.id for model in replica.box.models] for replica in five] == [[MODEL]] * 5
        assert [[notice.name for notice in replica.told] for replica in five] == [["engine.up"]] * 5


async def test_all_hear_within_a_moment_that_an_engine_is_ill_and_that_it_is_back(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROBE_S", 0.2)
    monkeypatch.setattr(pool, "PROBE_DOWN_S", 0.1)
    async with FakeUpstream() as upstream, replicas(3, upstream, redis_url) as three:
        await upstream.wait(lambda: probes(upstream) >= 1)
        for answer, ready in ((Whole(status=503), False), (Whole(), True)):
            upstream.script("/health", answer)
            async with asyncio.timeout(5):
                while {replica.box.health.ready for replica in three} != {ready}:
                    await asyncio.sleep(0.01)


async def test_a_request_that_finds_an_engine_away_makes_one_replica_look_again_at_once(redis_url: str) -> None:
    async with FakeUpstream() as upstream, replicas(2, upstream, redis_url) as (one, _):
        async with asyncio.timeout(5):
            while not one.box.models:
                await asyncio.sleep(0.01)
        before = probes(upstream)
        one.box.lost("connection reset")
        await upstream.wait(lambda: probes(upstream) == before + 1)
        async with asyncio.timeout(5):
            while not one.box.health.ready:
                await asyncio.sleep(0.01)


async def test_a_probe_that_hangs_is_made_by_another_after_a_while(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearsay, "TURN_S", 0.1)
    async with FakeUpstream() as upstream:
        upstream.script("/health", Raw(then="stall"), Whole())
        async with replicas(2, upstream, redis_url) as both, asyncio.timeout(5):
            while not any(replica.box.models for replica in both):
                await asyncio.sleep(0.01)


def fail(member: Member) -> None:
    meter = Meter(Candidate(engine="box", model="m", why=""), 1)
    member.begins(meter)
    member.ends(meter, worked=False)


async def test_who_hears_that_another_has_set_an_engine_aside_needs_one_failure_to_do_so_too(redis_url: str) -> None:
    async with FakeUpstream() as upstream, replicas(3, upstream, redis_url) as (one, two, three):
        for replica in (one, two, three):
            replica.box.breaker.rules = Rules(failures=3, open_s=60.0)
        for _ in range(3):
            fail(one.box)
        assert one.box.standing().state == "open"
        assert [notice.name for notice in one.told if notice.name != "engine.up"] == ["engine.set_aside"]
        async with asyncio.timeout(10):
            while two.box.breaker.failures_left > 1:
                await asyncio.sleep(0.01)
        assert two.box.standing().state == "closed"
        fail(two.box)
        assert two.box.standing().state == "open"


async def test_without_the_place_where_they_meet_each_probes_by_itself() -> None:
    async with FakeUpstream() as upstream, replicas(2, upstream, "redis://127.0.0.1:1") as both:
        async with asyncio.timeout(10):
            while not all(replica.box.models for replica in both):
                await asyncio.sleep(0.01)
        assert probes(upstream) == 2


def test_an_engine_on_loopback_is_each_hosts_own_and_an_embedded_one_each_process_s() -> None:
    far, near, socket = (
        Engine(kind="vllm", url=url) for url in ("http://10.0.0.5:1", "http://127.0.0.1:1", "unix:/run/a")
    )
    names = [subject("box", far), subject("other", far), subject("box", near), subject("box", socket)]
    assert len({*names}) == 4
    assert all(name is not None and len(name) == 32 for name in names)
    assert subject("local", Engine(kind="llamacpp")) is None
