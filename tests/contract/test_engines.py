"""One suite for every engine, and one more for those that speak HTTP to an upstream that misbehaves."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from drivetrain import errors as e
from drivetrain.dialects import Surface, ollama, openai
from drivetrain.engines import Engine, EngineSettings
from drivetrain.engines.contract import EngineContract, Subject, answer_of, bare, chat, collect, idle
from drivetrain.engines.ollama import Ollama
from drivetrain.engines.openai import OpenAI
from drivetrain.types import Event, Finished, Request, TextDelta, Usage
from tests.fakes import FakeUpstream, Raw, Reply, Stream, Whole, failure, ndjson, sse
from tests.fakes.host import NoHost
from tests.fakes.manners import (
    ANSWER,
    ENDLESS,
    MISSING,
    MODEL,
    PROMPT_TOKENS,
    WORDS,
    ollama_frames,
    openai_frames,
)


def open_openai(url: str, **options: Any) -> Engine:
    return OpenAI("e", EngineSettings(kind="openai", url=url, options=options), NoHost())


def open_ollama(url: str, **options: Any) -> Engine:
    return Ollama("e", EngineSettings(kind="ollama", url=url, options=options), NoHost())


def subject_of(engine: Engine, upstream: FakeUpstream, *surfaces: Surface) -> Subject:
    async def running() -> int:
        return upstream.active

    return Subject(
        engine=engine,
        model=MODEL,
        running=running,
        talkative=ENDLESS,
        missing=MISSING,
        answer=ANSWER,
        surfaces=surfaces,
        embeds=True,
        aborts=200,
    )


class TestOpenAI(EngineContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with FakeUpstream() as upstream:
            engine = open_openai(upstream.url)
            yield subject_of(engine, upstream, openai.CHAT, openai.COMPLETIONS)
            await engine.aclose()


class TestOllama(EngineContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with FakeUpstream() as upstream:
            engine = open_ollama(upstream.url)
            yield subject_of(engine, upstream, ollama.CHAT, ollama.GENERATE)
            await engine.aclose()


# --- upstreams that misbehave -----------------------------------------------------------------------------------------


class Way:
    """One way of asking an engine: which adapter, by which route, answered in which frames."""

    def __init__(
        self, open: Callable[..., Engine], path: str, ask: Callable[[str], Request], frames: tuple[bytes, ...]
    ) -> None:
        self.open = open
        self.path = path
        self.ask = ask
        self.frames = frames

    @asynccontextmanager
    async def pair(self, *replies: Reply, **options: Any) -> AsyncIterator[tuple[FakeUpstream, Engine]]:
        async with FakeUpstream() as upstream:
            if replies:
                upstream.script(self.path, *replies)
            engine = self.open(upstream.url, **options)
            try:
                yield upstream, engine
            finally:
                await engine.aclose()


WAYS = {
    "openai chat": Way(open_openai, "/v1/chat/completions", chat, openai_frames("chat.completion.chunk")),
    "openai completions": Way(open_openai, "/v1/completions", bare, openai_frames("text_completion")),
    "ollama chat": Way(open_ollama, "/api/chat", chat, ollama_frames("chat")),
    "ollama generate": Way(open_ollama, "/api/generate", bare, ollama_frames("generate")),
}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


USAGE = Usage(prompt=PROMPT_TOKENS, completion=len(WORDS))


async def test_an_answer_cut_into_single_bytes_is_the_same_answer(way: Way) -> None:
    frames = [bytes([byte]) for byte in b"".join(way.frames)]
    async with way.pair(Stream(frames=frames, pause_s=0.00001)) as (_, engine):
        answer = await answer_of(engine, way.ask(MODEL))
    assert (answer.choices[0].text, answer.choices[0].reason, answer.usage) == (ANSWER, "stop", USAGE)


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_stream_cut_at_any_byte_fails_unless_all_was_said(way: Way, then: Any) -> None:
    """One connection per offset: a cut one cannot be used again. What follows the finish are accounts."""
    wire = b"".join(way.frames)
    finish = next(at for at, frame in enumerate(way.frames) if b'"stop"' in frame)
    said = b"".join(way.frames[: finish + 1])
    said_at = len(said.rstrip())  # the terminal frame may lack its line end
    async with way.pair() as (upstream, engine):
        for cut in range(1, len(wire), 3):
            upstream.script(way.path, Stream(frames=way.frames, cut_after=cut, then=then))
            events: list[Event] = []
            try:
                async with aclosing(engine.generate(way.ask(MODEL))) as batches:
                    async for batch in batches:
                        events.extend(batch)
            except e.EngineFailed:
                assert not [event for event in events if isinstance(event, Finished)], cut
                assert cut < len(said), cut
            else:
                assert cut >= said_at, cut
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert ANSWER.startswith(text)
        await upstream.wait(lambda: upstream.open == 0)


async def test_an_error_inside_a_stream_comes_after_what_was_said(way: Way) -> None:
    broken = (
        {"error": {"message": "slot failed", "type": "server_error"}} if "v1" in way.path else {"error": "slot failed"}
    )
    frame = sse(broken)[0] if "v1" in way.path else ndjson(broken)[0]
    async with way.pair(Stream(frames=[*way.frames[:3], frame])) as (_, engine):
        events: list[Event] = []
        with pytest.raises(e.EngineFailed, match="slot failed"):
            async with aclosing(engine.generate(way.ask(MODEL))) as batches:
                async for batch in batches:
                    events.extend(batch)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) != ""


async def test_the_end_is_told_at_once_and_the_connection_used_again_if_its_end_comes(way: Way) -> None:
    async with way.pair(Stream(frames=way.frames, pause_s=0.005)) as (upstream, engine):
        for _ in range(3):
            assert isinstance((await collect(engine, way.ask(MODEL)))[-1], Finished)
        assert upstream.accepted == 1


async def test_an_upstream_that_does_not_end_its_stream_costs_a_moment_and_the_connection(way: Way) -> None:
    stuck = Stream(frames=way.frames, cut_after=len(b"".join(way.frames)), then="stall")
    async with way.pair(stuck) as (upstream, engine):
        with anyio.fail_after(2):
            assert isinstance((await collect(engine, way.ask(MODEL)))[-1], Finished)
        await upstream.requests[0].wait_closed()


async def test_silence_is_a_timeout_that_closes_the_connection(way: Way) -> None:
    async with way.pair(Raw(then="stall"), first_byte_s=0.1) as (upstream, engine):
        with pytest.raises(e.EngineTimeout):
            await collect(engine, way.ask(MODEL))
        await upstream.requests[0].wait_closed()


async def test_a_pause_in_an_answer_is_a_timeout_that_closes_the_connection(way: Way) -> None:
    paused = Stream(frames=way.frames, cut_after=len(way.frames[0]), then="stall")
    async with way.pair(paused, idle_s=0.1) as (upstream, engine):
        with pytest.raises(e.EngineTimeout):
            await collect(engine, way.ask(MODEL))
        await upstream.requests[0].wait_closed()


async def test_nobody_there_is_unavailable_and_not_live(way: Way) -> None:
    async with way.pair() as (upstream, engine):
        upstream.refuse()
        with pytest.raises(e.EngineUnavailable, match="engine 'e' cannot be reached"):
            await collect(engine, way.ask(MODEL))
        health = await engine.health()
        assert (health.live, health.ready) == (False, False)


async def test_a_page_instead_of_an_answer_is_the_engines_failure(way: Way) -> None:
    page = Whole(body=b"<html><body>It works!</body></html>", headers={"content-type": "text/html"})
    async with way.pair(page) as (_, engine):
        with pytest.raises(e.EngineFailed):
            await collect(engine, way.ask(MODEL))


async def test_a_redirect_is_reported_and_not_followed(way: Way) -> None:
    moved = Whole(status=307, headers={"location": "https://elsewhere.example/"})
    async with way.pair(moved) as (upstream, engine):
        with pytest.raises(e.EngineFailed, match=r"points to https://elsewhere\.example/ \(307\)"):
            await collect(engine, way.ask(MODEL))
        assert len(upstream.requests) == 1


ERRORS = [
    (open_openai, "openai", "model", e.ModelNotFound),
    (open_openai, "openai", "key", e.EngineFailed),
    (open_openai, "openai", "rate", e.EngineOverloaded),
    (open_openai, "llama-server", "context", e.ContextOverflow),
    (open_openai, "llama-server", "loading", e.EngineUnavailable),
    (open_openai, "llama-server", "failure", e.EngineFailed),
    (open_openai, "vllm", "model", e.ModelNotFound),
    (open_openai, "vllm", "busy", e.EngineOverloaded),
    (open_openai, "vllm", "failure", e.EngineFailed),
    (open_openai, "sglang", "busy", e.EngineOverloaded),
    (open_openai, "tgi", "busy", e.EngineOverloaded),
    (open_ollama, "ollama", "model", e.ModelNotFound),
    (open_ollama, "ollama", "busy", e.EngineOverloaded),
    (open_ollama, "ollama", "tools", e.Unsupported),
    (open_ollama, "ollama", "failure", e.LoadFailed),
]


@pytest.mark.parametrize(("open", "server", "situation", "expected"), ERRORS)
async def test_an_error_answer_becomes_the_error_it_means(
    open: Callable[..., Engine], server: str, situation: str, expected: type[e.DrivetrainError]
) -> None:
    async with FakeUpstream() as upstream:
        for path in ("/v1/chat/completions", "/api/chat"):
            upstream.script(path, failure(server, situation, {"retry-after": "7"}))
        engine = open(upstream.url)
        with pytest.raises(e.DrivetrainError) as caught:
            await collect(engine, chat(MODEL))
        assert type(caught.value) is expected
        assert (caught.value.message != "", caught.value.retry_after_s) == (True, 7.0)
        with pytest.raises(expected):
            await collect(engine, chat(MODEL))
        assert upstream.accepted == 1  # an error answer leaves the connection usable
        await engine.aclose()


async def test_a_thousand_random_aborts_leak_no_connection(way: Way) -> None:
    chance = random.Random(3)
    async with way.pair(Stream(frames=way.frames, pause_s=0.0005)) as (upstream, engine):

        async def abort() -> None:
            with anyio.move_on_after(chance.random() * 0.012):
                await collect(engine, way.ask(MODEL))

        for _ in range(32):
            async with asyncio.TaskGroup() as group:
                for _ in range(32):
                    group.create_task(abort())
        await upstream.wait(lambda: upstream.active == 0)
        assert (await answer_of(engine, way.ask(MODEL))).choices[0].text == ANSWER
        await engine.aclose()
        await upstream.wait(lambda: upstream.open == 0)


async def test_two_instances_of_a_kind_do_not_share_anything() -> None:
    async with FakeUpstream() as one, FakeUpstream() as other:
        engines = [open_openai(one.url), open_openai(other.url)]
        for engine in engines:
            await collect(engine, chat(MODEL))
        assert (len(one.requests), len(other.requests)) == (1, 1)
        await engines[0].aclose()
        assert isinstance((await collect(engines[1], chat(MODEL)))[-1], Finished)
        await engines[1].aclose()


async def test_the_suite_notices_an_engine_that_works_on_for_nobody() -> None:
    async with FakeUpstream() as upstream:
        engine = open_openai(upstream.url)
        subject = subject_of(engine, upstream)
        task = asyncio.ensure_future(collect(engine, chat(ENDLESS)))
        await upstream.wait(lambda: upstream.active == 1)
        with pytest.raises(TimeoutError):
            await idle(subject, within_s=0.05)
        task.cancel()
        await idle(subject)
        await engine.aclose()
