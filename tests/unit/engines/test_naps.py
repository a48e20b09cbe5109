"""A vLLM server that sleeps when it is idle, and is woken before a request: asked while asleep, it hangs, as here."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drivetrain.engines import EngineSettings
from drivetrain.engines.contract import chat, collect
from drivetrain.engines.openai import OpenAI
from drivetrain.errors import BadRequest, EngineFailed
from drivetrain.types import EmbedRequest, Health, Progress, fold
from tests.fakes import FakeUpstream, Raw, Whole
from tests.fakes.host import NoHost
from tests.fakes.manners import ANSWER, MANNERS, MODEL
from tests.fakes.replies import Reply
from tests.fakes.upstream import Received

pytestmark = pytest.mark.anyio
CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
SLEEP = "/sleep?level=1&mode=wait"


class Sleeper:
    """What vLLM does in its sleep mode."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self.upstream = upstream
        self.asleep = False
        self.work = {"running": 0, "waiting": 0, "done": 0}  # what its metrics tell, with that of others
        upstream.script("/is_sleeping", lambda _: Whole(body={"is_sleeping": self.asleep}))
        upstream.script(SLEEP, self._sleep)
        upstream.script("/sleep?level=2&mode=wait", self._sleep)
        upstream.script("/wake_up", self._wake)
        upstream.script("/metrics", lambda _: Whole(body=self._metrics(), headers={"content-type": "text/plain"}))
        upstream.script(CHAT, self._answer)
        upstream.script(EMBED, self._answer)

    def _sleep(self, _: Received) -> Reply:
        self.asleep = True
        return Whole()

    def _wake(self, _: Received) -> Reply:
        self.asleep = False
        return Whole()

    def _answer(self, request: Received) -> Reply:
        if self.asleep:
            return Raw(then="stall")
        self.work["done"] += 1
        return MANNERS[request.method, request.path](request.json)

    def _metrics(self) -> bytes:
        work = self.work
        return (
            f'vllm:num_requests_running{{engine="0",model_name="m"}} {work["running"]}\n'
            f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {work["waiting"]}\n'
            f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {work["done"] - 1}\n'
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} 1\n'
        ).encode()

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.upstream.requests)

    async def falls_asleep(self) -> None:
        await self.upstream.wait(lambda: self.asleep)


@asynccontextmanager
async def sleeper(*, level: int = 1, idle_s: float = 60.0) -> AsyncIterator[tuple[OpenAI, Sleeper]]:
    async with FakeUpstream() as upstream:
        options = {"sleep_level": level, "sleep_idle_s": idle_s}
        engine = OpenAI("gpu-a", EngineSettings(kind="vllm", url=upstream.url, options=options), NoHost())
        try:
            yield engine, Sleeper(upstream)
        finally:
            await engine.aclose()


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.naps.LEAST_S", 0.01)


async def test_a_sleeping_server_is_woken_before_it_is_asked() -> None:
    async with sleeper() as (engine, server):
        server.asleep = True
        assert fold(await collect(engine, chat(MODEL))).choices[0].text == ANSWER
        assert len((await engine.embed(EmbedRequest(model=MODEL, inputs=("a",)))).vectors) == 1
        assert server.asked("/wake_up") == 1


async def test_callers_who_come_at_once_wake_it_once() -> None:
    async with sleeper() as (engine, server):
        server.asleep = True
        answers = await asyncio.gather(*(collect(engine, chat(MODEL)) for _ in range(5)))
        assert {fold(events).choices[0].text for events in answers} == {ANSWER}
        assert server.asked("/wake_up") == 1


async def test_who_waits_for_it_to_wake_hears_that_he_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.naps.STEP_S", 0.01)
    monkeypatch.setattr("drivetrain.engines.naps.POLL_S", 0.01)
    async with sleeper() as (engine, server):
        server.upstream.script("/is_sleeping", *[Whole(body={"is_sleeping": n < 5}) for n in range(6)])
        events = await collect(engine, chat(MODEL))
        assert events[0] == Progress(stage="loading")
        assert fold(events).choices[0].text == ANSWER


async def test_one_that_another_puts_to_sleep_at_the_same_moment_is_woken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drivetrain.engines.naps.WAKE_S", 0.05)
    monkeypatch.setattr("drivetrain.engines.naps.POLL_S", 0.01)
    async with sleeper() as (engine, server):
        server.asleep = True
        server.upstream.script("/wake_up", Whole(), server._wake)
        assert fold(await collect(engine, chat(MODEL))).choices[0].text == ANSWER
        assert server.asked("/wake_up") == 2


async def test_a_server_that_is_awake_is_only_asked_whether_it_is() -> None:
    async with sleeper() as (engine, server):
        await collect(engine, chat(MODEL))
        assert [request.path for request in server.upstream.requests] == ["/is_sleeping", CHAT]


async def test_an_idle_server_is_put_to_sleep_and_the_next_caller_is_answered() -> None:
    async with sleeper(idle_s=0.1) as (engine, server):
        await collect(engine, chat(MODEL))
        await server.falls_asleep()
        assert await engine.loaded() == []
        assert fold(await collect(engine, chat(MODEL))).choices[0].text == ANSWER
        assert [loaded.model.id for loaded in await engine.loaded()] == [MODEL]


async def test_it_does_not_sleep_while_others_have_work_there() -> None:
    async with sleeper(idle_s=0.02) as (engine, server):
        server.work["running"] = 1
        await collect(engine, chat(MODEL))
        await server.upstream.wait(lambda: server.asked("/metrics") >= 4)
        assert not server.asleep
        server.work["running"] = 0
        await server.falls_asleep()


async def test_it_does_not_sleep_if_others_had_work_since_the_last_look() -> None:
    async with sleeper(idle_s=0.02) as (engine, server):
        await collect(engine, chat(MODEL))

        def busy() -> bool:
            server.work["done"] += 1  # whenever something happens here, somebody else has been answered
            return server.asked("/metrics") >= 4

        await server.upstream.wait(busy)
        assert not server.asleep
        await server.falls_asleep()


async def test_a_request_says_how_long_it_stays_awake() -> None:
    async with sleeper(idle_s=0.02) as (engine, server):
        await engine.load(MODEL, keep_alive_s=-1)  # as for a pinned model
        await engine.load(MODEL, keep_alive_s=0)
        await server.falls_asleep()
        await engine.load(MODEL, keep_alive_s=-1)
        assert not server.asleep
        assert server.asked("/metrics") == 2  # no look since then


async def test_one_that_is_to_sleep_at_once_and_cannot_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drivetrain.engines.naps.LEAST_S", pause_s := 0.2)
    async with sleeper() as (engine, server):
        server.work["running"] = 1
        began_s = asyncio.get_running_loop().time()
        await engine.load(MODEL, keep_alive_s=0)
        await server.upstream.wait(lambda: server.asked("/metrics") >= 3)
        assert asyncio.get_running_loop().time() - began_s >= 2 * pause_s


async def test_unloading_puts_it_to_sleep_once_running_requests_are_done() -> None:
    async with sleeper() as (engine, server):
        batches = engine.generate(chat(MODEL))
        await anext(batches)
        unloading = asyncio.create_task(engine.unload(MODEL))
        await asyncio.sleep(0)
        assert not server.asleep
        await batches.aclose()
        await unloading
        assert server.asleep


async def test_the_second_level_reads_the_weights_again() -> None:
    async with sleeper(level=2) as (engine, server):
        wake = ["/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache"]
        for path in wake[:2]:
            server.upstream.script(path, Whole())
        server.upstream.script(wake[2], server._wake)
        await engine.unload(MODEL)
        assert server.asleep
        await collect(engine, chat(MODEL))
        paths = [request.path for request in server.upstream.requests]
        assert [path for path in paths if path in wake] == wake
        [reload] = [request for request in server.upstream.requests if request.path == "/collective_rpc"]
        assert reload.json == {"method": "reload_weights"}


async def test_a_server_that_cannot_be_woken_fails_its_callers_with_the_reason() -> None:
    async with sleeper() as (engine, server):
        server.asleep = True
        server.upstream.script("/wake_up", Whole(status=500, body={"error": {"message": "no memory"}}))
        with pytest.raises(EngineFailed, match="no memory"):
            await collect(engine, chat(MODEL))


async def test_a_server_that_was_not_started_for_sleep_answers_as_ever() -> None:
    async with sleeper(idle_s=0.02) as (engine, server):
        server.upstream.script("/is_sleeping", Whole(status=404, body={"detail": "Not Found"}))
        assert fold(await collect(engine, chat(MODEL))).choices[0].text == ANSWER
        await engine.unload(MODEL)
        assert server.asked(SLEEP) == 0


async def test_a_sleeping_server_that_we_may_wake_is_ready() -> None:
    async with sleeper() as (engine, server):
        server.asleep = True
        told = Health(live=True, ready=True, awake=False, message="it sleeps, and is woken by a request")
        assert await engine.health() == told


def test_only_vllm_can_sleep() -> None:
    settings = EngineSettings(kind="openai", url="http://box", options={"sleep_level": 1})
    with pytest.raises(BadRequest, match=r"engines.gpu-a.sleep_level: kind 'openai' cannot sleep"):
        OpenAI("gpu-a", settings, NoHost())
