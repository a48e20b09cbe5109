"""The Ollama engine: which route a request takes, listing, loading, embeddings and health."""

from datetime import datetime
from typing import Any

import pytest

from drivetrain.dialects import ollama, openai
from drivetrain.engines import Engine, EngineSettings
from drivetrain.engines.contract import bare, chat, collect
from drivetrain.engines.ollama import Ollama
from drivetrain.errors import BadRequest, EngineFailed, EngineOverloaded, LoadFailed, ModelNotFound
from drivetrain.types import Embeddings, EmbedRequest, Health, Loaded, Model, Request, Usage
from tests.fakes import FakeUpstream, Raw, Whole, failure
from tests.fakes.host import NoHost
from tests.fakes.manners import DIGEST, MISSING, MODEL, PROMPT_TOKENS, VERSION


def open_engine(url: str | None, **options: Any) -> Engine:
    return Ollama("box", EngineSettings(kind="ollama", url=url, options=options), NoHost())


def through(surface: Any, request: Request) -> Request:
    decoded: Request = surface.decode_request(surface.encode_request(request))
    return decoded


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (chat(MODEL), "/api/chat"),
        (bare(MODEL), "/api/generate"),
        (through(openai.CHAT, chat(MODEL)), "/api/chat"),
        (through(openai.COMPLETIONS, bare(MODEL)), "/api/generate"),
        (through(ollama.CHAT, chat(MODEL)), "/api/chat"),
        (through(ollama.GENERATE, chat(MODEL)), "/api/generate"),
    ],
)
async def test_a_request_takes_the_route_it_came_by_or_the_one_that_fits(request_: Request, path: str) -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        await collect(engine, request_)
        assert [received.path for received in upstream.requests] == [path]
        assert upstream.requests[0].json["stream"] is True
        await engine.aclose()


def test_a_missing_url_names_the_key() -> None:
    with pytest.raises(BadRequest, match=r"^engines\.box\.url is missing"):
        open_engine(None)


FAKE = Model(
    id="fake:latest",
    engine="box",
    capabilities=frozenset({"completion", "tools"}),
    context_length=8192,
    embedding_length=576,
    created_s=1767323045,
    size_bytes=98_000_000,
    digest=DIGEST,
    format="gguf",
    family="llama",
    parameter_size="134.52M",
    quantization="Q4_1",
)


async def test_models_are_listed_with_what_show_tells_of_them_and_shown_once() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        assert await engine.models() == [FAKE]
        assert await engine.models() == [FAKE]
        assert [received.path for received in upstream.requests] == ["/api/tags", "/api/show", "/api/tags"]
        await engine.aclose()


async def test_what_a_new_server_lists_is_not_asked_again() -> None:
    tag = {"name": "a:latest", "model": "a:latest", "digest": DIGEST, "size": 1, "capabilities": ["embedding"]}
    async with FakeUpstream() as upstream:
        upstream.script("/api/tags", Whole(body={"models": [tag]}))
        engine = open_engine(upstream.url)
        [model] = await engine.models()
        assert (model.capabilities, len(upstream.requests)) == (frozenset({"embedding"}), 1)
        await engine.aclose()


async def test_a_model_that_cannot_be_shown_is_listed_all_the_same() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/api/show", failure("ollama", "model"))
        engine = open_engine(upstream.url)
        assert [model.id for model in await engine.models()] == ["fake:latest"]
        await engine.aclose()


async def test_loaded_models_are_told_with_their_memory_and_expiry() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        [loaded] = await engine.loaded()
        assert loaded == Loaded(
            model=loaded.model,
            size_bytes=150_000_000,
            vram_bytes=120_000_000,
            context_length=4096,
            expires_s=datetime.fromisoformat("2026-01-02T03:09:05.5+01:00").timestamp(),
        )
        assert (loaded.model.id, loaded.model.engine) == ("fake:latest", "box")
        await engine.aclose()


async def test_loading_and_unloading_go_by_generate() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        await engine.load(MODEL)
        await engine.load(MODEL, keep_alive_s=-1, options={"num_ctx": 512})
        await engine.load(MODEL, keep_alive_s=0)
        await engine.unload(MODEL)
        await engine.unload(MISSING)
        assert [(received.path, received.json) for received in upstream.requests] == [
            ("/api/generate", {"model": MODEL, "stream": False}),
            ("/api/generate", {"model": MODEL, "stream": False, "keep_alive": -1, "options": {"num_ctx": 512}}),
            ("/api/generate", {"model": MODEL, "stream": False}),
            ("/api/generate", {"model": MODEL, "stream": False, "keep_alive": 0}),
            ("/api/generate", {"model": MISSING, "stream": False, "keep_alive": 0}),
        ]
        await engine.aclose()


async def test_a_model_that_only_embeds_is_loaded_by_embedding_nothing() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/api/generate", Whole(status=400, body={"error": '"fake" does not support generate'}))
        engine = open_engine(upstream.url)
        await engine.load(MODEL, keep_alive_s=60)
        body = upstream.requests[1].json
        assert (upstream.requests[1].path, body["input"], body["keep_alive"]) == ("/api/embed", [], 60)
        await engine.aclose()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (failure("ollama", "failure"), LoadFailed),
        (failure("ollama", "busy"), EngineOverloaded),
        (failure("ollama", "model"), ModelNotFound),
        (Whole(status=500, body={"error": "something odd"}), LoadFailed),
    ],
)
async def test_a_failed_load_says_why(reply: Whole, expected: type[Exception]) -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/api/generate", reply)
        engine = open_engine(upstream.url)
        with pytest.raises(expected) as caught:
            await engine.load(MODEL)
        assert reply.body["error"] in str(caught.value)
        await engine.aclose()


async def test_embeddings_come_one_per_input() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        request = EmbedRequest(model=MODEL, inputs=("a", "b"), dimensions=3)
        expected = Embeddings(vectors=([0.5, -0.25, 0.0], [0.5, -0.25, 1.0]), usage=Usage(prompt=PROMPT_TOKENS))
        assert await engine.embed(request) == expected
        upstream.script("/api/embed", Whole(body={"embeddings": [[1.0]]}))
        with pytest.raises(EngineFailed, match="sent 1 embeddings for 2 inputs"):
            await engine.embed(request)
        await engine.aclose()


async def test_health_tells_version_and_load() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        assert await engine.health() == Health(live=True, ready=True, message=f"version {VERSION}, models loaded: 1")
        upstream.script("/api/version", Whole(body=b"<html>"))
        assert (await engine.health()).message.startswith("it is no Ollama server")
        upstream.script("/api/version", Whole(status=401, body={"error": "unauthorized"}))
        health = await engine.health()
        assert (health.live, health.ready) == (True, False)
        upstream.script("/api/version", Raw(then="close"))
        assert not (await engine.health()).ready
        await engine.aclose()
