"""Two regions that are networks of their own, with a sea between them in which every packet takes its time, or is lost.

In each a server and an engine; what both share, PostgreSQL and Redis, is in the first.
"""

import asyncio
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from drivetrain.store import Store
from tests.e2e.balancer import balanced
from tests.e2e.servers import Server, serving
from tests.fakes.lands import Sea, sea, within
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.manners import openai_frames
from tests.fakes.replies import Stream
from tests.fakes.upstream import FakeUpstream
from tests.services import PostgresServer
from tests.services_redis import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHAT = "/v1/chat/completions"
EU, US = REGIONS = ("eu", "us")
FAR_S = 0.04  # from one region to the other
MOVED_S = 2.0  # after which nobody waits any more for a region that is lost
WITHIN_MS = {"x-drivetrain-timeout-ms": "2000"}  # what is not answered by then is an error
CONFIG = """
server: {{host: {host}, auth: "off", region: {here}}}
store: {{url: "{store}"}}
shared: {{url: "{shared}", mode: leased, lease_percent: 10}}
keys: {{pepper: "a pepper of both regions"}}
engines:
  eu: {{kind: openai, url: "{eu}", region: eu}}
  us: {{kind: openai, url: "{us}", region: us}}
models:
  chat: {{targets: [{{engine: eu, model: {fake}}}, {{engine: us, model: {fake}}}], policy: moving}}
  abroad: {{targets: [{{engine: eu, model: {fake}}}, {{engine: us, model: {fake}, tier: 1}}], policy: moving}}
  limited: {{targets: [{{engine: eu, model: {fake}}}, {{engine: us, model: {fake}}}], policy: limited}}
policies:
  moving: {{{moving}}}
  limited: {{{moving}, limits: {{requests_per_minute: 100}}}}
"""
MOVING = "timeouts: {connect_s: 0.5, first_token_s: 0.7}, retries: {least: 200}"
LIMIT, LEASE = 100, 10


class World:
    def __init__(self, around: Sea) -> None:
        self.sea = around
        self.servers: dict[str, Server] = {}
        self.engines: dict[str, FakeUpstream] = {}

    def url(self, region: str) -> str:
        return self.servers[region].url


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[World, None]:
    async with AsyncExitStack() as stack:
        made = World(stack.enter_context(sea(REGIONS, FAR_S)))
        store, shared = _shared(stack, made.sea.lands[EU].address)
        for region in REGIONS:
            with within(region):
                engine = FakeUpstream(host=made.sea.lands[region].address)
                made.engines[region] = await stack.enter_async_context(engine)
        urls = {region: engine.url for region, engine in made.engines.items()}
        for here in REGIONS:
            host = made.sea.lands[here].address
            text = CONFIG.format(host=host, here=here, store=store, shared=shared, fake=FAKE, moving=MOVING, **urls)
            with within(here):
                made.servers[here] = await stack.enter_async_context(serving(folder / here, text))
        yield made


def _shared(stack: AsyncExitStack, address: str) -> tuple[str, str]:
    """The URLs of a store and of a Redis in the first region."""
    folder = Path(tempfile.mkdtemp(prefix="drivetrain-regions-"))
    folder.chmod(0o755)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    (folder / "postgres").mkdir()
    postgres = PostgresServer(folder / "postgres", address)
    redis = RedisServer(folder, "--protected-mode", "no", host=address)
    with within(EU):
        for server in (postgres, redis):
            stack.callback(server.stop)
            server.start()
    postgres.execute("CREATE DATABASE shared")
    Store.open(postgres.url("shared"), folder).close()
    return postgres.url("shared"), redis.url


async def test_the_sea_is_as_wide_as_it_is_said_to_be() -> None:
    """What the other tests stand on: there and back takes its time, and of what is lost nothing arrives."""
    with sea(REGIONS, FAR_S) as around:
        with within(US):
            there = socket.create_server((around.lands[US].address, 0))
        with there, within(EU):
            began_s = time.monotonic()
            socket.create_connection(there.getsockname()).close()
            assert time.monotonic() - began_s >= 2 * FAR_S
            around.lost.add(US)
            with pytest.raises(TimeoutError):
                socket.create_connection(there.getsockname(), timeout=0.5)


class Caller:
    """Asks a server, and tells which engine answered."""

    def __init__(self, url: str, model: str = "chat") -> None:
        self._client = httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False)
        self._body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        self.failed: list[str] = []

    async def ask(self, headers: Any = None) -> str:
        answer = await self._client.post(CHAT, json=self._body, headers=headers)
        if answer.status_code != 200:
            self.failed.append(answer.text)
            return ""
        return str(answer.headers["x-drivetrain-engine"])

    async def ask_all(self, times: int) -> Counter[str]:
        """So many at once."""
        return Counter(await asyncio.gather(*(self.ask() for _ in range(times))))

    async def aclose(self) -> None:
        await self._client.aclose()


@asynccontextmanager
async def calling(url: str, model: str = "chat") -> AsyncGenerator[Caller, None]:
    caller = Caller(url, model)
    try:
        yield caller
    finally:
        await caller.aclose()


async def test_a_region_uses_its_own_engine_until_that_has_too_much_to_do_or_is_too_slow(tmp_path: Path) -> None:
    async with world(tmp_path) as made, calling(made.url(EU)) as caller:
        for engine in made.engines.values():
            engine.script(CHAT, _taking(0.2))
        assert [await caller.ask() for _ in range(10)] == [EU] * 10
        full = await caller.ask_all(80)
        assert full[EU] > 0
        assert full[US] > 0
        await _until(caller, EU)
        made.engines[EU].script(CHAT, _taking(2.0))
        await _until(caller, US)
        assert caller.failed == []


async def _until(caller: Caller, engine: str) -> None:
    async with asyncio.timeout(60):
        while await caller.ask() != engine:
            pass


def _taking(seconds: float) -> Stream:
    frames = openai_frames("chat.completion.chunk")
    return Stream(frames=frames, pause_s=seconds / len(frames))


@pytest.mark.parametrize("lost", REGIONS)
async def test_when_a_region_is_lost_callers_of_the_other_see_no_error_and_all_are_there_within_two_seconds(
    tmp_path: Path, lost: str
) -> None:
    """Also if what both share is lost with it."""
    left = US if lost == EU else EU
    async with world(tmp_path) as made, balanced({one: made.url(one) for one in REGIONS}, 0.5) as balancer:
        async with calling(made.url(left)) as caller, calling(balancer.url) as anybody:
            before = await caller.ask_all(20)
            assert before[left] > 0
            lost_at = time.monotonic()
            answered: list[tuple[float, str]] = []
            async with asyncio.TaskGroup() as group:
                for _ in range(16):
                    group.create_task(_talk(caller, answered, until_s=lost_at + 3 * MOVED_S))
                made.sea.lost.add(lost)
                async with asyncio.timeout(MOVED_S):
                    while balancer.ready != {left}:
                        await asyncio.sleep(0.01)
            assert caller.failed == []
            assert {engine for at_s, engine in answered if at_s > lost_at + MOVED_S} == {left}
            assert [await anybody.ask(WITHIN_MS) for _ in range(10)] == [left] * 10


async def test_what_was_on_its_way_to_a_region_that_is_lost_is_answered_by_the_other_within_two_seconds(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made, calling(made.url(US), "abroad") as caller:
        assert await caller.ask_all(20) == {EU: 20}
        made.engines[EU].script(CHAT, _taking(4.0))
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(caller.ask(WITHIN_MS)) for _ in range(40)]
            await made.engines[EU].wait(lambda: made.engines[EU].active == 40)
            made.sea.lost.add(EU)
            later = [group.create_task(caller.ask(WITHIN_MS)) for _ in range(40)]
        assert caller.failed == []
        assert Counter(task.result() for task in (*asked, *later)) == {US: 80}


async def _talk(caller: Caller, answered: list[tuple[float, str]], until_s: float) -> None:
    while time.monotonic() < until_s:
        engine = await caller.ask(WITHIN_MS)
        answered.append((time.monotonic(), engine))
        await asyncio.sleep(0.02)


async def test_regions_that_are_cut_off_from_each_other_let_in_one_lease_beside_the_limit_at_most(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as made, AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(calling(made.url(one), "limited")) for one in REGIONS]
        before = sum([bool(await callers[1].ask()) for _ in range(20)])
        assert before == 20
        made.sea.cut = True
        after = await asyncio.gather(*(caller.ask_all(LIMIT) for caller in callers))
        let_in = before + sum(each[EU] + each[US] for each in after)
        assert LIMIT - LEASE <= let_in <= LIMIT + LEASE, after
