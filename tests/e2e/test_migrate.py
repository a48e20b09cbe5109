"""`drivetrain migrate` under constant load of the official client: there and back, and no request fails."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import ollama
import pytest

from drivetrain.governance import Attempt
from tests.e2e.replicas import Place, replicas
from tests.e2e.servers import MODEL, Server, add_small_model, serving
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
OLD, NEW = "old", "new"
STATED_S = 1.0  # after which a rollback holds everywhere
CONFIG = """
server: {{auth: "off"}}
store: {{url: "{store}"}}
keys: {{pepper: "a pepper of all replicas"}}
rollouts: {{every_s: 0.5}}
engines:
  old: {{kind: ollama, url: "{old}"}}
  new: {{kind: openai, url: "{new}"}}
models:
  "{model}": {{targets: [{{engine: old, model: "{model}"}}], policy: kept}}
policies:
  kept: {{bodies: {{keep: true}}}}
"""


class Move(Place):
    """Servers over the engine that is there and the one that is to be, which has the same model."""

    def __init__(self, folder: Path, old: str, new: str, model: str) -> None:
        super().__init__(folder, f"sqlite:///{folder}/shared.db", None)
        self._engines = {OLD: old, NEW: new}
        self.model = model

    def config(self, mock: str, **_: Any) -> str:
        return CONFIG.format(store=self.store, model=self.model, **self._engines)

    async def migrate(self, *words: str) -> Any:
        return json.loads(await self.command("migrate", *words, "--json"))


class Callers:
    """Applications on Ollama's own client, each of which asks all the time."""

    def __init__(self, servers: list[Server], model: str, number: int) -> None:
        self.failed: list[str] = []
        self.answered = 0
        self._model = model
        self._clients = [self._client(servers[each % len(servers)], each) for each in range(number)]

    def _client(self, server: Server, number: int) -> ollama.AsyncClient:
        headers = {"x-drivetrain-session": f"caller {number}"}
        return ollama.AsyncClient(host=server.url, headers=headers, timeout=120)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()  # type: ignore[no-untyped-call]

    async def ask(self, client: ollama.AsyncClient, at: int) -> None:
        messages = [{"role": "user", "content": f"Say {at}."}]
        try:
            if at % 2:
                parts = await client.chat(self._model, messages, stream=True, options={"num_predict": 4})
                done = [part.done async for part in parts][-1]
            else:
                done = (await client.chat(self._model, messages, options={"num_predict": 4})).done
            self.answered += 1
            if not done:
                self.failed.append("an answer without an end")
        except (ollama.ResponseError, ConnectionError, OSError) as error:
            self.failed.append(repr(error))

    async def embed(self, *texts: str) -> None:
        assert len((await self._clients[0].embed(self._model, texts)).embeddings) == len(texts)

    async def once_each(self) -> None:
        for client in self._clients:
            await self.ask(client, 1)

    @asynccontextmanager
    async def talking(self) -> AsyncGenerator[None, None]:
        over = False

        async def talk(client: ollama.AsyncClient) -> None:
            at = 0
            while not over:
                at += 1
                await self.ask(client, at)
                await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(talk(client))
            try:
                yield
            finally:
                over = True


BETWEEN = ("--from", OLD, "--to", NEW)
# A busy machine is no reason to take callers back.
CALM = ("--guard", "first_token=none", "--guard", "tokens_per_s=none")


async def there_and_back(place: Move, callers: Callers) -> None:
    """Looked at, planned, compared and shifted under load; and then at once back."""
    async with callers.talking():
        checked = await place.migrate("check", *BETWEEN)
        assert [one["match"]["why"] for one in checked["models"]] == ["the same name"]
        planned = await place.migrate("plan", *BETWEEN, *CALM)
        assert [one["state"] for one in planned["rollouts"]] == ["paused"]
        compared = await place.migrate("validate", "--tokens", "4")
        assert [(one["source"]["failures"], one["target"]["failures"]) for one in compared["models"]] == [(0, 0)]
        await place.migrate("shift")
    assert await turned(place, callers, "shift", "--to", "100") == ({NEW}, "running")
    assert await turned(place, callers, "rollback") == ({OLD}, "rolled_back")


async def the_other_way_round(place: Move, callers: Callers) -> None:
    """All of it to the new engine; then from there to the old one, and back to the new one."""
    async with callers.talking():
        await place.migrate("plan", *BETWEEN, *CALM)
        await place.migrate("shift", "--to", "100")
    assert await turned(place, callers, "shift") == ({NEW}, "done")
    async with callers.talking():
        [other] = (await place.migrate("plan", "--from", NEW, "--to", OLD, *CALM))["rollouts"]
    assert other["arms"][0]["targets"][0]["engine"] == NEW
    assert await turned(place, callers, "shift", "--to", "100") == ({OLD}, "running")
    assert await turned(place, callers, "rollback") == ({NEW}, "rolled_back")


async def turned(place: Move, callers: Callers, *words: str) -> tuple[set[str], str]:
    """The engines of all requests that came later than is stated after a command, and what the command said of the
    rollout. Nothing has failed until then."""
    async with callers.talking():
        [rollout] = (await place.migrate(*words))["rollouts"]
        over_s = time.time() + STATED_S
        await asyncio.sleep(2 * STATED_S)
    await callers.once_each()
    assert callers.failed == []
    rows = await finished(place, callers.answered)
    assert {(row.outcome, row.dialect) for row in rows} == {("ok", "ollama.chat")}
    return {row.engine for row in rows if row.received_s > over_s}, rollout["state"]


async def finished(place: Move, number: int) -> list[Attempt]:
    """The last attempts of so many requests."""
    async with asyncio.timeout(30):
        while len(rows := [row for row in await place.rows() if row.final]) < number:
            await asyncio.sleep(0.05)
    return rows


async def test_there_and_back_on_two_replicas(tmp_path: Path) -> None:
    async with FakeUpstream() as old, FakeUpstream() as new:
        place = Move(tmp_path, old.url, new.url, FAKE)
        async with replicas(place, old, count=2) as servers, Callers(list(servers), FAKE, 4) as callers:
            await there_and_back(place, callers)


@asynccontextmanager
async def of_a_real_model(folder: Path) -> AsyncGenerator[Move, None]:
    """The old engine is a server that speaks Ollama in front of a real model; the new one is asked by OpenAI's API."""
    home = folder / "engine"
    add_small_model(home)
    async with serving(home) as engine:
        yield Move(folder, engine.url, f"{engine.url}/v1", MODEL)


@pytest.mark.slow
async def test_there_and_back_with_a_real_model(tmp_path: Path) -> None:
    async with of_a_real_model(tmp_path) as place:
        async with replicas(place, FakeUpstream()) as servers, Callers(list(servers), MODEL, 2) as callers:
            await there_and_back(place, callers)
            await the_other_way_round(place, callers)


@pytest.mark.slow
async def test_vectors_of_a_real_model_are_compared(tmp_path: Path) -> None:
    """What callers had embedded is embedded again by both, and the vectors of one model are alike whoever asks it."""
    async with of_a_real_model(tmp_path) as place:
        async with replicas(place, FakeUpstream()) as [server], Callers([server], MODEL, 1) as callers:
            await callers.embed("The sea is blue.", "A stone.")
            await callers.embed("Bread")
            await finished(place, 2)
            [_, vectors] = (await place.migrate("validate", *BETWEEN, "--tokens", "4", "--alike", "0.3"))["models"]
    assert vectors["of"] == "vectors"
    assert vectors["alike"] == pytest.approx(1.0, abs=0.001)
    for side in (vectors["source"], vectors["target"]):
        assert (side["requests"], side["failures"], side["dimensions"]) == (2, 0, [576])
        assert side["vectors_per_s"] > 0
