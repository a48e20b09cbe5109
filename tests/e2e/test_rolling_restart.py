"""Replicas that are restarted under load, one after the other: no stream breaks, no request is refused."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.e2e.balancer import Balancer, balanced
from tests.e2e.servers import Server, serving
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.manners import WORDS, openai_frames
from tests.fakes.replies import Stream
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
ASK = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
FRAMES = openai_frames("chat.completion.chunk", WORDS * 3)


def config(url: str, notice_s: float = 2.0) -> str:
    return (
        f"server: {{notice_s: {notice_s}, drain_s: 600}}\n"
        f'engines: {{box: {{kind: openai, url: "{url}"}}}}\n'
        f"models: {{chat: {{targets: [{{engine: box, model: {FAKE}}}]}}}}\n"
    )


async def streamed(client: httpx2.AsyncClient) -> str:
    """How a stream ended."""
    try:
        async with client.stream("POST", CHAT, json={**ASK, "stream": True}) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
    except httpx2.HTTPError as error:
        return repr(error)
    return lines[-1] if answer.status_code == 200 else f"{answer.status_code} {lines}"


class Load:
    """So many callers, each with one stream after the other, on connections that they keep as long as they may."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ends: Counter[str] = Counter()
        self.open = 0
        self.over = False

    async def caller(self) -> None:
        async with httpx2.AsyncClient(base_url=self._url, timeout=300, trust_env=False) as client:
            while not self.over:
                self.open += 1
                self.ends[await streamed(client)] += 1
                self.open -= 1

    async def more(self, number: int) -> None:
        """Until so many more have ended."""
        wanted = self.ends.total() + number
        async with asyncio.timeout(300):  # as long as a busy machine may need
            while self.ends.total() < wanted:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def loaded(url: str, callers: int) -> AsyncGenerator[Load, None]:
    load = Load(url)
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(load.caller())
        try:
            yield load
        finally:
            load.over = True


async def restarted(stack: AsyncExitStack, balancer: Balancer, name: str, server: Server, text: str) -> Server:
    """As an operator does it: SIGTERM, wait for the end, start the new one."""
    server.signal(signal.SIGTERM)
    assert await server.stopped(300) == 0
    fresh = await stack.enter_async_context(serving(server.home, text, keep_state=True))
    balancer.servers[name] = fresh.url
    balancer.ready.discard(name)
    async with asyncio.timeout(300):
        while name not in balancer.ready:
            await asyncio.sleep(0.02)
    return fresh


async def roll(home: Path, callers: int, pause_s: float) -> Counter[str]:
    """How the streams ended while two replicas were restarted one after the other."""
    async with FakeUpstream() as upstream, AsyncExitStack() as stack:
        upstream.script(CHAT, Stream(frames=FRAMES, pause_s=pause_s))
        text = config(upstream.url)
        servers = {name: await stack.enter_async_context(serving(home / name, text)) for name in ("one", "two")}
        balancer = await stack.enter_async_context(balanced({name: each.url for name, each in servers.items()}))
        async with loaded(balancer.url, callers) as load:
            await load.more(callers)
            for name, server in servers.items():
                assert load.open == callers
                await restarted(stack, balancer, name, server, text)
                await load.more(callers)
        return load.ends


@pytest.mark.slow
async def test_a_rolling_restart_under_100_streams_breaks_none(tmp_path: Path) -> None:
    ends = await roll(tmp_path, 100, 0.2)
    assert ends.total() > 300
    assert ends == {"data: [DONE]": ends.total()}


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_before_it_stops_a_server_says_so_and_still_answers(tmp_path: Path, workers: str) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url, 3.0), "--workers", workers) as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
            assert (await client.get("/readyz")).status_code == 200
            server.signal(signal.SIGTERM)
            async with asyncio.timeout(2):
                while (await client.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.01)
            answer = await client.post(CHAT, json=ASK)
            assert answer.status_code == 200
            assert answer.headers["connection"] == "close"
        assert await server.stopped() == 0


async def test_without_notice_it_stops_at_once_and_a_second_signal_shortens_it(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url, 600.0)) as server:
        server.signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            while "requests are to go elsewhere" not in server.log:
                await asyncio.sleep(0.02)
        server.signal(signal.SIGTERM)
        assert await server.stopped(10) == 0
