"""The OpenAI engine: addresses, keys, listing, embeddings and health."""

import base64
import struct
from contextlib import aclosing
from typing import Any

import pytest

from drivetrain.engines import Engine, EngineSettings
from drivetrain.engines.openai import OpenAI, split_base
from drivetrain.errors import BadRequest, EngineFailed, EngineOverloaded, EngineUnavailable, Unsupported
from drivetrain.types import Embeddings, EmbedRequest, Health, Model, Request, TextDelta, Usage
from tests.fakes import FakeUpstream, Raw, Stream, Whole
from tests.fakes.host import NoHost
from tests.fakes.manners import MODEL, PROMPT_TOKENS
from tests.fakes.replies import sse


def open_engine(url: str | None, *, api_key: str | None = None, **options: Any) -> Engine:
    return OpenAI("gpu-a", EngineSettings(kind="openai", url=url, api_key=api_key, options=options), NoHost())


@pytest.mark.parametrize(
    ("url", "root", "api"),
    [
        ("http://box:8000", "http://box:8000", "/v1"),
        ("http://box:8000/", "http://box:8000/", "/v1"),
        ("http://box:8000/v1", "http://box:8000", "/v1"),
        ("http://box:8000/v1/", "http://box:8000", "/v1"),
        ("http://box/gpu", "http://box/gpu", "/v1"),
        ("http://box/gpu/v1", "http://box/gpu", "/v1"),
        ("https://api.example.com/v1beta/openai", "https://api.example.com", "/v1beta/openai"),
        ("http://v1/v1", "http://v1", "/v1"),
        ("http://v1.example.com", "http://v1.example.com", "/v1"),
        ("unix:/run/v1/a.sock", "unix:/run/v1/a.sock", "/v1"),
    ],
)
def test_a_base_url_may_name_the_version_or_not(url: str, root: str, api: str) -> None:
    assert split_base(url) == (root, api)


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/proxied", "/proxied/v1"])
async def test_every_form_of_a_base_url_reaches_the_models(base: str) -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/proxied/v1/models", Whole(body={"data": [{"id": MODEL, "created": 1700000000}]}))
        engine = open_engine(upstream.url + base)
        assert await engine.models() == [Model(id=MODEL, engine="gpu-a", created_s=1700000000)]
        await engine.aclose()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (None, {}, "engines.gpu-a.url is missing"),
        ("", {}, "engines.gpu-a.url is missing"),
        ("box:8000", {}, "engines.gpu-a: URL 'box:8000' must look like"),
        ("http://box", {"header": {}}, "engines.gpu-a: Object contains unknown field `header`"),
        ("http://box", {"idle_s": 0}, "engines.gpu-a: Expected `float` > 0.0 - at `$.idle_s`"),
        ("http://box", {"headers": {"host": "x"}}, "engines.gpu-a: header 'host' may not be set"),
        (
            "http://box",
            {"ca_file": "/nonexistent/ca.pem"},
            "engines.gpu-a.ca_file: '/nonexistent/ca.pem' cannot be used",
        ),
    ],
)
def test_settings_that_cannot_be_name_the_key_at_fault(url: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        open_engine(url, **options)
    assert caught.value.message.startswith(message)


async def test_the_key_and_further_headers_go_with_every_request() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url, api_key="k", headers={"x-org": "o"})
        await engine.models()
        await engine.embed(EmbedRequest(model=MODEL, inputs=("a",)))
        await engine.health()
        assert {(r.headers["authorization"], r.headers["x-org"]) for r in upstream.requests} == {("Bearer k", "o")}
        await engine.aclose()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_content_is_not_gathered_and_what_follows_is(stream: bool) -> None:
    said = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("Hello", " big", " world")]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    async with FakeUpstream() as upstream:
        upstream.script("/v1/chat/completions", Stream(frames=sse(*said, end, "[DONE]"), pause_s=0.02))
        engine = open_engine(upstream.url)
        asked = Request(model=MODEL, messages=(), stream=stream, gather_s=0.0 if stream else 60.0)
        async with aclosing(engine.generate(asked)) as batches:
            texts = ["".join(e.text for e in events if isinstance(e, TextDelta)) async for events in batches]
        assert [text for text in texts if text] == (["Hello", " big", " world"] if stream else ["Hello", " big world"])
        await engine.aclose()


@pytest.mark.parametrize(("said", "believed_s"), [("7", 7.0), ("9" * 30, 86_400.0), ("9" * 400, 86_400.0)])
async def test_an_engine_is_believed_to_want_peace_for_a_day_at_most(said: str, believed_s: float) -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/v1/embeddings", Whole(status=429, body={"error": "later"}, headers={"retry-after": said}))
        engine = open_engine(upstream.url)
        with pytest.raises(EngineOverloaded) as caught:
            await engine.embed(EmbedRequest(model=MODEL, inputs=("a",)))
        assert caught.value.retry_after_s == believed_s
        await engine.aclose()


VECTORS = ([0.5, -0.25, 0.0], [0.5, -0.25, 1.0])


async def test_embeddings_are_vectors_whichever_way_the_engine_writes_them() -> None:
    encoded = [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in VECTORS]
    data = [{"index": index, "embedding": text} for index, text in enumerate(encoded)]
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        request = EmbedRequest(model=MODEL, inputs=("a", "b"))
        expected = Embeddings(vectors=VECTORS, usage=Usage(prompt=PROMPT_TOKENS))
        assert await engine.embed(request) == expected
        upstream.script("/v1/embeddings", Whole(body={"data": data[::-1], "usage": usage}))
        assert await engine.embed(request) == expected
        await engine.aclose()


async def test_a_missing_embedding_is_the_engines_failure() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/v1/embeddings", Whole(body={"data": [{"index": 0, "embedding": [1.0]}]}))
        engine = open_engine(upstream.url)
        with pytest.raises(EngineFailed, match="sent 1 embeddings for 2 inputs"):
            await engine.embed(EmbedRequest(model=MODEL, inputs=("a", "b")))
        await engine.aclose()


async def test_an_engine_without_embeddings_says_so() -> None:
    body = {
        "error": {"code": 501, "message": "This server does not support embeddings.", "type": "not_supported_error"}
    }
    async with FakeUpstream() as upstream:
        upstream.script("/v1/embeddings", Whole(status=501, body=body))
        engine = open_engine(upstream.url)
        with pytest.raises(Unsupported):
            await engine.embed(EmbedRequest(model=MODEL, inputs=("a",)))
        await engine.aclose()


def status(code: int) -> Whole:
    return Whole(status=code, body={"error": {"message": "x", "type": "y", "code": None, "param": None}})


@pytest.mark.parametrize(
    ("health", "models", "expected"),
    [
        (200, 500, Health(live=True, ready=True)),
        (503, 200, Health(live=True, ready=False, message="it answered 503 when asked for its state")),
        (404, 200, Health(live=True, ready=True)),
        (401, 401, Health(live=True, ready=False, message="it refused our api_key (401)")),
        (404, 404, Health(live=True, ready=True, message="it does not tell its state")),
        (500, 500, Health(live=True, ready=False, message="it answered 500 when asked for its state")),
    ],
)
async def test_health_is_told_by_free_probes(health: int, models: int, expected: Health) -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/health", status(health))
        upstream.script("/v1/models", status(models))
        engine = open_engine(upstream.url)
        assert await engine.health() == expected
        assert {received.method for received in upstream.requests} == {"GET"}
        await engine.aclose()


async def test_health_of_a_mute_engine_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines._remote.PROBE_S", 0.05)
    async with FakeUpstream() as upstream:
        upstream.script("/health", Raw(then="stall"))
        engine = open_engine(upstream.url)
        health = await engine.health()
        assert (health.live, health.ready) == (False, False)
        await engine.aclose()


async def test_there_is_nothing_to_load_or_unload() -> None:
    async with FakeUpstream() as upstream:
        engine = open_engine(upstream.url)
        await engine.load("any")
        await engine.unload("any")
        assert (await engine.loaded(), upstream.requests) == ((), [])
        await engine.aclose()


async def test_a_server_that_lists_nothing_readable_has_failed() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/v1/models", Whole(body=b"<html>"))
        engine = open_engine(upstream.url)
        with pytest.raises(EngineFailed):
            await engine.models()
        upstream.refuse()
        await engine.aclose()
        with pytest.raises(EngineUnavailable):
            await engine.models()
