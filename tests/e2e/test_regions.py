"""Two regions with a way between them that takes its time: each uses its own engines, takes over those of the other's
callers, and keeps limits with it that nobody waits for."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.balancer import Way, balanced, way_to
from tests.e2e.servers import Server, serving
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream
from tests.services_redis import RedisServer

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
REGIONS = ("eu", "us")
FAR_S = 0.04  # from one region to the other
WITHIN_MS = {"x-drivetrain-timeout-ms": "2000"}  # what is not answered by then is an error
CONFIG = """
server: {{region: {here}}}
shared: {shared}
engines:
  eu: {{kind: openai, url: "{eu}", region: eu}}
  us: {{kind: openai, url: "{us}", region: us}}
models:
  chat: {{targets: [{{engine: eu, model: {fake}}}, {{engine: us, model: {fake}}}], policy: given}}
policies:
  given: {policy}
"""
LEASED = "{url: 'redis://127.0.0.1:%d', mode: leased, lease_percent: 10, deadline_s: 5}"
HUNDRED = "{limits: {requests_per_minute: 100}}"
IMPATIENT = "{timeouts: {connect_s: 0.5, first_token_s: 0.7}, retries: {least: 100}}"


class World:
    """Two regions, each with a server and an engine; `ways[here, there]` leads from a region's server to an engine."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.engines: dict[str, FakeUpstream] = {}
        self.ways: dict[tuple[str, str], Way] = {}
        self.to_shared: dict[str, Way] = {}

    def asked(self, region: str) -> int:
        """How many requests the engine of a region got."""
        return len([request for request in self.engines[region].requests if request.path == CHAT])

    def vanish(self, region: str) -> None:
        """Nothing that is sent to its engine arrives any more."""
        for (_, there), way in self.ways.items():
            if there == region:
                way.vanish()


@asynccontextmanager
async def world(home: Path, redis: RedisServer | None = None, policy: str = "{}") -> AsyncGenerator[World, None]:
    made = World()
    async with AsyncExitStack() as stack:
        for region in REGIONS:
            made.engines[region] = await stack.enter_async_context(FakeUpstream())
        for here in REGIONS:
            for there in REGIONS:
                way = way_to(made.engines[there].url, 0.0 if here == there else FAR_S)
                made.ways[here, there] = await stack.enter_async_context(way)
            shared = "{}"
            if redis is not None:  # it is in a third region
                made.to_shared[here] = await stack.enter_async_context(way_to(redis.url, FAR_S))
                shared = LEASED % made.to_shared[here].port
            urls = {there: made.ways[here, there].url for there in REGIONS}
            text = CONFIG.format(here=here, shared=shared, policy=policy, fake=FAKE, **urls)
            made.servers[here] = await stack.enter_async_context(serving(home / here, text))
        for server in made.servers.values():
            await server.until("/v1/engines", _all_known)
        yield made


def _all_known(engines: Any) -> bool:
    return all(each["health"]["message"] == "" for each in engines["data"] if each["name"] in REGIONS)


async def statuses(url: str, times: int, *, at_once: bool = True, headers: Any = None) -> Counter[int]:
    async with httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:

        async def one() -> int:
            return (await client.post(CHAT, json=ASK, headers=headers)).status_code

        if at_once:
            return Counter(await asyncio.gather(*(one() for _ in range(times))))
        return Counter([await one() for _ in range(times)])


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["it vanishes", pytest.param("it refuses", marks=pytest.mark.slow)])
async def test_a_region_asks_its_own_engines_and_if_they_are_lost_those_of_the_other_within_two_seconds(
    tmp_path: Path, loss: str
) -> None:
    async with world(tmp_path, policy=IMPATIENT) as made:
        url = made.servers["eu"].url
        assert await statuses(url, 10, at_once=False) == {200: 10}
        assert (made.asked("eu"), made.asked("us")) == (10, 0)
        if loss == "it vanishes":
            made.vanish("eu")
        else:
            made.engines["eu"].refuse()
            made.engines["eu"].drop_connections()
        assert await statuses(url, 30, headers=WITHIN_MS) == {200: 30}
        assert await statuses(url, 10, at_once=False, headers=WITHIN_MS) == {200: 10}
        assert made.asked("us") == 40


async def test_callers_of_a_region_whose_server_is_lost_are_answered_by_the_other(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        async with balanced({region: server.url for region, server in made.servers.items()}) as balancer:
            assert await statuses(balancer.url, 10) == {200: 10}
            made.servers["eu"].signal(signal.SIGKILL)
            await made.servers["eu"].stopped()
            async with asyncio.timeout(2):
                while balancer.ready != {"us"}:
                    await asyncio.sleep(0.01)
            assert await statuses(balancer.url, 30, headers=WITHIN_MS) == {200: 30}


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_regions_keep_one_limit(tmp_path: Path, redis_server: RedisServer, redis_url: str) -> None:
    async with world(tmp_path, redis_server, HUNDRED) as made:
        found = await asyncio.gather(*(statuses(made.servers[region].url, 100) for region in REGIONS))
        assert 80 <= sum(each[200] for each in found) <= 100
        assert sum(each[429] for each in found) == 200 - sum(each[200] for each in found)


async def test_nobody_waits_for_the_way_to_the_shared_state(
    tmp_path: Path, redis_server: RedisServer, redis_url: str
) -> None:
    limits = "{requests_per_minute: 10000, tokens_per_day: 1000000000, concurrency: 1000}"
    async with world(tmp_path, redis_server, f"{{limits: {limits}}}") as made:
        server, way = made.servers["eu"], made.to_shared["eu"]
        assert await statuses(server.url, 60, at_once=False) == {200: 60}
        way.delay_s = 2.4  # an answer takes twice that, still within the time that it may
        late = {"x-drivetrain-timeout-ms": "4000"}
        assert await statuses(server.url, 5, at_once=False, headers=late) == {200: 5}
        assert (await server.get("/readyz"))["status"] == "ready"


@pytest.mark.slow
async def test_a_lost_region_takes_no_more_of_a_limit_along_than_its_lease(
    tmp_path: Path, redis_server: RedisServer, redis_url: str
) -> None:
    async with world(tmp_path, redis_server, HUNDRED) as made:
        before = await statuses(made.servers["eu"].url, 40, at_once=False)
        made.servers["eu"].signal(signal.SIGKILL)
        await made.servers["eu"].stopped()
        made.vanish("eu")
        after = await statuses(made.servers["us"].url, 100)
        assert before == {200: 40}
        assert 50 <= after[200] <= 60


@pytest.mark.slow  # as in the unit's own tests
async def test_a_region_that_is_cut_off_lets_in_no_more_than_a_lease_beside_the_limit(
    tmp_path: Path, redis_server: RedisServer, redis_url: str
) -> None:
    async with world(tmp_path, redis_server, HUNDRED) as made:
        before = await statuses(made.servers["eu"].url, 40, at_once=False)
        made.to_shared["eu"].vanish()
        found = await asyncio.gather(*(statuses(made.servers[region].url, 100) for region in REGIONS))
        let_in = before[200] + sum(each[200] for each in found)
        assert 100 <= let_in <= 110, (before, found)
        troubles = (await made.servers["eu"].get("/readyz"))["troubles"]
        assert list(troubles) == ["shared"]
