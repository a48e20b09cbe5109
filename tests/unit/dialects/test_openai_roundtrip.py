"""What one side of the codec writes, the other reads back; and the official client reads it too."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from openai.types import Completion as SdkCompletion
from openai.types import CreateEmbeddingResponse
from openai.types import Model as SdkModel
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from drivetrain.dialects import Surface
from drivetrain.dialects.openai import (
    CHAT,
    COMPLETIONS,
    decode_embed_request,
    decode_embeddings,
    decode_models,
    encode_embed_request,
    encode_embeddings,
    encode_model,
    encode_models,
)
from drivetrain.types import (
    Audio,
    Choice,
    ChoiceFinished,
    Completion,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    FinishReason,
    Grammar,
    Image,
    JsonObject,
    JsonSchema,
    LogprobDelta,
    Message,
    Model,
    NamedTool,
    Opaque,
    ReasoningDelta,
    Request,
    Response,
    Sampling,
    Text,
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)

PROFILE = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
names = st.text("abcXYZ_-09é", min_size=1, max_size=8)
counts = st.integers(0, 2**31 - 1)
schemas = st.dictionaries(names, st.one_of(words, counts, st.booleans()), max_size=3).map(
    lambda value: Raw(msgspec.json.encode(value))
)
maybe = st.none()


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


parts = st.one_of(
    st.builds(Text, text=words),
    st.builds(Image, url=words, detail=maybe | words),
    st.builds(Audio, data=words, format=st.sampled_from(["wav", "mp3"])),
)
calls = st.builds(ToolCall, id=names, name=names, arguments=schemas.map(lambda raw: bytes(raw).decode()))
messages = st.one_of(
    st.builds(
        Message,
        role=st.sampled_from(["system", "developer", "user"]),
        content=st.lists(parts, max_size=3).map(tuple),
        name=maybe | names,
    ),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=st.lists(st.builds(Text, text=words), max_size=2).map(tuple),
        reasoning=st.just("") | words,
        tool_calls=st.lists(calls, max_size=2).map(tuple),
    ),
    st.builds(Message, role=st.just("tool"), content=st.tuples(st.builds(Text, text=words)), tool_call_id=names),
)
common: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": maybe | counts,
    "temperature": maybe | numbers(0, 2),
    "top_p": maybe | numbers(0, 1),
    "top_k": maybe | counts,
    "min_p": maybe | numbers(0, 1),
    "typical_p": maybe | numbers(0, 1),
    "seed": maybe | st.integers(-(2**63), 2**63 - 1),
    "stop": st.lists(words, max_size=4).map(tuple),
    "presence_penalty": maybe | numbers(-2, 2),
    "frequency_penalty": maybe | numbers(-2, 2),
    "repeat_penalty": maybe | numbers(0, 3),
    "repeat_last_n": maybe | st.integers(-1, 4096),
    "logit_bias": maybe | st.dictionaries(names, numbers(-100, 100), max_size=2),
    "n": st.integers(1, 128),
}
of_a_chat = {**common, "max_tokens": maybe | st.integers(1, 2**31 - 1)}
chat_sampling = st.one_of(
    st.builds(Sampling, **of_a_chat),
    st.builds(Sampling, **of_a_chat, logprobs=st.just(True), top_logprobs=st.integers(0, 20)),
)
outputs = st.one_of(
    maybe,
    st.just(JsonObject()),
    st.builds(JsonSchema, schema=schemas, name=names, strict=maybe | st.booleans()),
    st.builds(Grammar, text=words),
)
tools = st.lists(
    st.builds(Tool, name=names, description=st.just("") | words, parameters=schemas, strict=maybe | st.booleans()),
    min_size=1,
    max_size=2,
).map(tuple)
tooling: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    tools.flatmap(
        lambda tools: st.fixed_dictionaries(
            {
                "tools": st.just(tools),
                "tool_choice": st.sampled_from([None, "auto", "none", "required", NamedTool(name=tools[0].name)]),
                "parallel_tool_calls": maybe | st.booleans(),
            }
        )
    ),
)
chats = st.builds(
    lambda tooling, **members: Request(**members, **tooling),
    tooling,
    model=names,
    messages=st.lists(messages, min_size=1, max_size=4).map(tuple),
    sampling=chat_sampling,
    output=outputs,
    reasoning=st.sampled_from([None, "none", "low", "medium", "high"]),
    user=maybe | words,
)
token_ids = st.lists(counts, min_size=1, max_size=3).map(tuple)
prompts = st.one_of(
    st.lists(words, min_size=1, max_size=3).map(tuple), st.lists(token_ids, min_size=1, max_size=3).map(tuple)
)
completions = st.builds(
    Request,
    model=names,
    completion=st.builds(
        Completion, prompts=prompts, suffix=maybe | words, echo=st.booleans(), logprobs=maybe | st.integers(0, 5)
    ),
    sampling=st.builds(Sampling, **common),
    output=outputs,
    user=maybe | words,
)


def asked_for_a_stream(request: Request) -> Request:
    """What a request for an engine always asks for."""
    return replace(request, stream=True, include_usage=True)


@PROFILE
@given(chats)
def test_a_chat_for_an_engine_reads_back_as_it_was(request: Request) -> None:
    read = CHAT.decode_request(CHAT.encode_request(request))
    assert replace(read, source=None) == asked_for_a_stream(request)


@PROFILE
@given(completions)
def test_a_completion_for_an_engine_reads_back_as_it_was(request: Request) -> None:
    read = COMPLETIONS.decode_request(COMPLETIONS.encode_request(request))
    assert replace(read, source=None) == asked_for_a_stream(request)


@PROFILE
@given(chats)
def test_a_chat_passed_on_to_the_same_surface_loses_nothing(request: Request) -> None:
    body = CHAT.encode_request(request)
    again = CHAT.encode_request(CHAT.decode_request(body))
    assert json.loads(again) == json.loads(body)


# --- streams ----------------------------------------------------------------------------------------------------------

logprobs = st.builds(
    TokenLogprob,
    token=words,
    logprob=numbers(-50, 0),
    bytes=maybe | st.lists(st.integers(0, 255), max_size=4).map(tuple),
    top=st.lists(st.builds(TokenLogprob, token=words, logprob=numbers(-50, 0)), max_size=2).map(tuple),
)
usages = st.builds(Usage, prompt=counts, cached=counts, completion=counts, reasoning=counts)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Events of one or two choices, in an order that an engine may send them in."""
    events: list[Event] = []
    for index in range(draw(st.integers(1, 2))):
        content = st.one_of(
            st.builds(TextDelta, text=words, index=st.just(index)),
            st.builds(ReasoningDelta, text=words, index=st.just(index)),
            st.builds(LogprobDelta, tokens=st.lists(logprobs, min_size=1, max_size=2).map(tuple), index=st.just(index)),
        )
        events += draw(st.lists(content, max_size=5))
        ids = draw(st.lists(names, max_size=2, unique=True))
        for position, id in enumerate(ids):
            events.append(ToolCallStart(index=index, call=position, id=id, name=draw(names)))
            pieces = draw(st.lists(words, max_size=2))
            events += [ToolCallDelta(index=index, call=position, arguments=piece) for piece in pieces]
        reason: FinishReason = "tool_calls" if ids else draw(st.sampled_from(["stop", "length", "content_filter"]))
        events.append(ChoiceFinished(index=index, reason=reason))
    return [*events, Finished(usage=draw(usages))]


def written(events: list[Event], surface: Surface, request: Request) -> bytes:
    reply = surface.reply(request, id="1", created_s=1)
    return b"".join(reply.encode(event) for event in events)


def read(stream: bytes, surface: Surface, request: Request, *cuts: int) -> list[Event]:
    decoder = surface.decoder(request)
    events: list[Event] = []
    start = 0
    for end in (*sorted(cuts), len(stream)):
        events.extend(decoder.feed(stream[start:end]))
        start = end
    return [*events, *decoder.close()]


CHAT_REQUEST = Request(model="m", stream=True, include_usage=True)
SAME = CHAT.decode_request(
    b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}'
)


@PROFILE
@given(streams(), st.data())
def test_a_stream_reads_back_as_it_was_wherever_it_is_cut(events: list[Event], data: st.DataObject) -> None:
    stream = written(events, CHAT, CHAT_REQUEST)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
    assert read(stream, CHAT, CHAT_REQUEST, *cuts) == events


@PROFILE
@given(streams())
def test_a_stream_passed_on_to_the_same_surface_is_the_same_bytes(events: list[Event]) -> None:
    stream = written(events, CHAT, CHAT_REQUEST)
    passed_on = read(stream, CHAT, SAME)
    assert written(passed_on, CHAT, SAME) == stream
    assert fold(passed_on).choices == fold(events).choices


@PROFILE
@given(st.lists(words, min_size=1, max_size=5), st.sampled_from(["stop", "length"]), usages)
def test_a_raw_completion_reads_back_as_it_was(texts: list[str], reason: Any, usage: Usage) -> None:
    request = Request(model="m", stream=True, include_usage=True, completion=Completion(prompts=("p",)))
    events: list[Event] = [
        *(TextDelta(text=text) for text in texts),
        ChoiceFinished(reason=reason),
        Finished(usage=usage),
    ]
    assert read(written(events, COMPLETIONS, request), COMPLETIONS, request) == events


@PROFILE
@given(st.lists(token_ids | words, min_size=1, max_size=3), maybe | st.integers(1, 2**31 - 1))
def test_a_request_for_embeddings_reads_back_as_it_was(inputs: list[Any], dimensions: int | None) -> None:
    kinds = [item for item in inputs if isinstance(item, type(inputs[0]))]
    request = EmbedRequest(model="m", inputs=tuple(kinds), dimensions=dimensions, truncate=False)
    assert replace(decode_embed_request(encode_embed_request(request)), source=None) == request


@PROFILE
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["float", "base64"]),
)
def test_embeddings_read_back_as_they_were(vectors: list[list[float]], encoding: str) -> None:
    request = decode_embed_request(msgspec.json.encode({"model": "m", "input": "x", "encoding_format": encoding}))
    embeddings = Embeddings(vectors=tuple(vectors), usage=Usage(prompt=3))
    assert decode_embeddings(encode_embeddings(request, embeddings)) == embeddings


@PROFILE
@given(st.lists(st.builds(Model, id=words, created_s=counts, context_length=maybe | st.integers(1, 2**31)), max_size=3))
def test_a_list_of_models_reads_back_as_it_was(models: list[Model]) -> None:
    assert decode_models(encode_models(models)) == tuple(models)


# --- the official client ----------------------------------------------------------------------------------------------


def checked(model: type[BaseModel], body: bytes) -> Any:
    """Parsed and validated; strictly, which the client itself is not."""
    return model.model_validate(json.loads(body), strict=True)


@PROFILE
@given(streams())
def test_the_official_client_reads_every_chunk_and_the_whole(events: list[Event]) -> None:
    lines = written(events, CHAT, CHAT_REQUEST).split(b"\n\n")
    chunks = [checked(ChatCompletionChunk, line[6:]) for line in lines if line.startswith(b"data: {")]
    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {("chatcmpl-1", 1, "m")}
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    response = fold(events)
    whole = checked(ChatCompletion, CHAT.reply(CHAT_REQUEST, id="1", created_s=1).whole(response))
    assert [choice.message.content or "" for choice in whole.choices] == [choice.text for choice in response.choices]
    assert whole.usage.total_tokens == response.usage.prompt + response.usage.completion


@pytest.mark.parametrize("logprobs_", [(), (TokenLogprob(token="a", logprob=-1.0),)])
def test_the_official_client_reads_a_raw_completion(logprobs_: tuple[TokenLogprob, ...]) -> None:
    reply = COMPLETIONS.reply(Request(model="m"), id="1", created_s=1)
    whole = checked(SdkCompletion, reply.whole(Response(choices=(Choice(index=0, text="a", logprobs=logprobs_),))))
    assert whole.choices[0].text == "a"
    assert checked(SdkCompletion, reply.encode(ChoiceFinished(reason="length"))[6:]).choices[0].text == ""


def test_the_official_client_reads_embeddings_and_models() -> None:
    embeddings = encode_embeddings(EmbedRequest(model="m", inputs=("x",)), Embeddings(vectors=([0.5],)))
    assert checked(CreateEmbeddingResponse, embeddings).data[0].embedding == [0.5]
    assert checked(SdkModel, encode_model(Model(id="org/m"))).id == "org/m"


def test_opaque_events_are_not_written_across_dialects() -> None:
    assert written([Opaque()], CHAT, CHAT_REQUEST) == b""
