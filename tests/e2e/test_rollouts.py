"""A new version on its way to callers: a good one reaches everybody, a bad one is taken back, and nobody flaps."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from drivetrain.rollouts.plan import bucket
from tests.e2e.replicas import CHAT, Place, chat, client, replicas
from tests.e2e.servers import Server
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.manners import openai_frames
from tests.fakes.replies import Stream, failure
from tests.fakes.upstream import FakeUpstream
from tests.services import new_database
from tests.services_redis import new_redis

pytestmark = pytest.mark.anyio
ANYBODY = "nobody asks for a key"
OLD, NEW = "old", "new"
ENDED = ("done", "rolled_back")
CONFIG = """
server: {{auth: "{auth}"}}
store: {{url: "{store}"}}
shared: {{url: {shared}}}
keys: {{pepper: "a pepper of all replicas"}}
rollouts: {{every_s: 0.2}}
engines:
  old: {{kind: openai, url: "{old}"}}
  new: {{kind: openai, url: "{new}"}}
models:
  chat: {{targets: [{{engine: old, model: {fake}}}]}}
"""


class Pair:
    """The engine that is there, and the new one."""

    def __init__(self, old: FakeUpstream, new: FakeUpstream) -> None:
        self.old = old
        self.new = new


@pytest.fixture
async def pair() -> AsyncGenerator[Pair, None]:
    async with FakeUpstream() as old, FakeUpstream() as new:
        yield Pair(old, new)


class Site(Place):
    """Where servers over both engines keep what they share."""

    def __init__(self, folder: Path, pair: Pair, store: str, shared: str | None = None, auth: str = "off") -> None:
        super().__init__(folder, store, shared)
        self._pair = pair
        self._auth = auth

    def config(self, mock: str, **_: Any) -> str:
        return CONFIG.format(
            auth=self._auth,
            store=self.store,
            shared=f'"{self.shared}"' if self.shared else "null",
            old=self._pair.old.url,
            new=self._pair.new.url,
            fake=FAKE,
        )


def site(folder: Path, pair: Pair, auth: str = "off") -> Site:
    return Site(folder, pair, f"sqlite:///{folder}/shared.db", auth=auth)


def session(number: int) -> str:
    return f"caller {number}"


class Crowd:
    """Callers, each of whom says who it is, and which engines they were answered by, one after the other."""

    def __init__(self, callers: Sequence[httpx2.AsyncClient], size: int = 40) -> None:
        self.answered: dict[int, list[str]] = defaultdict(list)
        self.refused: list[str] = []
        self._callers = callers
        self._size = size
        self._next = 0

    async def ask(self, number: int, at: int = 0) -> str:
        """The engine that answered one of them."""
        answer = await self._callers[at].post(CHAT, json=chat(), headers={"x-drivetrain-session": session(number)})
        if answer.status_code != 200:
            self.refused.append(answer.text)
            return "none"
        self.answered[number].append(answer.headers["x-drivetrain-engine"])
        return str(answer.headers["x-drivetrain-engine"])

    async def until(self, number: int, engine: str, at: int = 0) -> None:
        """Watch one of them until that engine answers."""
        async with asyncio.timeout(10):
            while await self.ask(number, at) != engine:
                await asyncio.sleep(0.05)

    async def everybody(self, at: int = 0) -> list[str]:
        """The engine of each, asked at once."""
        return list(await asyncio.gather(*(self.ask(number, at) for number in range(self._size))))

    @asynccontextmanager
    async def talking(self, at_once: int = 16) -> AsyncGenerator[None, None]:
        """So many of them ask all the time, while the block lasts."""
        over = False

        async def talk() -> None:
            while not over:
                self._next += 1
                await self.ask(self._next * 7 % self._size)

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(talk())
            try:
                yield
            finally:
                over = True


async def begun(server: Server, **more: Any) -> str:
    """The id of a rollout to the new engine."""
    fields = {
        "model": "chat",
        "arms": [{"name": "baseline"}, {"name": NEW, "targets": [{"engine": NEW, "model": FAKE}]}],
        "guards": {"false_alarms": 0.001},  # a busy machine is no reason to fail a test
        **more,
    }
    answer = await server.post("/admin/v1/rollouts", fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def stages(*percents: float, least_requests: int = 30) -> list[dict[str, Any]]:
    return [{"percent": percent, "least_s": 0.2, "least_requests": least_requests} for percent in percents]


async def ended(server: Server, id: str) -> Mapping[str, Any]:
    def over(found: Mapping[str, Any]) -> bool:
        return found["state"] in ENDED

    found: Mapping[str, Any] = await server.until(f"/admin/v1/rollouts/{id}", over, within_s=45)
    return found


async def turns(server: Server, id: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = (await server.get(f"/admin/v1/rollouts/{id}/history"))["data"]
    return found


async def test_a_good_version_reaches_everybody_and_nobody_who_has_it_loses_it(tmp_path: Path, pair: Pair) -> None:
    async with replicas(site(tmp_path, pair), pair.old) as (server,), client(server, ANYBODY) as caller:
        id = await begun(server, stages=stages(20, 60, 100))
        crowd = Crowd([caller])
        async with crowd.talking():
            found = await ended(server, id)
        assert (found["state"], found["stage"]) == ("done", 2), found["why"]
        history = await turns(server, id)
        assert [turn["move"] for turn in history] == ["create", "advance", "advance", "finish"]
        assert {turn["actor"] for turn in history[1:]} == {"drivetrain"}
        assert [arm["arm"] for arm in history[1]["evidence"]["arms"]] == ["baseline", NEW]
        assert crowd.refused == []
        for engines in crowd.answered.values():
            assert engines == sorted(engines, reverse=True)  # old, old, …, new, new, …
        await asyncio.sleep(1.0)  # the stated bound for a change to be known everywhere
        assert set(await crowd.everybody()) == {NEW}


SLOW = Stream(frames=openai_frames("chat.completion.chunk"), delay_s=0.5)
OTHER = Stream(frames=openai_frames("chat.completion.chunk", ("No", ".")))


async def fails(pair: Pair) -> None:
    pair.new.script(CHAT, failure("vllm", "failure"))


async def has_no_such_model(pair: Pair) -> None:
    pair.new.script(CHAT, failure("openai", "model"))


async def refuses_everything(pair: Pair) -> None:
    pair.new.script(CHAT, failure("vllm", "tools"))


async def is_slow(pair: Pair) -> None:
    pair.new.script(CHAT, SLOW)


@pytest.mark.parametrize(
    ("becomes", "guard"),
    [
        (fails, "errors"),
        (has_no_such_model, "errors"),
        (refuses_everything, "errors"),
        pytest.param(is_slow, "first_token", marks=pytest.mark.slow),
    ],
)
async def test_a_version_that_fails_or_is_slow_is_taken_back_by_itself(
    tmp_path: Path, pair: Pair, becomes: Callable[[Pair], Any], guard: str
) -> None:
    async with replicas(site(tmp_path, pair), pair.old) as (server,), client(server, ANYBODY) as caller:
        await becomes(pair)
        id = await begun(server, stages=stages(50, 100, least_requests=100_000))
        crowd = Crowd([caller])
        async with crowd.talking():
            found = await ended(server, id)
        assert (found["state"], found["stage"]) == ("rolled_back", 0)
        assert found["why"].startswith(f"{guard}: "), found["why"]
        assert crowd.refused == []  # who met a failure was answered by the baseline's engine
        await asyncio.sleep(1.0)
        assert set(await crowd.everybody()) == {OLD}


async def test_answers_of_a_shadow_that_are_others_end_a_rollout_before_any_caller_sees_one(
    tmp_path: Path, pair: Pair
) -> None:
    pair.new.script(CHAT, OTHER)
    async with replicas(site(tmp_path, pair), pair.old) as (server,), client(server, ANYBODY) as caller:
        shadow = {"percent": 0.0, "shadow": True, "least_requests": 100_000}
        id = await begun(
            server,
            stages=[shadow, *stages(100)],
            shadow={"compare": "exact"},
            guards={"errors": None, "first_token": None, "tokens_per_s": None, "answers": 0.9},
        )
        crowd = Crowd([caller])
        async with crowd.talking():
            found = await ended(server, id)
        assert (found["state"], found["stage"]) == ("rolled_back", 0)
        assert found["why"].startswith("answers: "), found["why"]
        assert {engine for engines in crowd.answered.values() for engine in engines} == {OLD}
        assert pair.new.requests


async def stages_by_hand(place: Site, pair: Pair) -> None:
    """The same callers at each stage on two replicas; then back, from one to the next second."""
    async with replicas(place, pair.old, count=2) as servers, AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(client(server, ANYBODY)) for server in servers]
        crowd = Crowd(callers)
        id = await begun(servers[0], stages=stages(25, 50, 100, least_requests=100_000))
        buckets = [bucket(id, session(number)) for number in range(40)]
        for version, percent in enumerate((25, 50, 100), 1):
            reached = [where < percent * 100 for where in buckets]
            latest = buckets.index(max(where for where in buckets if where < percent * 100))
            for at in (0, 1):
                await crowd.until(latest, NEW, at)
                assert [engine == NEW for engine in await crowd.everybody(at)] == reached
            if percent < 100:
                await servers[1].post(f"/admin/v1/rollouts/{id}/advance", {"version": version})
        told = json.loads(await place.command("rollouts", "rollback", "chat", "--json"))
        assert (told["id"], told["state"]) == (id, "rolled_back")
        await asyncio.sleep(1.0)  # the stated bound
        assert set(await crowd.everybody(0)) == set(await crowd.everybody(1)) == {OLD}
        assert crowd.refused == []
        assert (await turns(servers[1], id))[-1]["move"] == "rollback"


async def test_each_caller_has_one_arm_on_all_replicas_a_stage_adds_callers_and_a_rollback_holds_everywhere(
    tmp_path: Path, pair: Pair
) -> None:
    await stages_by_hand(site(tmp_path, pair), pair)


@pytest.mark.slow
async def test_so_it_is_on_postgres_and_redis(tmp_path: Path, pair: Pair, request: pytest.FixtureRequest) -> None:
    await stages_by_hand(Site(tmp_path, pair, new_database(request), new_redis(request)), pair)


@pytest.mark.slow
async def test_a_key_counts_as_one_caller_whoever_uses_it(tmp_path: Path, pair: Pair) -> None:
    place = site(tmp_path, pair, auth="on")
    async with replicas(place, pair.old) as (server,):
        keys = [await place.key(f"key {number}") for number in range(3)]
        targets = ("--to", f"{NEW}/{FAKE}", "--stages", "50,100")
        await place.command("rollouts", "create", "chat", *targets)
        await asyncio.sleep(1.0)
        for key in keys:
            async with client(server, key) as caller:
                crowd = Crowd([caller], size=20)
                assert len(set(await crowd.everybody())) == 1


async def test_an_experiment_tells_how_its_prompts_do(tmp_path: Path, pair: Pair) -> None:
    place = site(tmp_path, pair)
    async with replicas(place, pair.old) as (server,), client(server, ANYBODY) as caller:
        await server.post("/admin/v1/prompts", {"name": "brief", "text": "Be brief."})
        arms = [{"name": "baseline"}, {"name": "brief", "prompt": "brief@1"}]
        fields = {"model": "chat", "kind": "experiment", "arms": arms, "shares": [1.0, 1.0]}
        id = (await server.post("/admin/v1/rollouts", fields)).json()["id"]
        await asyncio.sleep(1.0)
        crowd = Crowd([caller])
        await crowd.everybody()
        systems = [
            body["messages"][0]["content"]
            for body in (received.json for received in pair.old.requests if received.path == CHAT)
            if body["messages"][0]["role"] == "system"
        ]
        assert set(systems) == {"Be brief."}
        theirs = [number for number in range(40) if bucket(id, session(number)) >= 5_000]
        assert len(systems) == len(theirs)
        rows = [row for row in await place.rows_once(40) if row.prompt_version]
        assert {row.prompt_version for row in rows} == {"brief@1"}
        assert len(rows) == len(systems)
        report = await server.get(f"/admin/v1/rollouts/{id}/report")
        counts = {arm["arm"]: (arm["requests"], arm["failures"]) for arm in report["arms"]["arms"]}
        assert counts == {"baseline": (40 - len(theirs), 0), "brief": (len(theirs), 0)}
        await server.post(f"/admin/v1/rollouts/{id}/finish", {})
        await asyncio.sleep(1.0)
        pair.old.requests.clear()
        await crowd.everybody()
        assert all(received.json["messages"][0]["role"] == "user" for received in pair.old.requests if received.body)
