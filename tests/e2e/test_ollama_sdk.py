"""The official `ollama` client for Python, unmodified, against the real small model."""

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from operator import mul
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ollama import AsyncClient, Client, ResponseError

from tests.e2e.servers import MODEL, Server, small_model
from tests.e2e.test_cli import drivetrain_command
from tests.fakes.registries import Registry
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio

LIMIT_S = 180.0
GREEDY: Mapping[str, Any] = {"temperature": 0, "seed": 7, "num_predict": 8}
ASK = [{"role": "user", "content": "Name the days of the week."}]
PROMPT = ASK[0]["content"]


@pytest.fixture
def sync(drivetrain: Server) -> Iterator[Client]:
    with Client(host=drivetrain.url, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
async def client(drivetrain: Server) -> AsyncGenerator[AsyncClient, None]:
    async with AsyncClient(host=drivetrain.url, timeout=LIMIT_S) as client:
        yield client


@asynccontextmanager
async def created(client: AsyncClient, name: str, **said: Any) -> AsyncIterator[str]:
    """A model for one test."""
    await client.create(name, **{"from_": MODEL, **said})
    try:
        yield name
    finally:
        await client.delete(name)


# --- generation -----------------------------------------------------------------------------------------------------


async def test_a_chat_answers_and_counts(sync: Client) -> None:
    answer = sync.chat(MODEL, ASK, options=GREEDY)
    assert answer.model == MODEL
    assert answer.done
    assert answer.done_reason == "length"
    assert answer.message.role == "assistant"
    assert answer.message.content
    assert answer.eval_count == 8
    assert answer.prompt_eval_count
    assert answer.total_duration
    assert answer.eval_duration
    assert answer.total_duration >= answer.eval_duration > 0


async def test_a_streamed_chat_spells_what_a_whole_one_says(sync: Client) -> None:
    whole = sync.chat(MODEL, ASK, options=GREEDY)
    frames = list(sync.chat(MODEL, ASK, options=GREEDY, stream=True))
    assert "".join(frame.message.content or "" for frame in frames) == whole.message.content
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert frames[-1].done_reason == "length"
    assert frames[-1].eval_count == 8
    assert [frame.eval_count for frame in frames[:-1]] == [None] * (len(frames) - 1)


async def test_generate_says_what_a_chat_of_one_message_says(client: AsyncClient) -> None:
    chat = await client.chat(MODEL, ASK, options=GREEDY)
    whole = await client.generate(MODEL, PROMPT, options=GREEDY)
    frames = [frame async for frame in await client.generate(MODEL, PROMPT, options=GREEDY, stream=True)]
    assert whole.response == chat.message.content
    assert "".join(frame.response or "" for frame in frames) == whole.response
    assert whole.prompt_eval_count == chat.prompt_eval_count


async def test_both_dialects_get_the_same_answer(client: AsyncClient, drivetrain: Server) -> None:
    native = await client.chat(MODEL, ASK, options=GREEDY)
    body = {"model": MODEL, "messages": ASK, "temperature": 0, "seed": 7, "max_tokens": 8}
    answer = (await drivetrain.post("/v1/chat/completions", body)).json()
    assert answer["choices"][0]["message"]["content"] == native.message.content
    assert answer["usage"]["prompt_tokens"] == native.prompt_eval_count


async def test_a_raw_prompt_goes_without_the_template(client: AsyncClient, drivetrain: Server) -> None:
    raw = await client.generate(MODEL, "One, two, three,", raw=True, options=GREEDY)
    body = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "seed": 7, "max_tokens": 8}
    answer = (await drivetrain.post("/v1/completions", body)).json()
    assert raw.response == answer["choices"][0]["text"]
    assert raw.context is None


async def test_a_context_continues_a_conversation(client: AsyncClient) -> None:
    first = await client.generate(MODEL, PROMPT, options=GREEDY)
    assert first.context
    again = await client.generate(MODEL, "And the months?", context=first.context, options=GREEDY)
    turns: list[Any] = [
        *ASK,
        {"role": "assistant", "content": first.response},
        {"role": "user", "content": "And the months?"},
    ]
    chat = await client.chat(MODEL, turns, options=GREEDY)
    assert again.response == chat.message.content
    assert again.prompt_eval_count == chat.prompt_eval_count


async def test_a_system_prompt_is_a_system_message(client: AsyncClient) -> None:
    generated = await client.generate(MODEL, PROMPT, system="You are a pirate.", options=GREEDY)
    chat = await client.chat(MODEL, [{"role": "system", "content": "You are a pirate."}, *ASK], options=GREEDY)
    assert generated.response == chat.message.content


async def test_a_stop_sequence_ends_the_answer_before_itself(client: AsyncClient) -> None:
    whole = (await client.chat(MODEL, ASK, options=GREEDY)).message.content or ""
    stop = whole.split()[2]
    answer = await client.chat(MODEL, ASK, options={**GREEDY, "stop": [stop]})
    assert answer.message.content == whole.partition(stop)[0]
    assert answer.done_reason == "stop"


async def test_the_same_seed_gives_the_same_answer(client: AsyncClient) -> None:
    options = {**GREEDY, "temperature": 1.5}
    answers = [await client.chat(MODEL, ASK, options=options) for _ in range(2)]
    assert answers[0].message.content == answers[1].message.content


async def test_logprobs_tell_of_each_token(client: AsyncClient) -> None:
    answer = await client.chat(MODEL, ASK, options=GREEDY, logprobs=True, top_logprobs=2)
    assert answer.logprobs
    assert "".join(token.token for token in answer.logprobs) == answer.message.content
    assert [len(token.top_logprobs or ()) for token in answer.logprobs] == [2] * 8


async def test_a_stream_that_is_left_early_hinders_nobody(client: AsyncClient, drivetrain: Server) -> None:
    stream = await client.chat(MODEL, ASK, options={**GREEDY, "num_predict": 1000}, stream=True)
    await anext(aiter(stream))
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator, which the client types as an iterator
    await drivetrain.until("/v1/engines", lambda engines: engines["data"][0]["outstanding"] == 0)


# --- JSON -----------------------------------------------------------------------------------------------------------

DAY = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Monday", "Tuesday"]}, "free": {"type": "boolean"}},
    "required": ["name", "free"],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_is_kept_to(client: AsyncClient, stream: bool) -> None:
    options = {**GREEDY, "num_predict": 64}
    if stream:
        frames = [frame async for frame in await client.chat(MODEL, ASK, format=DAY, options=options, stream=True)]
        text, reason = "".join(frame.message.content or "" for frame in frames), frames[-1].done_reason
    else:
        answer = await client.chat(MODEL, ASK, format=DAY, options=options)
        text, reason = answer.message.content or "", answer.done_reason
    assert reason == "stop"
    assert json.loads(text)["name"] in ("Monday", "Tuesday")
    assert isinstance(json.loads(text)["free"], bool)


async def test_json_mode_gives_an_object(client: AsyncClient) -> None:
    prompt = 'Answer with exactly: {"day": 1}'
    answer = await client.generate(MODEL, prompt, format="json", options={**GREEDY, "num_predict": 128})
    text = answer.response or ""
    assert text.startswith("{")
    if answer.done_reason == "stop":
        assert isinstance(json.loads(text), dict)


# --- tools ----------------------------------------------------------------------------------------------------------


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: Name of the city.
    """
    return f"sunny in {city}"


async def test_tools_and_their_results_reach_the_model(client: AsyncClient) -> None:
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    turns: list[Any] = [
        *ask,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")},
    ]
    without = await client.chat(MODEL, ask, options=GREEDY)
    before = await client.chat(MODEL, ask, tools=[get_weather], options=GREEDY)
    after = await client.chat(MODEL, turns, tools=[get_weather], options=GREEDY)
    counts = [without.prompt_eval_count or 0, before.prompt_eval_count or 0, after.prompt_eval_count or 0]
    assert counts == sorted(set(counts))
    assert before.message.content or before.message.tool_calls
    assert after.message.content or after.message.tool_calls


# --- embeddings -----------------------------------------------------------------------------------------------------


async def test_vectors_have_length_one_and_the_order_of_the_inputs(client: AsyncClient) -> None:
    inputs = ["a cat", "the stock market", "a dog"]
    batch = await client.embed(MODEL, inputs)
    assert [len(vector) for vector in batch.embeddings] == [576] * 3
    assert [math.hypot(*vector) for vector in batch.embeddings] == pytest.approx([1.0] * 3, abs=1e-4)
    assert batch.prompt_eval_count == 7
    for text, vector in zip(inputs, batch.embeddings, strict=True):
        alone = (await client.embed(MODEL, text)).embeddings[0]
        assert sum(map(mul, alone, vector)) > 0.99  # sums are taken in another order in a batch


async def test_dimensions_cut_and_bring_to_length_one(client: AsyncClient) -> None:
    answer = await client.embed(MODEL, "a cat", dimensions=32)
    assert len(answer.embeddings[0]) == 32
    assert math.hypot(*answer.embeddings[0]) == pytest.approx(1.0, abs=1e-4)


async def test_the_older_route_gives_one_vector_in_the_same_direction(client: AsyncClient) -> None:
    old = list((await client.embeddings(MODEL, "a cat")).embedding)
    new = (await client.embed(MODEL, "a cat")).embeddings[0]
    assert sum(map(mul, old, new)) / math.hypot(*old) == pytest.approx(1.0, abs=1e-4)
    assert math.hypot(*old) > 10  # of the length that the model made it


async def test_nothing_to_embed_gives_no_vector(client: AsyncClient) -> None:
    assert (await client.embed(MODEL, "")).embeddings == []
    assert (await client.embed(MODEL, [])).embeddings == []
    assert (await client.embeddings(MODEL, "")).embedding == []


async def test_a_text_too_long_is_cut_unless_that_is_forbidden(client: AsyncClient) -> None:
    async with created(client, "ollama-sdk-narrow", parameters={"num_ctx": 256}) as name:
        assert len((await client.embed(name, "word " * 300)).embeddings[0]) == 576
        with pytest.raises(ResponseError) as caught:
            await client.embed(name, "word " * 300, truncate=False)
        assert (caught.value.status_code, caught.value.error) == (400, "the input length exceeds the context length")


# --- what there is --------------------------------------------------------------------------------------------------


async def test_a_model_is_listed_with_its_details(client: AsyncClient) -> None:
    model = next(model for model in (await client.list()).models if model.model == MODEL)
    assert model.size == small_model().stat().st_size
    assert model.digest
    assert len(model.digest) == 64
    assert model.details
    assert (model.details.format, model.details.family, model.details.quantization_level) == ("gguf", "llama", "Q4_1")
    assert model.details.parameter_size == "134.52M"


async def test_show_tells_what_clients_look_for(client: AsyncClient) -> None:
    shown = await client.show(MODEL)
    assert shown.modelinfo
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.capabilities
    assert "completion" in shown.capabilities
    assert shown.template
    assert shown.modelfile
    assert "FROM " in shown.modelfile


async def test_show_tells_what_the_caller_would_have_the_model_say(drivetrain: Server) -> None:
    asked = {"model": MODEL, "system": "You are a pirate.", "options": {"top_k": 3}}
    shown = (await drivetrain.post("/api/show", asked)).json()
    assert shown["system"] == "You are a pirate."
    assert "SYSTEM You are a pirate." in shown["modelfile"]
    assert "PARAMETER top_k 3" in shown["modelfile"]
    assert "system" not in (await drivetrain.post("/api/show", {"model": MODEL})).json()


async def test_show_tells_all_in_the_types_of_ollama(drivetrain: Server) -> None:
    shown = (await drivetrain.post("/api/show", {"model": MODEL, "verbose": True})).json()
    assert {tensor["type"] for tensor in shown["tensors"]} == {"F32", "Q4_1", "Q8_0"}
    assert len(shown["model_info"]["tokenizer.ggml.tokens"]) == 49152


async def test_what_the_cloud_has_is_refused(drivetrain: Server) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as http:
        key = await http.delete("/api/user/keys/x")
    assert (key.status_code, key.json()) == (401, {"error": "unauthorized", "signin_url": ""})
    for path in ("/api/experimental/web_search", "/api/experimental/web_fetch"):
        answer = await drivetrain.post(path, {"query": "x"})
        assert (answer.status_code, list(answer.json())) == (403, ["error"])


async def test_a_model_of_a_file_that_was_not_uploaded_is_a_404_also_as_a_stream(drivetrain: Server) -> None:
    for stream in (True, False):
        asked = {"model": "ollama-sdk-lost", "files": {"x.gguf": "sha256:" + "0" * 64}, "stream": stream}
        answer = await drivetrain.post("/api/create", asked)
        assert answer.status_code == 404
        assert "not found" in answer.json()["error"]


@pytest.mark.parametrize(("said", "others"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 2}, 2)])
async def test_a_streamed_frame_has_its_time_and_its_tokens(client: AsyncClient, said: Any, others: int) -> None:
    frames = [
        frame async for frame in await client.chat(MODEL, ASK, options=GREEDY, logprobs=True, stream=True, **said)
    ]
    assert len({frame.created_at for frame in frames}) == len(frames)
    told = [frame for frame in frames if frame.message.content]
    assert {len(token.top_logprobs or ()) for frame in told for token in frame.logprobs or ()} == {others}
    assert ["".join(token.token for token in frame.logprobs or ()) for frame in told] == [
        frame.message.content for frame in told
    ]


# --- keep_alive -----------------------------------------------------------------------------------------------------


async def expiry(client: AsyncClient, name: str) -> timedelta | None:
    """How long a model will stay in memory; None if it is not there."""
    found = [model for model in (await client.ps()).models if model.model == name]
    return found[0].expires_at - datetime.now(UTC) if found and found[0].expires_at else None


async def test_keep_alive_says_how_long_a_model_stays(client: AsyncClient) -> None:
    async with created(client, "ollama-sdk-keep") as name:
        loaded = await client.generate(name, "", keep_alive="10m")
        assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
        left = await expiry(client, f"{name}:latest")
        assert left
        assert timedelta(minutes=9) < left <= timedelta(minutes=10)
        await client.chat(name, [], keep_alive=-1)
        left = await expiry(client, f"{name}:latest")
        assert left
        assert left > timedelta(days=36500)
        await client.generate(name, PROMPT, options={**GREEDY, "num_predict": 1}, keep_alive=90)
        left = await expiry(client, f"{name}:latest")
        assert left
        assert timedelta(seconds=60) < left <= timedelta(seconds=90)
        unloaded = await client.chat(name, [], keep_alive=0)
        assert (unloaded.done, unloaded.done_reason, unloaded.message.content) == (True, "unload", "")
        assert await expiry(client, f"{name}:latest") is None


async def test_keep_alive_zero_frees_the_model_after_the_answer(client: AsyncClient) -> None:
    async with created(client, "ollama-sdk-once") as name:
        answer = await client.chat(name, ASK, options=GREEDY, keep_alive=0)
        assert answer.message.content
        assert answer.load_duration
        async with asyncio.timeout(20):
            while await expiry(client, f"{name}:latest") is not None:
                await asyncio.sleep(0.02)


async def test_a_context_length_asked_for_is_the_one_in_memory(client: AsyncClient) -> None:
    async with created(client, "ollama-sdk-short", parameters={"num_ctx": 1024}) as name:
        await client.generate(name, "")
        (loaded,) = [model for model in (await client.ps()).models if model.model == f"{name}:latest"]
        assert loaded.context_length == 1024
        await client.generate(name, "", options={"num_ctx": 512})
        (loaded,) = [model for model in (await client.ps()).models if model.model == f"{name}:latest"]
        assert loaded.context_length == 512


# --- pull, create, copy, delete -------------------------------------------------------------------------------------


async def test_the_small_model_comes_from_its_installed_package(client: AsyncClient) -> None:
    frames = [frame async for frame in await client.pull(MODEL, stream=True)]
    assert frames[0].status == "pulling manifest"
    assert [frame.status for frame in frames][-2:] == ["writing manifest", "success"]
    layer = frames[-3]
    assert layer.digest == f"sha256:{hashlib.sha256(small_model().read_bytes()).hexdigest()}"
    assert layer.completed == layer.total == small_model().stat().st_size
    assert (await client.pull(MODEL)).status == "success"


async def test_a_model_is_made_from_another(client: AsyncClient) -> None:
    said: dict[str, Any] = {
        "system": "You are a pirate.",
        "parameters": {"temperature": 0, "seed": 7, "num_predict": 8, "stop": ["\n", "never met"]},
        "license": ["MIT"],
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}],
    }
    frames = [frame async for frame in await client.create("ollama-sdk-pirate", from_=MODEL, stream=True, **said)]
    assert frames[-1].status == "success"
    assert "writing manifest" in [frame.status for frame in frames]
    shown = await client.show("ollama-sdk-pirate")
    assert shown.license == "MIT"
    assert shown.parameters
    lines = [line.split(maxsplit=1) for line in shown.parameters.splitlines()]
    assert ["temperature", "0"] in lines
    assert [value for name, value in lines if name == "stop"] == ['"\\n"', '"never met"']
    assert shown.modelfile
    assert "SYSTEM You are a pirate." in shown.modelfile
    assert "MESSAGE assistant Ahoy!" in shown.modelfile
    turns = [{"role": "system", "content": "You are a pirate."}, *said["messages"], *ASK]
    spoken = await client.chat("ollama-sdk-pirate", ASK)
    by_hand = await client.chat(MODEL, turns, options=said["parameters"])
    assert (spoken.message.content, spoken.prompt_eval_count) == (by_hand.message.content, by_hand.prompt_eval_count)
    await client.delete("ollama-sdk-pirate")


async def test_a_model_is_made_from_the_text_of_a_modelfile(
    client: AsyncClient, drivetrain: Server, tmp_path: Path
) -> None:
    """As `ollama create -f` does: the text is read on the client's side."""
    text = f'FROM {MODEL}\nPARAMETER temperature 0\nSYSTEM """You are\na pirate."""\n'
    (tmp_path / "Modelfile").write_text(text)
    made = await drivetrain_command(drivetrain.home, "create", "ollama-sdk-file", "-f", str(tmp_path / "Modelfile"))
    assert made.code == 0, made.err
    shown = await client.show("ollama-sdk-file")
    assert shown.parameters == "temperature                    0"
    assert (await client.delete("ollama-sdk-file")).status == "success"


async def test_a_model_is_made_from_an_uploaded_file(sync: Client, client: AsyncClient, drivetrain: Server) -> None:
    digest = sync.create_blob(small_model())
    assert digest == f"sha256:{hashlib.sha256(small_model().read_bytes()).hexdigest()}"
    async with httpx2.AsyncClient(base_url=drivetrain.url) as http:
        assert (await http.head(f"/api/blobs/{digest}")).status_code == 200
    async with created(client, "ollama-sdk-uploaded", from_=None, files={"model.gguf": digest}) as name:
        answer = await client.chat(name, ASK, options=GREEDY)
        original = await client.chat(MODEL, ASK, options=GREEDY)
        assert answer.message.content == original.message.content


async def test_a_blob_must_be_what_its_digest_says(drivetrain: Server) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as http:
        missing = "sha256:" + "0" * 64
        assert (await http.head(f"/api/blobs/{missing}")).status_code == 404
        refused = await http.post(f"/api/blobs/{missing}", content=b"other content")
        assert refused.status_code == 400
        assert "digest mismatch" in refused.json()["error"]
        assert (await http.post("/api/blobs/sha256:short", content=b"x")).status_code == 400
        digest = f"sha256:{hashlib.sha256(b'new').hexdigest()}"
        assert (await http.post(f"/api/blobs/{digest}", content=b"new")).status_code == 201
        assert (await http.post(f"/api/blobs/{digest}", content=b"new")).status_code == 200


async def test_a_copy_is_a_model_of_its_own(client: AsyncClient) -> None:
    assert (await client.copy(MODEL, "ollama-sdk/copy:v2")).status == "success"
    names = {model.model: model.digest for model in (await client.list()).models}
    assert names["ollama-sdk/copy:v2"] == names[MODEL]
    assert (await client.delete("ollama-sdk/copy:v2")).status == "success"
    names = {model.model: model.digest for model in (await client.list()).models}
    assert "ollama-sdk/copy:v2" not in names
    assert MODEL in names


async def test_a_model_goes_to_a_registry_and_comes_back(sync: Client, client: AsyncClient, tmp_path: Path) -> None:
    registry = Registry()
    file = tmp_path / "tiny.gguf"
    file.write_bytes(tiny_gguf(300_000))
    async with registry.serving() as site:
        name = f"{site.url.removeprefix('http://')}/team/tiny:v1"
        digest = sync.create_blob(file)
        await client.create(name, files={"tiny.gguf": digest}, system="Be brief.")
        pushed = [frame async for frame in await client.push(name, insecure=True, stream=True)]
        assert (pushed[0].status, pushed[-1].status) == ("retrieving manifest", "success")
        assert registry.blobs[digest] == file.read_bytes()
        await client.delete(name)
        pulled = [frame async for frame in await client.pull(name, insecure=True, stream=True)]
        assert (pulled[0].status, pulled[-1].status) == ("pulling manifest", "success")
        shown = await client.show(name)
        assert shown.modelfile
        assert "SYSTEM Be brief." in shown.modelfile
        await client.delete(name)
        with pytest.raises(ResponseError, match="file does not exist") as caught:
            await client.pull(name.replace("tiny", "nothing"), insecure=True)
        assert caught.value.status_code == 404


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_not_found_by_any_route(client: AsyncClient) -> None:
    for asked in (
        client.chat("nobody", ASK),
        client.generate("nobody", PROMPT),
        client.embed("nobody", "a cat"),
        client.embeddings("nobody", "a cat"),
        client.show("nobody"),
        client.copy("nobody", "somebody"),
        client.delete("nobody"),
        client.push("nobody"),
    ):
        with pytest.raises(ResponseError, match="not found") as caught:
            await asked
        assert caught.value.status_code == 404


async def test_an_unknown_model_is_not_found_in_a_stream_either(client: AsyncClient) -> None:
    with pytest.raises(ResponseError, match="not found") as caught:
        await anext(aiter(await client.chat("nobody", ASK, stream=True)))
    assert caught.value.status_code == 404


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"raw": True, "system": "x"}, "raw mode does not support template, system, or context"),
        ({"suffix": "return x"}, f'"{MODEL}" does not support insert'),
        ({"think": True}, f'"{MODEL}" does not support thinking'),
        ({"images": ["iVBORw0KGgo="]}, "takes no images"),
        ({"options": {"num_predict": "many"}}, 'option "num_predict" must be of type integer'),
        ({"keep_alive": "soon"}, 'time: invalid duration "soon"'),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_cannot_be_is_a_mistake_of_the_caller(client: AsyncClient, asked: Any, text: str) -> None:
    with pytest.raises(ResponseError) as caught:
        await client.generate(MODEL, PROMPT, **asked)
    assert caught.value.status_code == 400
    assert text in caught.value.error


async def test_a_bad_format_is_a_mistake_of_the_caller(drivetrain: Server) -> None:
    answer = await drivetrain.post("/api/chat", {"model": MODEL, "messages": ASK, "format": "yaml"})
    assert answer.status_code == 400
    assert answer.json()["error"] == 'invalid format: "yaml"; expected "json" or a valid JSON Schema object'


async def test_a_prompt_beyond_the_context_loses_its_beginning(client: AsyncClient, drivetrain: Server) -> None:
    async with created(client, "ollama-sdk-short", parameters={"num_ctx": 256}) as name:
        long = "word " * 300 + PROMPT
        whole = await client.generate(name, long, options=GREEDY)
        assert 192 <= (whole.prompt_eval_count or 0) < 256
        raw = await client.generate(name, long, raw=True, options=GREEDY)
        assert 192 <= (raw.prompt_eval_count or 0) < 256
        refused = await drivetrain.post("/api/generate", {"model": name, "prompt": long, "truncate": False})
        assert refused.status_code == 400
        assert "context" in refused.json()["error"]


async def test_a_long_conversation_loses_its_oldest_turns(client: AsyncClient, drivetrain: Server) -> None:
    async with created(client, "ollama-sdk-forgetful", parameters={"num_ctx": 256}) as name:
        system = {"role": "system", "content": "You are a pirate."}
        old = [{"role": role, "content": "word " * 60} for role in ("user", "assistant") * 3]
        long = await client.chat(name, [system, *old, *ASK], options=GREEDY)
        short = await client.chat(name, [system, *old[4:], *ASK], options=GREEDY)
        assert (long.message.content, long.prompt_eval_count) == (short.message.content, short.prompt_eval_count)
        body = {"model": name, "messages": [*old, *ASK], "truncate": False}
        refused = await drivetrain.post("/api/chat", body)
        assert refused.status_code == 400
        assert "context" in refused.json()["error"]


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    async with AsyncClient(host="http://127.0.0.1:9") as client:
        with pytest.raises(ConnectionError):
            await client.list()
