"""The embedded engine with a model whose experts are streamed: what it does with any, and what only streaming has."""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from drivetrain import gguf
from drivetrain.dialects import openai
from drivetrain.engines.contract import EngineContract, Subject
from drivetrain.engines.expertstream import native, page, plan
from drivetrain.engines.llamacpp import LlamaCpp
from drivetrain.errors import EngineFailed, LoadFailed, Unsupported
from drivetrain.types import (
    Completion,
    EmbedRequest,
    JsonSchema,
    Loaded,
    ModelSpec,
    Request,
    Response,
    Sampling,
    Tool,
    ToolCallStart,
    fold,
)
from tests.e2e.servers import COMMAND, Server, serving
from tests.e2e.test_llamacpp import ask, collect, contract_subject, engine_on, until, worker_of, workers
from tests.fakes.host import ShelfHost
from tests.moe.models import write_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(native.missing() is not None, reason=f"{native.missing()}"),
]
SETTINGS = {"num_ctx": 512, "n_parallel": 2, "cache_ram": 0, "expertstream": "on", "expert_budget": "1MB"}
ROME = msgspec.Raw(b'{"type":"object","properties":{"city":{"enum":["Rome"]}},"required":["city"]}')
PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moe") / "tiny.gguf", "qwen3moe", "Q8_0")


def spec(weights: Path, id: str = "moe", **settings: Any) -> ModelSpec:
    return ModelSpec(id=id, weights=str(weights), settings=SETTINGS | settings)


def complete(prompt: tuple[int, ...], *, model: str = "moe", max_tokens: int = 8) -> Request:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, seed=1)
    return Request(model=model, completion=Completion(prompts=(prompt,)), sampling=sampling, stream=True)


def tokens(count: int, *, step: int = 1) -> tuple[int, ...]:
    return tuple(1 + i * step % 250 for i in range(count))


async def answer(engine: LlamaCpp, request: Request) -> Response:
    return fold(await collect(engine, request))


def page_of(loaded: Loaded) -> Path:
    return Path(loaded.address.removeprefix("unix:")).with_suffix(".page")


def seen(loaded: Loaded) -> page.Page:
    found = page.read(page_of(loaded))
    assert found
    return found


# --- all that the engine does -----------------------------------------------------------------------------------------


class TestAnswers:
    @pytest.fixture(scope="class")
    async def engine(self, tmp_path_factory: pytest.TempPathFactory, weights: Path) -> AsyncIterator[LlamaCpp]:
        host = ShelfHost(tmp_path_factory.mktemp("home"), spec(weights, chat_template=PLAIN, num_ctx=2048))
        async with engine_on(host) as engine:
            await engine.load("moe")
            yield engine

    async def test_an_answer_tells_what_it_cost_in_experts(self, engine: LlamaCpp) -> None:
        told = (await answer(engine, complete(tokens(20)))).experts
        assert told
        assert told.tokens == 20 + 7
        assert told.misses > 0
        assert told.read_bytes >= told.misses * told.total_bytes // (3 * 16)
        assert told.resident_bytes <= told.budget_bytes < told.total_bytes

    async def test_a_grammar_holds(self, engine: LlamaCpp) -> None:
        body = {
            "model": "moe",
            "stream": True,
            "messages": [{"role": "user", "content": "Say hello."}],
            "grammar": 'root ::= "grammar-held"',
        }
        request = openai.CHAT.decode_request(msgspec.json.encode(body))
        assert (await answer(engine, request)).choices[0].text == "grammar-held"

    async def test_a_json_schema_holds(self, engine: LlamaCpp) -> None:
        text = (await answer(engine, ask("Where?", model="moe", output=JsonSchema(schema=ROME), max_tokens=64))).choices
        assert msgspec.json.decode(text[0].text) == {"city": "Rome"}

    async def test_a_tool_is_called(self, engine: LlamaCpp) -> None:
        tools = (Tool(name="get_time", parameters=ROME),)
        wish = ask("Hi.", model="moe", tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=400)
        events = await collect(engine, wish)
        assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["get_time"]
        assert msgspec.json.decode(fold(events).choices[0].tool_calls[0].arguments) == {"city": "Rome"}

    async def test_requests_side_by_side_are_all_answered(self, engine: LlamaCpp) -> None:
        requests = [complete(tokens(5 + 9 * i, step=7 + i), max_tokens=6) for i in range(4)]
        answers = await asyncio.gather(*(answer(engine, request) for request in requests))
        assert [(one.usage.prompt, one.usage.completion) for one in answers] == [(5, 6), (14, 6), (23, 6), (32, 6)]

    async def test_it_takes_no_more_memory_than_it_says(self, engine: LlamaCpp) -> None:
        await answer(engine, complete(tokens(1500)))
        [loaded] = await engine.loaded()
        assert worker_of(loaded).memory_info().rss < loaded.size_bytes


class TestContract(EngineContract):
    @pytest.fixture(scope="class")
    async def subject(self, tmp_path_factory: pytest.TempPathFactory, weights: Path) -> AsyncIterator[Subject]:
        many = spec(weights, num_ctx=4096, n_parallel=4, embedding=True)
        async with contract_subject(ShelfHost(tmp_path_factory.mktemp("home"), many), "moe") as subject:
            yield subject


# --- when to stream ---------------------------------------------------------------------------------------------------


async def test_the_same_answer_as_without_streaming(tmp_path: Path, weights: Path) -> None:
    same = {"num_batch": 64, "cache_prompt": False, "embedding": False}
    on, off = spec(weights, "on", **same), spec(weights, "off", **same, expertstream="off")
    async with engine_on(ShelfHost(tmp_path, on, off)) as engine:
        streamed = await answer(engine, complete(tokens(100), model="on", max_tokens=24))
        stock = await answer(engine, complete(tokens(100), model="off", max_tokens=24))
        assert streamed.choices == stock.choices
        assert (streamed.experts is None, stock.experts is None) == (False, True)


async def test_a_model_that_fits_is_not_streamed_and_one_that_does_not_is(tmp_path: Path, weights: Path) -> None:
    host = ShelfHost(tmp_path, spec(weights, expertstream="auto", expert_budget="auto"))
    async with engine_on(host) as engine:
        await engine.load("moe")
        [fits] = await engine.loaded()
        assert fits.experts is None
    async with engine_on(host, memory_bytes=fits.size_bytes - 1) as engine:
        await engine.load("moe")
        [streamed] = await engine.loaded()
        assert streamed.experts


async def test_the_environment_counts_above_all_settings(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, setting, streams in (("off", "on", False), ("on", "off", True)):
        monkeypatch.setenv(plan.SWITCH, word)
        async with engine_on(ShelfHost(tmp_path, spec(weights, expertstream=setting))) as engine:
            await engine.load("moe")
            assert [loaded.experts is not None for loaded in await engine.loaded()] == [streams]


async def test_a_model_in_several_files_streams(tmp_path: Path) -> None:
    first = write_model(tmp_path / "split.gguf", "qwen3moe", "Q8_0", files=3)
    whole = write_model(tmp_path / "whole.gguf", "qwen3moe", "Q8_0")
    async with engine_on(ShelfHost(tmp_path, spec(first, "split"), spec(whole, "whole"))) as engine:
        answers = [await answer(engine, complete(tokens(30), model=id)) for id in ("split", "whole")]
        assert answers[0].choices == answers[1].choices
        assert answers[0].experts


async def test_a_container_streams_whatever_is_said(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = tmp_path / "tiny.jns"
    await asyncio.to_thread(native.pack, weights, container)
    monkeypatch.setenv(plan.SWITCH, "off")
    packed, plain = spec(container, "packed"), spec(weights, "plain", num_batch=512, embedding=False)
    async with engine_on(ShelfHost(tmp_path, packed, plain)) as engine:
        streamed = await answer(engine, complete(tokens(30), model="packed"))
        assert streamed.experts
        assert streamed.choices == (await answer(engine, complete(tokens(30), model="plain"))).choices


# --- embeddings -------------------------------------------------------------------------------------------------------


async def test_embeddings_are_made_when_somebody_wants_them(tmp_path: Path, weights: Path) -> None:
    host = ShelfHost(tmp_path, spec(weights))
    async with engine_on(host) as engine:
        await answer(engine, complete(tokens(10)))
        vectors = await engine.embed(EmbedRequest(model="moe", inputs=(tokens(10),)))
        assert (len(vectors.vectors[0]), vectors.experts is not None) == (256, True)
        await answer(engine, complete(tokens(10)))
        assert host.names("moe").count("model.ready") == 2  # once again for embeddings, and then for both


async def test_embeddings_that_are_switched_off_stay_so(tmp_path: Path, weights: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec(weights, embedding=False))) as engine:
        with pytest.raises(Unsupported, match="embeddings switched off"):
            await engine.embed(EmbedRequest(model="moe", inputs=(tokens(10),)))


# --- what goes wrong --------------------------------------------------------------------------------------------------


async def test_a_file_cut_short_is_an_error_to_the_request_and_the_worker_lives(tmp_path: Path, weights: Path) -> None:
    mine = tmp_path / "mine.gguf"
    shutil.copy(weights, mine)
    async with engine_on(ShelfHost(tmp_path, spec(mine))) as engine:
        await engine.load("moe")
        [loaded] = await engine.loaded()
        os.truncate(mine, gguf.read(weights).data_offset)
        with pytest.raises(EngineFailed, match=rf"model 'moe': .*{re.escape(mine.name)}.*") as failure:
            await answer(engine, complete(tokens(30)))
        assert "\n" not in failure.value.message
        [still] = await engine.loaded()
        assert (still.address, worker_of(still).is_running()) == (loaded.address, True)


async def test_a_library_for_another_llama_cpp_means_the_stock_path(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "other.c"
    source.write_text(OTHER)
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "other.so")
    building = await asyncio.create_subprocess_exec(compiler, "-shared", "-fPIC", "-o", native.LIBRARY, source)
    assert await building.wait() == 0
    async with engine_on(ShelfHost(tmp_path, spec(weights))) as engine:
        assert (await answer(engine, complete(tokens(10)))).usage.completion == 8
        [loaded] = await engine.loaded()
        assert loaded.experts is None
    [told] = [record.getMessage() for record in caplog.records if record.name == "drivetrain.engines.llamacpp"]
    assert told == (
        "model 'moe' is not streamed, llama.cpp maps its file instead: "
        "llama.cpp does not take the streaming library: made for another one"
    )


# What a library looks like whose backend is of an interface that does not exist yet.
OTHER = """
static struct { int version; void * rest[8]; } registry = {9999, {0}};
int es_shell(const char * model, const char * shell, char * error, unsigned long bytes) { return 0; }
int es_configure(const char * options, char * error, unsigned long bytes) { return 0; }
const char * es_refusal(void) { return "made for another one"; }
void * ggml_backend_init(void) { return &registry; }
"""


async def test_a_library_that_is_none_means_the_stock_path_too(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    (tmp_path / "none.so").write_bytes(b"no library")
    async with engine_on(ShelfHost(tmp_path, spec(weights))) as engine:
        assert (await answer(engine, complete(tokens(10)))).usage.completion == 8
    assert "is not streamed, llama.cpp maps its file instead" in caplog.text


async def test_a_library_that_was_not_built_means_the_stock_path_and_no_containers(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    container = tmp_path / "tiny.jns"
    await asyncio.to_thread(native.pack, weights, container)
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "missing.so")
    async with engine_on(ShelfHost(tmp_path, spec(weights), spec(container, "packed"))) as engine:
        assert (await answer(engine, complete(tokens(10)))).usage.completion == 8
        assert "the streaming library was not built" in caplog.text
        with pytest.raises(LoadFailed, match="the streaming library was not built"):
            await engine.load("packed")


async def test_a_prompt_that_nobody_waits_for_is_given_up_and_the_next_one_is_answered(
    tmp_path: Path, weights: Path
) -> None:
    long = complete(tokens(4000, step=3))
    async with engine_on(ShelfHost(tmp_path, spec(weights, num_ctx=4096, n_parallel=1))) as engine:
        await engine.load("moe")
        before = (await answer(engine, complete(tokens(30)))).choices
        [loaded] = await engine.loaded()
        passes = seen(loaded).passes
        leaver = asyncio.create_task(collect(engine, long))
        await until(lambda: seen(loaded).passes > passes)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        assert seen(loaded).abort_below > passes
        assert (await answer(engine, complete(tokens(30)))).choices == before
        assert seen(loaded).tokens < 4000


async def test_a_leaver_beside_others_stops_nobody(tmp_path: Path, weights: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec(weights, num_ctx=4096))) as engine:
        await engine.load("moe")
        [loaded] = await engine.loaded()
        leaver = asyncio.create_task(collect(engine, complete(tokens(3000, step=3))))
        stayer = asyncio.create_task(answer(engine, complete(tokens(40))))
        await until(lambda: seen(loaded).passes > 0)
        leaver.cancel()
        assert (await stayer).usage.completion == 8
        assert seen(loaded).abort_below == 0


# --- what it leaves, and what it tells --------------------------------------------------------------------------------


async def test_the_shell_goes_with_its_model(tmp_path: Path, weights: Path) -> None:
    host = ShelfHost(tmp_path, spec(weights))
    shells = tmp_path / "state" / "shells"
    async with engine_on(host) as engine:
        await engine.load("moe")
        [loaded] = await engine.loaded()
        await engine.health()
        [shell] = shells.glob("*.gguf")
        assert shell.stat().st_blocks * 512 < shell.stat().st_size // 2  # experts are holes
        await engine.unload("moe")
        assert not page_of(loaded).exists()
        await engine.health()
        assert shell.exists()  # for the next time
        del host.shelf["moe"]
        await engine.health()
        assert list(shells.iterdir()) == []


async def test_events_tell_how_experts_fared(tmp_path: Path, weights: Path) -> None:
    host = ShelfHost(tmp_path, spec(weights))
    async with engine_on(host) as engine:
        await answer(engine, complete(tokens(10)))
        await engine.unload("moe")
    ready, gone = (next(n.experts for n in host.told if n.name == name) for name in ("model.ready", "model.unloaded"))
    assert ready
    assert gone
    assert ready.total_bytes > 0
    assert gone.since(ready).tokens == 10 + 7


class TestServer:
    @pytest.fixture(scope="class")
    async def server(self, tmp_path_factory: pytest.TempPathFactory, weights: Path) -> AsyncIterator[Server]:
        home = tmp_path_factory.mktemp("home")
        folder = home / "models" / "moe"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(msgspec.json.encode({"id": "moe", "settings": SETTINGS}).decode())
        (folder / "tiny.gguf").symlink_to(weights)
        async with serving(home, "", "--workers", "2") as server:
            yield server

    async def asked(self, server: Server, path: str, **members: Any) -> httpx2.Response:
        body = {"model": "moe", "prompt": "Hello", "max_tokens": 4, "options": {"num_predict": 4}, **members}
        response = await server.post(path, body)
        assert response.status_code == 200, response.text
        return response

    async def test_headers_of_a_whole_answer_are_of_that_answer(self, server: Server) -> None:
        for path in ("/v1/completions", "/api/generate"):
            headers = (await self.asked(server, path, stream=False)).headers
            assert 0 <= float(headers["x-drivetrain-expert-hit-rate"]) <= 1
            assert 0 <= float(headers["x-drivetrain-expert-wait-share"]) <= 1
            assert int(headers["x-drivetrain-expert-read-bytes"]) > 0
            assert int(headers["x-drivetrain-expert-budget-bytes"]) > 0

    async def test_headers_of_a_stream_are_of_the_time_before(self, server: Server) -> None:
        await self.asked(server, "/v1/completions")
        headers = (await self.asked(server, "/v1/completions", stream=True)).headers
        assert int(headers["x-drivetrain-expert-read-bytes"]) > 0

    async def test_metrics_and_lists_of_running_models_tell(self, server: Server) -> None:
        await self.asked(server, "/v1/completions")
        async with httpx2.AsyncClient(base_url=server.url) as client:
            metrics = (await client.get("/metrics")).text
        labels = '{engine="local",model="moe"}'
        for name in ("hits_total", "misses_total", "read_bytes_total", "wait_seconds_total", "budget_bytes"):
            assert f"drivetrain_experts_{name}{labels}" in metrics
        [running] = (await server.get("/api/ps"))["models"]
        assert {"hit_rate", "wait_share", "read_bytes", "budget_bytes"} <= running["experts"].keys()
        engines = (await server.get("/v1/engines"))["data"]
        assert engines[0]["loaded"][0]["experts"]["misses"] > 0

    async def test_ps_shows_them(self, server: Server) -> None:
        await self.asked(server, "/v1/completions")
        process = await asyncio.create_subprocess_exec(
            COMMAND, "ps", "--home", server.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, _ = await process.communicate()
        headings, row = out.decode().splitlines()
        assert headings.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "EXPERTS", "UNTIL"]
        assert re.search(r"[\d.]+ MB of [\d.]+ MB, \d+% hits, \d+% waiting", row)

    async def test_embeddings_have_the_headers_too(self, server: Server) -> None:
        response = await server.post("/v1/embeddings", {"model": "moe", "input": "Hello"})
        assert "x-drivetrain-expert-hit-rate" in response.headers


async def test_models_that_stream_are_side_by_side_in_memory(tmp_path: Path, weights: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec(weights, "a"), spec(weights, "b"))) as engine:
        both = await asyncio.gather(*(answer(engine, complete(tokens(20), model=id)) for id in ("a", "b")))
        assert both[0].choices == both[1].choices
        assert len(workers()) == 2
