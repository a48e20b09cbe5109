"""A fake engine and an upstream client of it, both ended by the block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from drivetrain.engines._http import Upstream
from tests.fakes.upstream import FakeUpstream


@asynccontextmanager
async def pair(fake: FakeUpstream | None = None, **options: Any) -> AsyncIterator[tuple[FakeUpstream, Upstream]]:
    async with fake or FakeUpstream() as server:
        upstream = Upstream(server.url, label="engine 'e'", **options)
        try:
            yield server, upstream
        finally:
            await upstream.aclose()
        assert upstream.open_connections == 0


async def post(upstream: Upstream, path: str = "/x", body: bytes = b"{}") -> bytes:
    async with upstream.post(path, body) as answer:
        return await answer.read(10**8)
