"""What must hold for a team: limits and budgets exact, no row lost, revoked means revoked. On both kinds of state."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.e2e.replicas import CHAT, Place, chat, children, client, replicas
from tests.e2e.servers import Server
from tests.fakes.manners import ENDLESS
from tests.fakes.upstream import FakeUpstream
from tests.services import new_database, postgres_of
from tests.services_redis import new_redis
from tests.unit.quota.wirecut import way_to

pytestmark = pytest.mark.anyio
SLOW = pytest.mark.slow  # the same rule by another way


@pytest.fixture
def replicated(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, new_database(request), new_redis(request))


async def statuses(servers: Sequence[Server], key: str, path: str, body: Any, times: int) -> Counter[int]:
    """So many requests at once, spread over the servers."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(client(server, key)) for server in servers]

        async def one(number: int) -> int:
            return (await callers[number % len(callers)].post(path, json=body)).status_code

        return Counter(await asyncio.gather(*(one(number) for number in range(times))))


# --- limits and budgets -------------------------------------------------------------------------------------------


async def test_two_replicas_of_two_workers_admit_exactly_as_many_requests_as_the_limit_says(
    replicated: Place, mock: FakeUpstream
) -> None:
    async with replicas(replicated, mock, count=2, workers=2) as servers:
        key = await replicated.key("ci")
        await replicated.command("limits", "set", "--key", "ci", "--requests-per-minute", "100")
        await asyncio.sleep(1.0)  # the stated bound for a change to be known everywhere
        assert await statuses(servers, key, CHAT, chat(), 400) == {200: 100, 429: 300}
        async with client(servers[0], key) as caller:
            refused = await caller.post(CHAT, json=chat())
        assert 0 < int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-ratelimit-limit-requests"] == "100"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert Counter(row.outcome for row in await replicated.rows()) == {"ok": 100, "rejected": 301}


async def test_the_workers_of_one_server_count_together_without_redis(tmp_path: Path, mock: FakeUpstream) -> None:
    place = Place(tmp_path, f"sqlite:///{tmp_path}/shared.db", None)
    async with replicas(place, mock, workers=2) as (server,):
        key = await place.key("ci")
        await place.command("limits", "set", "--key", "ci", "--requests-per-minute", "100")
        await asyncio.sleep(1.0)  # the stated bound for a change to be known everywhere
        assert await statuses([server], key, CHAT, chat(), 300) == {200: 100, 429: 200}


PATHS = {
    "chat": (CHAT, chat()),
    "a field that nobody knows": (CHAT, chat(x_new_param=True)),
    "embeddings": ("/v1/embeddings", {"model": "chat", "input": "Hi"}),
    "Ollama's chat": ("/api/chat", chat()),
    "Ollama's generate": ("/api/generate", {"model": "chat", "prompt": "Hi"}),
    "Ollama's embed": ("/api/embed", {"model": "chat", "input": "Hi"}),
}

RARER = [path for path in PATHS if path not in ("chat", "embeddings")]


@pytest.mark.parametrize("path", ["chat", "embeddings", *(pytest.param(path, marks=SLOW) for path in RARER)])
async def test_two_hundred_requests_at_once_spend_no_more_than_their_budget(
    place: Place, mock: FakeUpstream, path: str
) -> None:
    async with replicas(place, mock) as (server,):
        key = await place.key("ci")
        await place.command("prices", "set", "*", "--request", "0.01")
        await place.command("budgets", "set", "--key", "ci", "--usd", "1", "--per", "month")
        await asyncio.sleep(1.0)  # the stated bound for a change to be known everywhere
        assert await statuses([server], key, *PATHS[path], 200) == {200: 100, 402: 100}
    assert sum(row.cost_micro_usd for row in await place.rows()) == 1_000_000


async def test_a_budget_survives_a_restart(place: Place, mock: FakeUpstream) -> None:
    async with replicas(place, mock) as (server,):
        key = await place.key("ci")
        await place.command("prices", "set", "*", "--request", "0.01")
        await place.command("budgets", "set", "--key", "ci", "--usd", "0.02", "--per", "month")
        await asyncio.sleep(1.0)
        assert (await statuses([server], key, CHAT, chat(), 2)) == {200: 2}
    async with replicas(place, mock) as (server,):
        assert (await statuses([server], key, CHAT, chat(), 3)) == {402: 3}


async def test_a_caller_who_waits_as_long_as_it_was_told_is_let_in(place: Place, mock: FakeUpstream) -> None:
    async with replicas(place, mock, policy="{limits: {concurrency: 1}, queue: {size: 0}}") as (server,):
        key = await place.key("ci")
        async with client(server, key) as caller:
            async with caller.stream("POST", CHAT, json=chat(model="endless", stream=True)) as running:
                assert running.status_code == 200
                refused = await caller.post(CHAT, json=chat(model="endless"))
                assert refused.status_code == 503
                assert refused.headers["x-should-retry"] == "true"
            assert (await caller.post(CHAT, json=chat())).status_code == 200


# --- keys ---------------------------------------------------------------------------------------------------------


async def test_a_revoked_key_is_refused_by_every_replica_within_a_second(replicated: Place, mock: FakeUpstream) -> None:
    async with replicas(replicated, mock, count=2, workers=2) as servers:
        key = await replicated.key("ci")
        assert await statuses(servers, key, CHAT, chat(), 8) == {200: 8}
        await replicated.command("keys", "revoke", "ci")
        async with asyncio.timeout(1.5):  # the bound is one second; the rest is for asking
            while await statuses(servers, key, CHAT, chat(), 8) != {401: 8}:
                await asyncio.sleep(0.02)


async def test_no_key_and_no_prompt_is_in_anything_that_was_written(place: Place, mock: FakeUpstream) -> None:
    prompt = "a very private sentence"
    async with replicas(place, mock, workers=2) as (server,):
        key = await place.key("ci")
        body = {"model": "chat", "messages": [{"role": "user", "content": prompt}]}
        async with client(server, key) as caller:
            assert (await caller.post(CHAT, json=body)).status_code == 200
            assert (await caller.post(CHAT, content=b"{" + prompt.encode())).status_code == 400
            wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
            caller.headers["authorization"] = f"Bearer {wrong}"
            assert (await caller.post(CHAT, json=body)).status_code == 401
    secret = key.rpartition("-")[2].encode()
    for path in place.folder.rglob("*"):
        if path.is_file():
            written = path.read_bytes()
            assert secret not in written, path
            assert prompt.encode() not in written, path


# --- processes that die ---------------------------------------------------------------------------------------------


async def test_what_a_killed_worker_had_set_aside_is_free_within_the_lease(
    replicated: Place, mock: FakeUpstream
) -> None:
    policy = "{limits: {concurrency: 50}, queue: {size: 0}}"
    async with replicas(replicated, mock, workers=1, count=2, lease_s=2.0, policy=policy) as (doomed, other):
        key = await replicated.key("ci")
        async with client(doomed, key) as caller, client(other, key) as second:
            running = [asyncio.create_task(caller.post(CHAT, json=chat(model="endless"))) for _ in range(50)]
            await mock.wait(lambda: sum(_is_endless(r) for r in mock.requests) == 50, within_s=20)
            assert (await second.post(CHAT, json=chat(model="endless"))).status_code == 503
            doomed.process.kill()
            await asyncio.gather(*running, return_exceptions=True)
            async with asyncio.timeout(4.0):
                while await status_of(second, chat(model="endless", stream=True)) != 200:
                    await asyncio.sleep(0.05)


async def status_of(caller: httpx2.AsyncClient, body: Any) -> int:
    """How a request is received; its answer is not waited for."""
    async with caller.stream("POST", CHAT, json=body) as answer:
        return answer.status_code


def _is_endless(request: Any) -> bool:
    return bool(request.path == CHAT and request.json["model"] == ENDLESS)


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        pytest.param(signal.SIGTERM, 1, marks=SLOW),
        (signal.SIGTERM, 2),
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 2, marks=SLOW),
    ],
)
async def test_a_server_that_is_ended_under_load_leaves_one_row_for_each_answer_that_it_gave(
    place: Place, mock: FakeUpstream, number: signal.Signals, workers: int
) -> None:
    async with replicas(place, mock, workers=workers) as (server,):
        key = await place.key("ci")
        answered: list[str] = []
        async with client(server, key) as caller:

            async def go_on() -> None:
                while True:
                    answer = await caller.post(CHAT, json=chat())
                    if answer.status_code == 200:
                        answered.append(answer.headers["x-request-id"])

            load = [asyncio.create_task(go_on()) for _ in range(20)]
            while len(answered) < 400:
                await asyncio.sleep(0.01)
            for pid in children(server.pid) if number == signal.SIGKILL else []:
                os.kill(pid, number)
            server.signal(number)
            await server.stopped()
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    async with replicas(place, mock, keep_state=True):
        rows = await place.rows_once(len(answered))
    counted = Counter(row.request_id for row in rows if row.outcome == "ok")
    assert set(answered) <= set(counted)
    assert max(counted.values()) == 1
    served = sum(1 for request in mock.requests if request.path == CHAT and request.answered)
    assert len(counted) == served if number == signal.SIGTERM else len(counted) <= served


# --- a database or a shared state that is away -----------------------------------------------------------------------


async def test_a_database_that_is_away_stops_no_key_that_is_known_and_loses_no_row(
    request: pytest.FixtureRequest, replicated: Place, mock: FakeUpstream
) -> None:
    server_of_rows = postgres_of(request)
    async with replicas(replicated, mock) as (server,):
        known, revoked = [await replicated.key(name) for name in ("known", "revoked")]
        unknown = f"dt-{'x' * 12}-{'y' * 43}"
        async with client(server, known) as caller, client(server, revoked) as gone, client(server, unknown) as new:
            assert (await caller.post(CHAT, json=chat())).status_code == 200
            assert (await gone.post(CHAT, json=chat())).status_code == 200
            await replicated.command("keys", "revoke", "revoked")
            async with asyncio.timeout(3):
                while (await gone.post(CHAT, json=chat())).status_code != 401:
                    await asyncio.sleep(0.05)
            server_of_rows.stop()
            try:
                assert await statuses([server], known, CHAT, chat(), 50) == {200: 50}
                assert (await gone.post(CHAT, json=chat())).status_code == 401
                assert (await new.post(CHAT, json=chat())).status_code == 503
                async with asyncio.timeout(10):
                    while (await caller.get("/readyz")).json()["status"] != "degraded":
                        await asyncio.sleep(0.05)
            finally:
                server_of_rows.start()
            async with asyncio.timeout(20):
                while (await new.post(CHAT, json=chat())).status_code != 401:
                    await asyncio.sleep(0.1)
            rows = await replicated.rows_once(52, within_s=20)
    assert Counter(row.outcome for row in rows)["ok"] >= 52  # and those of the revoked key, before it was known to be
    assert len({row.id for row in rows}) == len(rows)


async def test_a_shared_state_that_takes_two_seconds_to_answer_holds_nobody_up(
    replicated: Place, mock: FakeUpstream
) -> None:
    port = urlsplit(replicated.shared or "").port
    assert port is not None
    policy = "{limits: {requests_per_minute: 1000}}"
    async with way_to(port) as way:
        async with replicas(replicated, mock, shared=way.url, deadline_s=0.05, policy=policy) as (server,):
            key = await replicated.key("ci")
            async with client(server, key) as caller:
                await _until_limits_are(caller, "shared")
                way.delay_s = 2.0
                async with asyncio.timeout(2.0):  # fifty together take less than one that waited for it
                    answers = [await caller.post(CHAT, json=chat()) for _ in range(50)]
                assert {answer.status_code for answer in answers} == {200}
                assert answers[-1].headers["x-drivetrain-limits"] == "degraded"
                assert (await caller.get("/readyz")).json()["status"] == "degraded"
                way.delay_s = 0.0
                await _until_limits_are(caller, "shared")
                async with asyncio.timeout(10):
                    while (await caller.get("/readyz")).json()["status"] != "ready":
                        await asyncio.sleep(0.05)


async def _until_limits_are(caller: httpx2.AsyncClient, wanted: str) -> None:
    async with asyncio.timeout(20):
        while True:
            answer = await caller.post(CHAT, json=chat())
            if answer.headers.get("x-drivetrain-limits", "shared") == wanted:
                return
            await asyncio.sleep(0.05)
