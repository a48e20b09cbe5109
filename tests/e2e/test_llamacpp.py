"""The embedded engine with a real model in real worker processes."""

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from drivetrain.dialects import openai
from drivetrain.engines import EngineSettings
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import call, fetch
from drivetrain.engines.contract import EngineContract, Subject
from drivetrain.engines.llamacpp import LlamaCpp
from drivetrain.errors import BadRequest, ContextOverflow, EngineFailed, LoadFailed, ModelNotFound
from drivetrain.types import (
    EmbedRequest,
    Event,
    Finished,
    Image,
    JsonSchema,
    Loaded,
    Message,
    ModelSpec,
    NamedTool,
    Progress,
    Request,
    Sampling,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallStart,
    fold,
)
from tests.e2e.servers import small_model
from tests.fakes.host import ShelfHost
from tests.kin import ended, sockets_of, under

pytestmark = pytest.mark.anyio
WEIGHTS = small_model()
CITY = msgspec.Raw(b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}')
TOOLS = (Tool(name="get_time", parameters=CITY), Tool(name="get_weather", parameters=CITY))
SMALL = {"num_ctx": 512, "n_parallel": 2, "cache_ram": 0}  # settings under which a worker takes little


def spec(id: str = "smollm2", weights: Path = WEIGHTS, **settings: Any) -> ModelSpec:
    return ModelSpec(id=id, weights=str(weights), settings=SMALL | settings)


def ask(text: str = "Say hello.", *, model: str = "smollm2", max_tokens: int = 8, **members: Any) -> Request:
    sampling = members.pop("sampling", Sampling(max_tokens=max_tokens, temperature=0.0, seed=1))
    message = Message(role="user", content=(Text(text=text),))
    return Request(model=model, messages=(message,), sampling=sampling, stream=True, **members)


async def collect(engine: LlamaCpp, request: Request) -> list[Event]:
    async with aclosing(engine.generate(request)) as batches:
        return [event async for events in batches for event in events]


async def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.01)


def worker_of(loaded: Loaded) -> psutil.Process:
    """The process behind a loaded model: the child of ours that holds its socket."""
    path = loaded.address.removeprefix("unix:")
    [found] = [child for child in under(recursive=True) if path in sockets_of(child)]
    return found


async def in_progress(loaded: Loaded) -> int:
    """Requests that the worker itself says it works on or keeps waiting."""
    upstream = Upstream(loaded.address)
    try:
        metrics = (await fetch(upstream, "/metrics", openai.decode_error)).decode()
    finally:
        await upstream.aclose()
    counts = dict(line.split() for line in metrics.splitlines() if not line.startswith("#"))
    return int(counts["llamacpp:requests_processing"]) + int(counts["llamacpp:requests_deferred"])


def workers() -> list[psutil.Process]:
    """The workers of engines in this very process; a server of other tests may have its own."""
    return under(word="worker.py")


@asynccontextmanager
async def engine_on(host: ShelfHost, **options: Any) -> AsyncIterator[LlamaCpp]:
    engine = LlamaCpp("local", EngineSettings(kind="llamacpp", options=options), host)
    try:
        yield engine
    finally:
        await engine.aclose()
    assert workers() == []


async def shown(engine: LlamaCpp, messages: list[dict[str, Any]], **members: Any) -> str:
    """The prompt that the worker makes of a chat."""
    [loaded] = await engine.loaded()
    upstream = Upstream(loaded.address)
    try:
        body = msgspec.json.encode({"messages": messages, **members})
        answer = msgspec.json.decode(await call(upstream, "/apply-template", body, openai.decode_error))
    finally:
        await upstream.aclose()
    return str(answer["prompt"])


# --- one model, loaded once for all these -----------------------------------------------------------------------------


class TestAnswers:
    @pytest.fixture(scope="class")
    async def engine(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaCpp]:
        async with engine_on(ShelfHost(tmp_path_factory.mktemp("home"), spec())) as engine:
            await engine.load("smollm2")
            yield engine

    async def test_a_chat_streams_and_reports_usage_and_timings(self, engine: LlamaCpp) -> None:
        events = await collect(engine, ask())
        answer = fold(events)
        assert sum(isinstance(event, TextDelta) for event in events) > 2
        assert answer.choices[0].text.startswith("Hello")
        assert answer.usage.prompt > 5
        assert answer.usage.completion == 8
        assert answer.timings
        assert answer.timings.completion_s > 0

    async def test_fields_that_only_llama_cpp_knows_reach_it_and_its_frames_come_back(self, engine: LlamaCpp) -> None:
        body = {
            "model": "smollm2",
            "stream": True,
            "messages": [{"role": "user", "content": "Say hello."}],
            "grammar": 'root ::= "grammar-held"',
        }
        request = openai.CHAT.decode_request(msgspec.json.encode(body))
        events = await collect(engine, request)
        assert fold(events).choices[0].text == "grammar-held"
        assert b'"chat.completion.chunk"' in b"".join(event.raw or b"" for event in events)

    async def test_a_json_schema_holds(self, engine: LlamaCpp) -> None:
        schema = (
            b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
        )
        output = JsonSchema(schema=msgspec.Raw(schema))
        text = fold(await collect(engine, ask("A number?", output=output, max_tokens=32))).choices[0].text
        assert isinstance(msgspec.json.decode(text)["n"], int)

    async def test_a_tool_is_called_though_the_template_knows_of_none(self, engine: LlamaCpp) -> None:
        request = ask("Hi.", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=64)
        events = await collect(engine, request)
        assert {event.name for event in events if isinstance(event, ToolCallStart)} <= {"get_time", "get_weather"}
        answer = fold(events).choices[0]
        assert answer.reason == "tool_calls"
        assert all(list(msgspec.json.decode(call.arguments)) == ["city"] for call in answer.tool_calls)

    async def test_the_tool_that_is_demanded_is_called(self, engine: LlamaCpp) -> None:
        choice = NamedTool(name="get_weather")
        events = await collect(
            engine, ask("What time is it?", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=64)
        )
        assert {event.name for event in events if isinstance(event, ToolCallStart)} == {"get_weather"}

    async def test_a_demand_in_the_callers_own_words_is_met_too(self, engine: LlamaCpp) -> None:
        body = openai.CHAT.encode_request(
            ask("What time is it?", tools=TOOLS, parallel_tool_calls=False, max_tokens=64)
        )
        said = msgspec.json.decode(body) | {"tool_choice": {"type": "function", "function": {"name": "get_time"}}}
        events = await collect(engine, openai.CHAT.decode_request(msgspec.json.encode(said)))
        assert {event.name for event in events if isinstance(event, ToolCallStart)} == {"get_time"}

    async def test_the_result_of_a_tool_is_read(self, engine: LlamaCpp) -> None:
        call = ToolCall(id="1", name="get_time", arguments='{"city":"Paris"}')
        messages = (
            Message(role="user", content=(Text(text="What time is it?"),)),
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", tool_call_id="1", content=(Text(text="12:34"),)),
        )
        request = Request(model="smollm2", messages=messages, tools=TOOLS, sampling=Sampling(max_tokens=8))
        assert fold(await collect(engine, request)).usage.prompt > 100

    async def test_without_tools_a_prompt_is_as_the_model_wants_it(self, engine: LlamaCpp) -> None:
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
        assert await shown(engine, messages) == (
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
        )

    async def test_tools_calls_and_results_are_told_in_text(self, engine: LlamaCpp) -> None:
        call = {"type": "function", "id": "1", "function": {"name": "get_time", "arguments": '{"city": "Paris"}'}}
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "12:34"},
        ]
        prompt = await shown(engine, messages, tools=[{"type": "function", "function": {"name": "get_time"}}])
        told, rest = prompt.split("<|im_end|>", 1)
        assert told.startswith("<|im_start|>system\nBe kind.\n\nYou can call these functions:\n<tools>\n{")
        assert rest == (
            "\n<|im_start|>user\nTime?<|im_end|>\n"
            "<|im_start|>assistant\n"
            '<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\n<tool_response>\n12:34\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )

    async def test_several_choices_share_one_prompt(self, engine: LlamaCpp) -> None:
        answer = fold(await collect(engine, ask(sampling=Sampling(max_tokens=4, temperature=0.0, n=3))))
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion == 12
        assert answer.usage.prompt == fold(await collect(engine, ask())).usage.prompt

    async def test_one_worker_chats_and_embeds(self, engine: LlamaCpp) -> None:
        inputs = ("the sea", "a mountain range", "the sea")
        embeddings = await engine.embed(EmbedRequest(model="smollm2", inputs=inputs))
        assert [len(vector) for vector in embeddings.vectors] == [576] * 3
        assert math.dist(embeddings.vectors[0], embeddings.vectors[2]) < 0.05
        assert math.dist(embeddings.vectors[0], embeddings.vectors[1]) > 0.05

    async def test_an_embedding_is_cut_to_the_dimensions_asked_for(self, engine: LlamaCpp) -> None:
        [vector] = (await engine.embed(EmbedRequest(model="smollm2", inputs=("sea",), dimensions=16))).vectors
        assert len(vector) == 16
        assert math.hypot(*vector) == pytest.approx(1.0)

    async def test_a_prompt_beyond_the_context_is_the_callers_mistake(self, engine: LlamaCpp) -> None:
        with pytest.raises(ContextOverflow):
            await collect(engine, ask("word " * 900))

    async def test_an_image_without_a_projector_is_the_callers_mistake(self, engine: LlamaCpp) -> None:
        message = Message(role="user", content=(Image(url="data:image/png;base64,iVBORw0KGgo="),))
        with pytest.raises(BadRequest, match="takes no images"):
            await collect(engine, Request(model="smollm2", messages=(message,)))

    async def test_it_tells_what_is_loaded_and_where(self, engine: LlamaCpp) -> None:
        [loaded] = await engine.loaded()
        assert (loaded.model.id, loaded.model.engine) == ("smollm2", "local")
        assert (loaded.context_length, loaded.active) == (512, 0)
        upstream = Upstream(loaded.address)
        assert await fetch(upstream, "/health", openai.decode_error) == b'{"status":"ok"}'
        await upstream.aclose()

    async def test_its_socket_is_private(self, engine: LlamaCpp) -> None:
        [loaded] = await engine.loaded()
        directory = Path(loaded.address.removeprefix("unix:")).parent
        assert directory.stat().st_mode & 0o777 == 0o700

    async def test_requests_beyond_its_slots_wait_and_are_counted(self, engine: LlamaCpp) -> None:
        tasks = [asyncio.create_task(collect(engine, ask(f"Count to {i}.", max_tokens=12))) for i in range(5)]
        await asyncio.sleep(0)
        health = await engine.health()
        assert (health.running, health.waiting) == (2, 3)
        answers = await asyncio.gather(*tasks)
        assert {fold(events).usage.completion for events in answers} == {12}
        assert (await engine.health()).running == 0

    async def test_a_caller_who_goes_frees_the_slot_within_a_second(self, engine: LlamaCpp) -> None:
        [loaded] = await engine.loaded()
        endless = ask("Tell me a long story.", sampling=Sampling(max_tokens=400, logit_bias={"2": -100.0}))
        batches = engine.generate(endless)
        async for events in batches:
            if any(isinstance(event, TextDelta) for event in events):
                break
        assert await in_progress(loaded) == 1
        await batches.aclose()
        async with asyncio.timeout(1):
            while await in_progress(loaded):
                await asyncio.sleep(0.02)
        assert (await engine.health()).running == 0

    async def test_its_memory_was_estimated_well(self, engine: LlamaCpp) -> None:
        [loaded] = await engine.loaded()
        await collect(engine, ask("word " * 100))
        measured = worker_of(loaded).memory_info().rss
        assert 0.9 < loaded.size_bytes / measured < 1.25


@asynccontextmanager
async def contract_subject(host: ShelfHost, model: str) -> AsyncIterator[Subject]:
    """The engine with the model in memory, as the contract's tests want it: four slots, and room for long answers."""
    engine = LlamaCpp("local", EngineSettings(kind="llamacpp"), host)
    await engine.load(model)
    [loaded] = await engine.loaded()

    async def running() -> int:
        return await in_progress(loaded)

    yield Subject(
        engine=engine,
        model=model,
        running=running,
        surfaces=(openai.CHAT, openai.COMPLETIONS),
        embeds=True,
        concurrency=4,
        aborts=16,
    )
    await engine.aclose()


class TestContract(EngineContract):
    @pytest.fixture(scope="class")
    async def subject(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
        home = tmp_path_factory.mktemp("home")
        async with contract_subject(ShelfHost(home, spec(num_ctx=4096, n_parallel=4)), "smollm2") as subject:
            yield subject


# --- loading and unloading --------------------------------------------------------------------------------------------


async def test_an_input_to_embed_is_cut_to_the_context_only_if_it_may_be(tmp_path: Path) -> None:
    long = EmbedRequest(model="smollm2", inputs=("word " * 200,), options={"num_ctx": 128})
    async with engine_on(ShelfHost(tmp_path, spec())) as engine:
        with pytest.raises(ContextOverflow):
            await engine.embed(replace(long, truncate=False))
        assert (await engine.embed(long)).usage.prompt == 126


async def test_a_template_without_system_messages_has_tools_told_in_the_first_message(tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    async with engine_on(ShelfHost(tmp_path, spec(chat_template=plain))) as engine:
        await engine.load("smollm2")
        tool = {"type": "function", "function": {"name": "get_time"}}
        prompt = await shown(engine, [{"role": "user", "content": "Hi."}], tools=[tool])
        assert prompt.startswith("<|user|>You can call these functions:")
        assert prompt.endswith("\n\nHi.\n")


async def test_callers_who_come_at_once_share_one_load_and_hear_of_it(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec())
    async with engine_on(host) as engine:
        answers = await asyncio.gather(*(collect(engine, ask(max_tokens=2)) for _ in range(3)))
        assert host.names("smollm2").count("model.ready") == 1
        for events in answers:
            assert isinstance(events[0], Progress)
            end = events[-1]
            assert isinstance(end, Finished)
            assert end.timings
            assert end.timings.load_s > 0


async def test_a_caller_who_leaves_while_the_model_loads_does_not_stop_the_load(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec())
    async with engine_on(host) as engine:
        batches = engine.generate(ask())
        await anext(batches)
        await batches.aclose()
        await until(lambda: "model.ready" in host.names("smollm2"))
        assert [loaded.active for loaded in await engine.loaded()] == [0]


async def test_an_idle_model_is_unloaded_after_its_time(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec(), default_keep_alive_s=0.3)
    async with engine_on(host) as engine:
        await engine.load("smollm2")
        [loaded] = await engine.loaded()
        worker = worker_of(loaded)
        assert loaded.expires_s
        await until(lambda: "model.unloaded" in host.names("smollm2"))
        assert ended(worker)
        assert not Path(loaded.address.removeprefix("unix:")).exists()
        assert host.names("smollm2")[-3:] == ["model.ready", "model.unloading", "model.unloaded"]


async def test_a_request_says_how_long_the_model_stays(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec(), default_keep_alive_s=0.0)
    async with engine_on(host) as engine:
        await engine.load("smollm2", keep_alive_s=-1)
        assert [loaded.expires_s for loaded in await engine.loaded()] == [None]
        await collect(engine, ask(keep_alive_s=0, max_tokens=2))
        await until(lambda: "model.unloaded" in host.names("smollm2"))


async def test_unloading_waits_for_running_requests(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec())
    async with engine_on(host) as engine:
        await engine.load("smollm2")
        answer = asyncio.create_task(collect(engine, ask("Count.", max_tokens=24)))
        while not (await engine.health()).running:
            await asyncio.sleep(0)
        await engine.unload("smollm2")
        assert answer.done()
        assert fold(await answer).usage.completion > 0
        assert await engine.loaded() == []


async def test_an_option_that_differs_reloads_the_model_and_one_that_does_not_does_not(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec())
    async with engine_on(host) as engine:
        await engine.load("smollm2")
        await engine.load("smollm2", options={"num_ctx": 512, "temperature": 1})
        assert host.names("smollm2").count("model.ready") == 1
        await engine.load("smollm2", options={"num_ctx": 256})
        assert host.names("smollm2").count("model.ready") == 2
        assert [loaded.context_length for loaded in await engine.loaded()] == [256]


async def test_the_least_recently_used_model_makes_room(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec("a"), spec("b"), spec("c"))
    async with engine_on(host) as probe:
        await probe.load("a")
        [loaded] = await probe.loaded()
    async with engine_on(host, memory_bytes=int(loaded.size_bytes * 2.5)) as engine:
        await engine.load("a")
        await engine.load("b")
        await collect(engine, ask(model="a", max_tokens=2))
        await engine.load("c")
        assert sorted(loaded.model.id for loaded in await engine.loaded()) == ["a", "c"]


async def test_a_bad_option_is_named(tmp_path: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec())) as engine:
        with pytest.raises(BadRequest, match="'num_ctx' is 'big'; it must be a whole number"):
            await engine.load("smollm2", options={"num_ctx": "big"})
        with pytest.raises(ModelNotFound):
            await engine.load("other")


# --- what goes wrong --------------------------------------------------------------------------------------------------


def damaged(tmp_path: Path) -> Path:
    """A GGUF whose header is right, and whose architecture nobody knows."""
    path = tmp_path / "damaged.gguf"
    data = bytearray(WEIGHTS.read_bytes())
    at = data.index(b"llama", data.index(b"general.architecture"))
    data[at : at + 5] = b"lhama"
    path.write_bytes(data)
    return path


async def test_a_model_that_llama_cpp_refuses_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec(weights=damaged(tmp_path)))
    async with engine_on(host) as engine:
        with pytest.raises(LoadFailed) as failure:
            await engine.load("smollm2")
        assert "unknown model architecture: 'lhama'" in failure.value.message.splitlines()[0]
        assert "exited with code 1" in failure.value.message
        assert workers() == []
        assert host.names("smollm2")[-1] == "model.failed"
        assert host.told[-1].error == failure.value.message


async def test_a_file_that_is_no_model_says_so(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"\0" * 64)
    async with engine_on(ShelfHost(tmp_path, spec(weights=path))) as engine:
        with pytest.raises(LoadFailed, match="does not begin with the letters GGUF"):
            await collect(engine, ask())


async def test_a_load_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    async with engine_on(ShelfHost(tmp_path, spec()), load_timeout_s=0.01) as engine:
        with pytest.raises(LoadFailed, match=r"was not loaded within 0\.01 s"):
            await engine.load("smollm2")
        assert workers() == []


async def test_a_killed_worker_costs_its_requests_and_the_next_one_has_a_new_worker(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, spec())
    async with engine_on(host) as engine:
        await engine.load("smollm2")
        [loaded] = await engine.loaded()
        with pytest.raises(EngineFailed, match=r"model 'smollm2': the worker was ended by SIGKILL"):
            async with aclosing(engine.generate(ask("Tell me a story.", max_tokens=400))) as batches:
                async for _ in batches:
                    worker_of(loaded).kill()
        assert fold(await collect(engine, ask())).choices[0].text.startswith("Hello")
        assert host.names("smollm2")[-5:].count("model.ready") == 1
        assert "model.failed" in host.names("smollm2")


OWNER = """
import asyncio, sys
from pathlib import Path
from drivetrain.engines import EngineSettings
from drivetrain.engines.llamacpp import LlamaCpp
from drivetrain.types import ModelSpec
from tests.fakes.host import ShelfHost

async def main():
    home, weights = map(Path, sys.argv[1:])
    host = ShelfHost(home, ModelSpec(id="m", weights=str(weights)))
    engine = LlamaCpp("local", EngineSettings(kind="llamacpp"), host)
    await engine.load("m", options={"num_ctx": 256})
    print("loaded", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_no_worker_outlives_a_killed_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(WEIGHTS)]
    owner = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert owner.stdout
        assert await owner.stdout.readline() == b"loaded\n"
        [worker] = under(owner.pid)
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: ended(worker), within_s=2)
