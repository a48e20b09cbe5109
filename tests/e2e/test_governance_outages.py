"""While the database or the shared state is away, from before the start on, and for long under load."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from drivetrain.governance import Attempt
from tests.e2e.replicas import CHAT, PEPPER, Place, chat, client, replicas
from tests.e2e.servers import Server, serving
from tests.e2e.test_auth import KEY
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream
from tests.services import PostgresServer, new_database, postgres_of
from tests.services_redis import RedisServer

pytestmark = pytest.mark.anyio
SLOW = pytest.mark.slow
AWAY_S = 300.0
CALLERS = 12
PAUSE_S = 0.05  # of each caller after an answer: some 150 requests a second in all


def config(store: str, mock: str, auth: str) -> str:
    return f"""
server: {{auth: "{auth}"}}
store: {{url: "{store}"}}
keys: {{pepper: "{PEPPER}"}}
engines: {{box: {{kind: openai, url: "{mock}"}}}}
models: {{chat: {{targets: [{{engine: box, model: {FAKE}}}]}}}}
"""


async def until_ready(server: Server, wanted: str) -> None:
    await server.until("/readyz", lambda state: state["status"] == wanted, within_s=30)


async def test_a_server_starts_without_its_database_and_makes_up_for_it(
    postgres: PostgresServer, tmp_path: Path, mock: FakeUpstream
) -> None:
    with postgres.database("template0") as store:
        postgres.stop()
        try:
            async with serving(tmp_path, config(store, mock.url, "on")) as server:
                await until_ready(server, "degraded")
                async with client(server, f"dt-{'x' * 12}-{'y' * 43}") as stranger:
                    refused = await stranger.post(CHAT, json=chat())
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert KEY.findall(server.log) == []
                assert "nobody can come in before the store can be asked" in server.log
                postgres.start()
                await until_ready(server, "ready")
                async with asyncio.timeout(20):
                    while not (found := KEY.findall(server.log)):
                        await asyncio.sleep(0.05)
                async with client(server, found[0]) as caller:
                    assert (await caller.post(CHAT, json=chat())).status_code == 200
                    async with asyncio.timeout(20):
                        while not (await caller.get("/admin/v1/config/revisions")).json()["data"]:
                            await asyncio.sleep(0.05)
        finally:
            if not postgres.running:
                postgres.start()


async def test_where_nobody_needs_a_key_answers_are_given_and_their_rows_follow(
    postgres: PostgresServer, tmp_path: Path, mock: FakeUpstream
) -> None:
    with postgres.database("template0") as store:
        postgres.stop()
        try:
            async with serving(tmp_path / "1", config(store, mock.url, "off")) as server:
                assert (await server.post(CHAT, chat())).status_code == 200
                postgres.start()
                assert [row.outcome for row in await Place(tmp_path, store, None).rows_once(1, within_s=20)] == ["ok"]
        finally:
            if not postgres.running:
                postgres.start()


class Load:
    """Callers that ask again and again, and how they were answered, by key."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, int]] = Counter()

    async def ask(self, name: str, caller: httpx2.AsyncClient, body: Any) -> None:
        while True:
            answer = await caller.post(CHAT, json=body)
            self.answered[name, answer.status_code] += 1
            await asyncio.sleep(PAUSE_S)

    def since(self, before: Counter[tuple[str, int]]) -> set[tuple[str, int]]:
        """How requests were answered that came later."""
        return set(self.answered - before)


@SLOW
async def test_a_database_and_a_shared_state_that_are_away_for_long_under_load_cost_nothing_but_news(
    request: pytest.FixtureRequest, tmp_path: Path, mock: FakeUpstream
) -> None:
    """Known keys go on, revoked ones stay out, of others nothing can be said; every row arrives; all converges."""
    postgres, redis = postgres_of(request), RedisServer(tmp_path)
    redis.start()
    place = Place(tmp_path, new_database(request), redis.url)
    try:
        async with replicas(place, mock, workers=2, deadline_s=0.05) as (server,):
            known, revoked = [await place.key(name) for name in ("known", "revoked")]
            await place.command("prices", "set", "*", "--request", "0.01")
            await place.command("budgets", "set", "--key", "known", "--usd", "1000000", "--per", "month")
            root = await place.key("root", "--scopes", "admin")
            await place.command("keys", "revoke", "revoked")
            load = Load()
            callers = [client(server, key) for key in (known, revoked, f"dt-{'x' * 12}-{'y' * 43}")]
            async with callers[0], callers[1], callers[2], asyncio.TaskGroup() as group:
                while (await callers[1].post(CHAT, json=chat())).status_code != 401:
                    await asyncio.sleep(0.05)
                assert (await callers[0].post(CHAT, json=chat())).status_code == 200
                asking = [group.create_task(load.ask("known", callers[0], chat())) for _ in range(CALLERS)]
                postgres.stop()
                redis.stop()
                try:
                    await until_ready(server, "degraded")
                    before = load.answered.copy()
                    asking.append(group.create_task(load.ask("revoked", callers[1], chat())))
                    asking.append(group.create_task(load.ask("unknown", callers[2], chat())))
                    await asyncio.sleep(AWAY_S)  # it is the outage that takes its time
                    assert load.since(before) == {("known", 200), ("revoked", 401), ("unknown", 503)}
                finally:
                    redis.start()
                    postgres.start()
                async with asyncio.timeout(60):
                    while not load.answered["unknown", 401]:
                        await asyncio.sleep(0.1)
                await until_ready(server, "ready")
                for task in asking:
                    task.cancel()
            served = load.answered["known", 200] + 1
            assert {which for which in load.answered if which[0] == "known"} == {("known", 200)}
            rows = await _rows_once(place, served)
            assert len({row.id for row in rows}) == len(rows)
            answered = sum(row.outcome == "ok" for row in rows)
            assert served <= answered <= served + CALLERS  # who was cut off at the end may have been answered
            await _until_the_budget_is_what_the_ledger_says(server, root, rows)
    finally:
        redis.stop()


async def _rows_once(place: Place, served: int) -> Sequence[Attempt]:
    """Every row, as soon as there are as many requests with an answer."""
    async with asyncio.timeout(120):
        while json.loads(await place.command("usage", "--outcome", "ok", "--json"))["requests"] < served:
            await asyncio.sleep(0.5)
    return await place.rows()


async def _until_the_budget_is_what_the_ledger_says(server: Server, root: str, rows: Sequence[Attempt]) -> None:
    """Of its own key: the revoked one may have been answered before everybody knew."""
    async with client(server, root) as admin, asyncio.timeout(60):
        while True:
            used = (await admin.get("/admin/v1/spent")).json()["data"]
            (budget,) = (one for one in used if one["rule"].startswith("key:"))
            key = budget["rule"].split(":")[1]
            if budget["used"] == sum(row.cost_micro_usd for row in rows if row.key_id == key):
                return
            await asyncio.sleep(0.2)


@SLOW
@pytest.mark.parametrize("kind", ["sqlite", "postgres and redis"])
async def test_a_caller_who_waits_as_long_as_a_refusal_says_is_let_in(
    request: pytest.FixtureRequest, tmp_path: Path, mock: FakeUpstream, kind: str
) -> None:
    place = Place(tmp_path, f"sqlite:///{tmp_path}/shared.db", None)
    if kind != "sqlite":
        place = Place(tmp_path, new_database(request), str(request.getfixturevalue("redis_url")))
    async with replicas(place, mock) as (server,):
        key = await place.key("ci")
        await place.command("limits", "set", "--key", "ci", "--requests-per-minute", "3")
        async with client(server, key) as caller:
            while (refused := await caller.post(CHAT, json=chat())).status_code == 200:
                pass
            wait_s = int(refused.headers["retry-after"])
            assert wait_s - 1 < int(refused.headers["retry-after-ms"]) / 1000 <= wait_s <= 61
            await asyncio.sleep(wait_s)  # as the official clients do
            assert (await caller.post(CHAT, json=chat())).status_code == 200
