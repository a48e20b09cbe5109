"""A usage tells what the answer cost, exact, where it has a price; an engine's own frame is changed nowhere else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drivetrain.dialects import ollama, sse
from drivetrain.dialects.openai import CHAT, COMPLETIONS, encode_embeddings
from drivetrain.dialects.openai.usage import priced
from drivetrain.types import (
    Choice,
    ChoiceFinished,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Request,
    Response,
    TextDelta,
    Usage,
)

BODY = b'{"model":"public","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":%b}'
ASKED = CHAT.decode_request(BODY % b'{"include_usage":true}')
NOT_ASKED = CHAT.decode_request(BODY % b"{}")
HEAD = b'data: {"id":"c","object":"chat.completion.chunk","created":5,"model":"theirs",'
USAGE = b'"usage":{"prompt_tokens":3, "completion_tokens":2,"total_tokens":5,"odd":{"usage":[1]}}'
THEIRS = (
    HEAD
    + b'"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}],"usage":null}\n\n',
    HEAD + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\n',
    HEAD + b'"choices":[],' + USAGE + b',"x":1}\n\n',
)


def answered(request: Request, frames: tuple[bytes, ...] = THEIRS, micro_usd: int | None = 123) -> bytes:
    """What a caller gets of an engine's stream when the gateway has put a price to it."""
    decoder = CHAT.decoder(request)
    events: list[Event] = [*decoder.feed(b"".join(frames) + b"data: [DONE]\n\n"), *decoder.close()]
    end = events[-1]
    assert isinstance(end, Finished)
    events[-1] = replace(end, usage=replace(end.usage, cost_micro_usd=micro_usd))
    return b"".join(map(CHAT.reply(request, id="7", created_s=5.0).encode, events))


@pytest.mark.parametrize(
    ("micro_usd", "text"),
    [
        (0, b"0"),
        (1, b"0.000001"),
        (123, b"0.000123"),
        (100_000, b"0.1"),
        (1_000_000, b"1"),
        (10_000_000, b"10"),
        (12_345_678, b"12.345678"),
        (9_007_199_254_740_993, b"9007199254.740993"),
    ],
)
def test_a_cost_is_a_number_of_dollars_to_the_last_digit(micro_usd: int, text: bytes) -> None:
    end = Finished(usage=Usage(prompt=1, cost_micro_usd=micro_usd))
    said = CHAT.reply(Request(model="m", include_usage=True), id="7", created_s=5.0).encode(end)
    assert b',"cost":' + text + b"}}\n\n" in said


def test_an_engines_chunk_of_usage_gets_the_cost_and_is_else_forwarded_as_it_came() -> None:
    ours = [frame.replace(b'"theirs"', b'"public"') for frame in THEIRS]
    ours[-1] = ours[-1].replace(b'"odd":{"usage":[1]}}', b'"odd":{"usage":[1]},"cost":0.000123}')
    assert answered(ASKED) == b"".join(ours) + b"data: [DONE]\n\n"


def test_nothing_has_a_price_nothing_is_added() -> None:
    ours = b"".join(THEIRS).replace(b'"theirs"', b'"public"')
    assert answered(ASKED, micro_usd=None) == ours + b"data: [DONE]\n\n"


def test_a_caller_who_did_not_ask_for_usage_gets_no_cost() -> None:
    stream = answered(NOT_ASKED)
    assert b"cost" not in stream
    assert b"usage" not in stream.replace(b'"usage":null', b"")


def test_an_engines_own_cost_gives_way_to_ours() -> None:
    theirs = (*THEIRS[:2], HEAD + b'"choices":[],"usage":{"prompt_tokens":3,"cost":9.5,"is_byok":false}}\n\n')
    last = answered(ASKED, theirs).split(b"\n\n")[-3]
    assert json.loads(last[6:])["usage"] == {"prompt_tokens": 3, "cost": 0.000123, "is_byok": False}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b'data: {"usage":{}}\n\n', b'data: {"usage":{"cost":0.000123}}\n\n'),
        (b'data: {"usage":{"a":1 }}\n\n', b'data: {"usage":{"a":1,"cost":0.000123}}\n\n'),
        (b'data: {"usage":{"a":1}}\r\n\r\n', b'data: {"usage":{"a":1,"cost":0.000123}}\r\n\r\n'),
        (b'data: {"usage":{"a":\ndata: 1}}\n\n', b'data: {"usage":{"a":1,"cost":0.000123}}\n\n'),
        (b'data: {"usage":{"a":1},"x":{"a":1}}\n\n', b'data: {"usage":{"a":1,"cost":0.000123},"x":{"a":1}}\n\n'),
        (b'data: {"x":{"a":1},"usage":{"a":1}}\n\n', b'data: {"x":{"a":1},"usage":{"a":1,"cost":0.000123}}\n\n'),
        (
            b'data: {"x":{"usage":{"a":1}},"usage":{"a":1}}\n\n',
            b'data: {"x":{"usage":{"a":1}},"usage":{"a":1,"cost":0.000123}}\n\n',
        ),
        (b'data: {"x":"\\"usage\\":1","usage":null}\n\n', b'data: {"x":"\\"usage\\":1","usage":{"cost":0.000123}}\n\n'),
        (b": a comment\n\n", b": a comment\n\n"),
    ],
)
def test_frames_however_an_engine_writes_them(frame: bytes, expected: bytes) -> None:
    assert priced(frame, Usage(cost_micro_usd=123)) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", '"usage":{}', "x\ny", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["usage", "cost", "a"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["id", "x", "usage"]), json_values), st.sampled_from([None, 1]))
def test_nothing_but_the_cost_is_changed(chunk: dict[str, Any], indent: int | None) -> None:
    chunk["usage"] = chunk["usage"] if isinstance(chunk.get("usage"), dict) else {}
    text = json.dumps(chunk, indent=indent, ensure_ascii=False)
    frame = "".join(f"data: {line}\n" for line in text.split("\n")) + "\n"
    (data, raw, _) = sse.last(priced(frame.encode(), Usage(cost_micro_usd=7))) or (b"", b"", b"")
    assert raw.endswith(b"\n\n")
    assert json.loads(data) == {**chunk, "usage": {**chunk["usage"], "cost": 0.000007}}


def test_a_whole_answer_tells_its_cost() -> None:
    response = Response(choices=(Choice(index=0, text="Hi"),), usage=Usage(prompt=3, completion=2, cost_micro_usd=123))
    for surface in (CHAT, COMPLETIONS):
        told = json.loads(surface.reply(Request(model="m"), id="7", created_s=5.0).whole(response))["usage"]
        assert (told["total_tokens"], told["cost"]) == (5, 0.000123)
    unpriced = Response(choices=(Choice(index=0),))
    assert "cost" not in json.loads(CHAT.reply(Request(model="m"), id="7", created_s=5.0).whole(unpriced))["usage"]


def test_embeddings_tell_their_cost() -> None:
    request = EmbedRequest(model="m", inputs=("x",))
    made = Embeddings(vectors=([1.0],), usage=Usage(prompt=4, cost_micro_usd=7))
    assert json.loads(encode_embeddings(request, made))["usage"] == {
        "prompt_tokens": 4,
        "total_tokens": 4,
        "cost": 0.000007,
    }
    free = Embeddings(vectors=([1.0],), usage=Usage(prompt=4))
    assert json.loads(encode_embeddings(request, free))["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_ollama_has_no_word_for_it() -> None:
    reply = ollama.CHAT.reply(Request(model="m", stream=True), id="7", created_s=5.0)
    usage = Usage(prompt=3, completion=1, cost_micro_usd=123)
    events: tuple[Event, ...] = (TextDelta(text="a"), ChoiceFinished(reason="stop"), Finished(usage=usage))
    assert b"cost" not in b"".join(reply.encode(event) for event in events)
    assert b"cost" not in reply.whole(Response(choices=(Choice(index=0),), usage=usage))
