"""Servers that share their state: SQLite for one host, PostgreSQL and Redis for many; and what they wrote there."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from drivetrain.governance import Attempt
from drivetrain.store import AttemptQuery, Store
from tests.e2e.servers import COMMAND, Server, serving
from tests.fakes.manners import ENDLESS
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream

CHAT = "/v1/chat/completions"
PEPPER = "a pepper that all replicas of this test share"
CONFIG = """
server: {{auth: "on"}}
store: {{url: "{store}"}}
shared: {{url: {shared}, lease_s: {lease_s}, deadline_s: {deadline_s}}}
keys: {{pepper: "{pepper}"}}
engines:
  mock: {{kind: openai, url: "{mock}"}}
models:
  chat: {{targets: [{{engine: mock, model: {fake}}}], policy: given}}
  endless: {{targets: [{{engine: mock, model: {endless}}}], policy: given}}
policies:
  given: {policy}
"""


class Place:
    """Where a test's servers keep their state."""

    def __init__(self, folder: Path, store: str, shared: str | None) -> None:
        self.folder = folder
        self.store = store
        self.shared = shared

    def config(
        self,
        mock: str,
        *,
        policy: str = "{}",
        lease_s: float = 30.0,
        deadline_s: float = 5.0,  # whoever asks for exact counts must not be cut short by a busy machine
        shared: str | None = None,
    ) -> str:
        url = shared or self.shared
        return CONFIG.format(
            store=self.store,
            shared=f'"{url}"' if url else "null",
            lease_s=lease_s,
            deadline_s=deadline_s,
            pepper=PEPPER,
            mock=mock,
            fake=FAKE,
            endless=ENDLESS,
            policy=policy,
        )

    async def command(self, *arguments: str) -> str:
        """What `drivetrain …` prints, run in the home of the first server."""
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            *arguments,
            "--home",
            self.folder / "1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1"},
        )
        out, err = await process.communicate()
        assert process.returncode == 0, f"drivetrain {' '.join(arguments)}: {err.decode()}"
        return out.decode()

    async def key(self, name: str, *arguments: str) -> str:
        """A new key's text."""
        return (await self.command("keys", "create", "--name", name, *arguments)).strip()

    async def rows(self) -> list[Attempt]:
        """Every row of the ledger."""
        return await asyncio.to_thread(self._rows)

    def _rows(self) -> list[Attempt]:
        store = Store.open(self.store, self.folder / "1")
        try:
            return store.attempts(AttemptQuery(limit=1_000_000))
        finally:
            store.close()

    async def rows_once(self, number: int, within_s: float = 15.0) -> list[Attempt]:
        """The rows, as soon as there are so many."""
        async with asyncio.timeout(within_s):
            while len(rows := await self.rows()) < number:
                await asyncio.sleep(0.05)
        return rows


@asynccontextmanager
async def replicas(
    place: Place, mock: FakeUpstream, *, count: int = 1, workers: int = 1, keep_state: bool = False, **settings: Any
) -> AsyncGenerator[Sequence[Server], None]:
    """So many servers over one state, each with a home of its own."""
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(1, count + 1):
            config = place.config(mock.url, **settings)
            home = place.folder / str(number)
            started = serving(home, config, "--workers", str(workers), keep_state=keep_state)
            servers.append(await stack.enter_async_context(started))
        yield servers


def client(server: Server, key: str, *, connections: int = 200) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=server.url,
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
        limits=httpx2.Limits(max_connections=connections),
    )


def chat(model: str = "chat", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    if sys.platform != "linux":
        raise RuntimeError("children are looked up in /proc")
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
