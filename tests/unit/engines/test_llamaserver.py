"""A llama-server in its router mode: models that are loaded and unloaded by name."""

from typing import Any

import pytest

from drivetrain.engines import EngineSettings
from drivetrain.engines._remote import open_upstream
from drivetrain.engines.llamacpp import embedding
from drivetrain.engines.openai import OpenAI
from drivetrain.errors import LoadFailed, ModelNotFound
from drivetrain.types import EmbedRequest
from tests.fakes import FakeUpstream, Whole
from tests.fakes.host import NoHost

pytestmark = pytest.mark.anyio


def listed(**models: str) -> Whole:
    data: list[dict[str, Any]] = [{"id": id, "status": {"value": value}} for id, value in models.items()]
    return Whole(body={"data": data})


def engine_at(upstream: FakeUpstream) -> OpenAI:
    return OpenAI("box", EngineSettings(kind="llama-server", url=upstream.url), NoHost())


async def test_a_model_is_loaded_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines.llamaserver.POLL_S", 0.0)
    async with FakeUpstream() as upstream:
        upstream.script("/models", listed(a="unloaded", b="loaded"), listed(a="loading"), listed(a="loaded"))
        upstream.script("/models/load", Whole(body={"success": True}))
        engine = engine_at(upstream)
        await engine.load("a")
        assert [(request.method, request.path) for request in upstream.requests] == [
            ("GET", "/models"),
            ("POST", "/models/load"),
            ("GET", "/models"),
            ("GET", "/models"),
        ]
        assert upstream.requests[1].json == {"model": "a"}
        await engine.aclose()


async def test_one_that_is_in_memory_is_left_alone_and_one_that_is_not_is_none_to_unload() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/models", listed(a="loaded", b="unloaded"))
        engine = engine_at(upstream)
        await engine.load("a")
        await engine.unload("b")
        assert {request.method for request in upstream.requests} == {"GET"}
        assert [loaded.model.id for loaded in await engine.loaded()] == ["a"]
        upstream.script("/models/unload", Whole(body={"success": True}))
        await engine.unload("a")
        assert upstream.requests[-1].json == {"model": "a"}
        await engine.aclose()


async def test_a_load_that_fails_says_so() -> None:
    async with FakeUpstream() as upstream:
        failed = Whole(body={"data": [{"id": "a", "status": {"value": "unloaded", "failed": True, "exit_code": 1}}]})
        upstream.script("/models", listed(a="unloaded"), failed)
        upstream.script("/models/load", Whole(body={"success": True}))
        engine = engine_at(upstream)
        with pytest.raises(LoadFailed, match=r"'a' was not loaded: it is unloaded \(exit code 1\)"):
            await engine.load("a")
        with pytest.raises(ModelNotFound, match="the server has a"):
            await engine.load("c")
        await engine.aclose()


async def test_a_server_with_one_model_has_nothing_to_load() -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/models", Whole(body={"data": [{"id": "a"}]}))
        engine = engine_at(upstream)
        await engine.load("a")
        await engine.unload("a")
        assert await engine.loaded() == []
        await engine.aclose()


@pytest.mark.parametrize("kind", ["llama-server", "openai", "llamacpp"])
async def test_vectors_as_long_as_the_model_makes_them_are_asked_of_llama_cpp_only(kind: str) -> None:
    async with FakeUpstream() as upstream:
        upstream.script("/v1/embeddings", Whole(body={"data": [{"index": 0, "embedding": [3.0, 4.0]}]}))
        engine = OpenAI("box", EngineSettings(kind=kind, url=upstream.url), NoHost())
        server = open_upstream("box", EngineSettings(kind=kind), upstream.url)
        for normalised in (False, True):
            request = EmbedRequest(model="m", inputs=("a",), normalised=normalised)
            asked = embedding.embed(server, request, context=9) if kind == "llamacpp" else engine.embed(request)
            assert (await asked).vectors == ([3.0, 4.0],)
        await engine.aclose()
        await server.aclose()
        sent = [request.json.get("embd_normalize") for request in upstream.requests]
        assert sent == [None if kind == "openai" else -1, None]
