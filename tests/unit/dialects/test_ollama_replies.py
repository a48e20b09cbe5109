"""Frames that callers of Ollama's API read: their members, their order, and what never stands in them."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import ollama as official
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from drivetrain.dialects import ollama
from drivetrain.dialects.ollama import CHAT, GENERATE, context
from drivetrain.dialects.ollama.surfaces import OllamaSurface
from drivetrain.errors import (
    BudgetExceeded,
    Busy,
    Cancelled,
    EngineFailed,
    EngineOverloaded,
    Forbidden,
    ModelNotFound,
    RateLimited,
    StoreAway,
    Unauthorized,
)
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    LogprobDelta,
    Message,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    Source,
    Text,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)

AT_S = 1767323045.25
AT = "2026-01-02T03:04:05.250000000Z"
HEAD = f'{{"model":"m","created_at":"{AT}",'
ASKED = Request(model="m", messages=(Message(role="user", content=(Text(text="Hi"),)),))
END = Finished(usage=Usage(prompt=3, completion=2), timings=Timings(load_s=1e-9, prompt_s=2e-9, completion_s=0.5))
METRICS = {
    "total_duration": 500000003,
    "load_duration": 1,
    "prompt_eval_count": 3,
    "prompt_eval_duration": 2,
    "eval_count": 2,
    "eval_duration": 500000000,
}


def lines(events: Sequence[Event], surface: OllamaSurface = CHAT, request: Request = ASKED) -> list[str]:
    reply = surface.reply(request, id="ignored", created_s=AT_S)
    return b"".join(reply.encode(event) for event in events).decode().split("\n")[:-1]


def read(events: Sequence[Event], surface: OllamaSurface = CHAT) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(events, surface)]


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_chat_stream() -> None:
    events: list[Event] = [TextDelta(text='He"l'), ReasoningDelta(text="hm"), ChoiceFinished(reason="stop"), Finished()]
    assert lines(events) == [
        HEAD + '"message":{"role":"assistant","content":"He\\"l"},"done":false}',
        HEAD + '"message":{"role":"assistant","content":"","thinking":"hm"},"done":false}',
        HEAD + '"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}',
    ]


def test_a_generate_stream() -> None:
    events: list[Event] = [TextDelta(text="Hé"), ReasoningDelta(text="hm"), ChoiceFinished(reason="length"), END]
    frames = read(events, GENERATE)
    stamped = {"model": "m", "created_at": AT}
    assert frames[0] == {**stamped, "response": "Hé", "done": False}
    assert frames[1] == {**stamped, "response": "", "thinking": "hm", "done": False}
    said = frames[2].pop("context")
    assert frames[2] == {**stamped, "response": "", "done": True, "done_reason": "length", **METRICS}
    assert [(turn.role, turn.text) for turn in context.decode(said)] == [("user", "Hi"), ("assistant", "Hé")]


def test_a_completion_has_no_context() -> None:
    raw = GENERATE.decode_request(b'{"model":"m","prompt":"x","raw":true}')
    assert "context" not in lines([Finished()], GENERATE, raw)[0]


def test_metrics_stand_in_the_final_frame_only_and_zero_is_left_out() -> None:
    frames = read([TextDelta(text="a"), ChoiceFinished(reason="stop"), END])
    assert set(frames[0]) == {"model", "created_at", "message", "done"}
    assert {name: frames[1][name] for name in METRICS} == METRICS
    bare = read([Finished(usage=Usage(completion=2))])[0]
    assert set(bare) == {"model", "created_at", "message", "done", "done_reason", "eval_count"}


@pytest.mark.parametrize(
    ("reason", "said"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "stop")]
)
def test_an_answer_ends_by_stop_or_length(reason: FinishReason, said: str) -> None:
    assert read([ChoiceFinished(reason=reason), Finished()])[-1]["done_reason"] == said


def test_tool_calls_come_whole_before_the_final_frame() -> None:
    events: list[Event] = [
        ToolCallStart(call=0, id="c0", name="f"),
        ToolCallDelta(call=0, arguments='{"z": 1,\n'),
        ToolCallStart(call=1, id="c1", name="g"),
        ToolCallDelta(call=0, arguments=' "a": [2.50]}'),
        ChoiceFinished(reason="tool_calls"),
        Finished(),
    ]
    stream = lines(events)
    assert stream[0] == HEAD + (
        '"message":{"role":"assistant","content":"","tool_calls":['
        '{"id":"c0","function":{"index":0,"name":"f","arguments":{"z":1,"a":[2.50]}}},'
        '{"id":"c1","function":{"index":1,"name":"g","arguments":{}}}]},"done":false}'
    )
    assert len(stream) == 2
    assert lines([*events[:4], Finished()])[0] == stream[0]  # though nobody said that the choice was finished


def test_arguments_that_are_no_object_are_wrapped() -> None:
    events: list[Event] = [
        ToolCallStart(call=0, id="c", name="f"),
        ToolCallDelta(call=0, arguments='{"a": '),
        Finished(),
    ]
    assert read(events)[0]["message"]["tool_calls"][0]["function"]["arguments"] == {"text": '{"a": '}


def test_logprobs() -> None:
    token = TokenLogprob(token="é", logprob=-0.5, bytes=(195, 169), top=(TokenLogprob(token="e", logprob=-1.5),))
    frame = read([LogprobDelta(tokens=(token,))])[0]
    assert frame["message"] == {"role": "assistant", "content": ""}
    assert frame["logprobs"] == [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -1.5}]}
    ]


@pytest.mark.parametrize(
    ("surface", "asked"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
        (GENERATE, {"prompt": "Hi"}),
        (GENERATE, {"prompt": "Hi", "raw": True}),
    ],
    ids=["chat", "generate", "raw"],
)
def test_the_frame_with_a_text_has_its_logprobs(surface: OllamaSurface, asked: dict[str, Any]) -> None:
    request = surface.decode_request(json.dumps({"model": "m", "logprobs": True, **asked}).encode())
    told = [LogprobDelta(tokens=(TokenLogprob(token=token, logprob=-1.0),)) for token in "abc"]
    events: list[Event] = [
        TextDelta(text="a"),
        told[0],
        ReasoningDelta(text="b"),
        told[1],
        told[2],
        TextDelta(text="d"),
        Finished(),
    ]
    frames = [json.loads(line) for line in lines(events, surface, request)]
    assert [frame.get("message", frame).get("thinking") for frame in frames] == [None, "b", None, None, None]
    assert [frame.get("response", frame.get("message", {}).get("content")) for frame in frames] == [
        "a",
        "",
        "",
        "d",
        "",
    ]
    assert [[token["token"] for token in frame.get("logprobs", ())] for frame in frames] == [
        ["a"],
        ["b"],
        ["c"],
        [],
        [],
    ]
    assert [frame["done"] for frame in frames] == [False] * 4 + [True]


def test_a_text_that_waits_for_its_logprobs_goes_out_before_an_error() -> None:
    request = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"logprobs":true}')
    reply = CHAT.reply(request, id="", created_s=AT_S)
    assert reply.encode(TextDelta(text="a")) == b""
    assert reply.error(EngineFailed("no")).decode() == (
        HEAD + '"message":{"role":"assistant","content":"a"},"done":false}\n{"error":"no"}\n'
    )


def test_every_frame_has_the_time_when_it_was_made() -> None:
    times = iter((1767323045_999999999, 1767323046_000000000, 1767323046_000000001))
    reply = CHAT.timed(times.__next__).reply(ASKED, id="", created_s=AT_S)
    frames = [json.loads(reply.encode(event)) for event in (TextDelta(text="a"), TextDelta(text="b"), Finished())]
    assert [frame["created_at"] for frame in frames] == [
        "2026-01-02T03:04:05.999999999Z",
        "2026-01-02T03:04:06.000000000Z",
        "2026-01-02T03:04:06.000000001Z",
    ]


@pytest.mark.parametrize("surface", [CHAT, GENERATE])
def test_progress_is_an_empty_frame_and_never_done(
    surface: OllamaSurface,
) -> None:  # ollama-python#393, langchain#34918
    frame = read([Progress(stage="loading", fraction=0.5)], surface)[0]
    assert frame["done"] is False
    assert "done_reason" not in frame
    assert frame.get("message", {"content": frame.get("response")})["content"] == ""


def test_another_dialects_opaque_frame_says_nothing() -> None:
    assert lines([Opaque()]) == []


def test_an_error_is_one_last_line() -> None:
    reply = CHAT.reply(ASKED, id="", created_s=AT_S)
    assert reply.error(EngineFailed("it\nbroke")) == b'{"error":"it\\nbroke"}\n'
    assert reply.media_type == "application/x-ndjson"


_EVENTS = st.one_of(
    st.builds(TextDelta, text=st.text()),
    st.builds(ReasoningDelta, text=st.text()),
    st.builds(
        LogprobDelta,
        tokens=st.lists(st.builds(TokenLogprob, token=st.text(), logprob=st.floats(-9, 0)), max_size=2).map(tuple),
    ),
    st.just(Progress(stage="queued")),
    st.just(Opaque()),
    st.builds(ToolCallStart, call=st.integers(0, 2), id=st.text(max_size=4), name=st.text(min_size=1, max_size=4)),
    st.builds(ToolCallDelta, call=st.integers(0, 2), arguments=st.text('{}[]",:\n1a ', max_size=6)),
)


@given(st.lists(_EVENTS, max_size=8), st.sampled_from([CHAT, GENERATE]))
def test_every_frame_is_whole_for_the_official_client(events: list[Event], surface: OllamaSurface) -> None:
    stream = lines([*events, ChoiceFinished(reason="stop"), END], surface)
    for line in stream:
        frame = json.loads(line)
        assert "error" not in frame
        assert frame["model"] == "m"
        assert frame["created_at"] == AT
        assert frame["done"] is (line == stream[-1])
        if surface is CHAT:
            assert isinstance(frame["message"]["content"], str)
            official.ChatResponse(**frame)
        else:
            assert isinstance(frame["response"], str)
            official.GenerateResponse(**frame)


# --- decode(encode(events)) == events ---------------------------------------------------------------------------------

_TOKENS = st.builds(
    TokenLogprob,
    token=st.text(),
    logprob=st.floats(-9, 0),
    bytes=st.none() | st.lists(st.integers(0, 255), max_size=2).map(tuple),
    top=st.lists(st.builds(TokenLogprob, token=st.text(), logprob=st.floats(-9, 0)), max_size=2).map(tuple),
)
_CONTENT = st.one_of(
    st.builds(TextDelta, text=st.text(min_size=1)),
    st.builds(ReasoningDelta, text=st.text(min_size=1)),
    st.builds(LogprobDelta, tokens=st.lists(_TOKENS, min_size=1, max_size=2).map(tuple)),
)
_NS = st.integers(1, 10**12).map(lambda ns: ns / 1e9)
_ENDS = st.builds(
    Finished,
    usage=st.builds(Usage, prompt=st.integers(0, 999), completion=st.integers(1, 999)),
    timings=st.none() | st.builds(Timings, load_s=_NS, prompt_s=_NS, completion_s=_NS),
)


@given(
    st.lists(_CONTENT, max_size=6),
    st.integers(0, 2),
    st.sampled_from(["stop", "length"]),
    _ENDS,
    st.sampled_from([CHAT, GENERATE]),
)
def test_a_stream_decodes_to_the_events_it_was_encoded_from(
    content: list[Event], calls: int, reason: FinishReason, end: Finished, surface: OllamaSurface
) -> None:
    asked = [
        event
        for at in range(calls)
        for event in (ToolCallStart(call=at, id=f"c{at}", name="f"), ToolCallDelta(call=at, arguments='{"b":1,"a":[]}'))
    ]
    ended: FinishReason = "tool_calls" if calls and reason == "stop" else reason
    events: list[Event] = [*content, *asked, ChoiceFinished(reason=ended), end]
    reply = surface.reply(ASKED, id="", created_s=AT_S)
    decoder = surface.decoder(Request(model="m", source=Source(dialect="openai.chat", fields={})))
    decoded = [found for event in events for found in decoder.feed(reply.encode(event))]
    assert [*decoded, *decoder.close()] == events


# --- frames of the same surface ---------------------------------------------------------------------------------------


def test_an_engines_frames_go_out_as_they_came_but_for_the_models_name() -> None:
    frames = [
        '{"model":"e\\u003c:1","created_at":"2025-01-01T00:00:00Z","message":{"role":"assistant","content":"e<:1","odd":1.0},"done":false}',
        '{"model":"e\\u003c:1","created_at":"2025-01-01T00:00:00Z","message":{"role":"assistant","content":""},"done":false}',
        '{"created_at":"x","model":"e\\u003c:1","message":{"role":"assistant","content":"y"},"done":false}',
        '{"model":"e\\u003c:1","created_at":"z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","eval_count":1}',
    ]
    asked = CHAT.decode_request(b'{"model":"public","messages":[{"role":"user","content":"x"}]}')
    decoder = CHAT.decoder(msgspec.structs.replace(asked, model="e<:1"))
    events = decoder.feed("\n".join(frames).encode() + b"\n")
    assert lines(events, request=asked) == [
        frame.replace('"model":"e\\u003c:1"', '"model":"public"') for frame in frames
    ]


def test_an_engines_tool_calls_do_not_go_out_twice() -> None:
    asked = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    frames = [
        '{"model":"m","message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]},"done":false}',
        '{"model":"m","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop"}',
    ]
    events = CHAT.decoder(asked).feed("\n".join(frames).encode() + b"\n")
    assert lines(events, request=asked) == frames
    assert [call.name for call in fold(events).choices[0].tool_calls] == ["f"]


def test_an_answer_that_is_not_streamed_keeps_what_only_the_engine_knows() -> None:
    asked = GENERATE.decode_request(b'{"model":"public","prompt":"x","stream":false}')
    engine = (
        b'{"model":"e","created_at":"z","response":"Hi","done":false}\n{"model":"e","created_at":"z","response":"","done":true,'
        b'"done_reason":"stop","context":[1,2],"total_duration":99,"load_duration":7,"eval_count":2,"remote_host":"h"}\n'
    )
    response = fold(GENERATE.decoder(asked).feed(engine))
    whole = json.loads(GENERATE.reply(asked, id="", created_s=AT_S).whole(response))
    assert whole == {
        "model": "public",
        "created_at": AT,
        "response": "Hi",
        "done": True,
        "done_reason": "stop",
        "context": [1, 2],
        "total_duration": 99,
        "load_duration": 7,
        "eval_count": 2,
        "remote_host": "h",
    }


# --- answers that are not streamed ------------------------------------------------------------------------------------


def test_a_whole_answer_is_the_final_frame_with_all_that_was_said() -> None:
    events: list[Event] = [
        ReasoningDelta(text="h"),
        ReasoningDelta(text="m"),
        TextDelta(text="He"),
        TextDelta(text="llo"),
        LogprobDelta(tokens=(TokenLogprob(token="He", logprob=-1.0),)),
        ToolCallStart(call=0, id="c", name="f"),
        ToolCallDelta(call=0, arguments='{"a":1}'),
        ChoiceFinished(reason="tool_calls"),
        END,
    ]
    whole = CHAT.reply(ASKED, id="", created_s=AT_S).whole(fold(events))
    assert json.loads(whole) == {
        "model": "m",
        "created_at": AT,
        "message": {
            "role": "assistant",
            "content": "Hello",
            "thinking": "hm",
            "tool_calls": [{"id": "c", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}],
        },
        "logprobs": [{"token": "He", "logprob": -1.0}],
        "done": True,
        "done_reason": "stop",
        **METRICS,
    }
    assert official.ChatResponse(**json.loads(whole)).message.content == "Hello"


def test_members_of_another_dialects_last_frame_stay_out() -> None:
    response = fold([Finished(extra={"system_fingerprint": Raw(b'"fp"'), "error": Raw(b"null")})])
    whole = json.loads(CHAT.reply(ASKED, id="", created_s=AT_S).whole(response))
    assert set(whole) == {"model", "created_at", "message", "done", "done_reason"}


@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), (300, "load"), (0, "unload"), ("0s", "unload")])
def test_loading_is_answered_by_one_object(keep_alive: Any, reason: str) -> None:
    for surface, said in ((GENERATE, {"response": ""}), (CHAT, {"message": {"role": "assistant", "content": ""}})):
        request = surface.decode_request(json.dumps({"model": "m", "keep_alive": keep_alive}).encode())
        answer = ollama.encode_load(request, created_s=AT_S)
        assert json.loads(answer) == {"model": "m", "created_at": AT, **said, "done": True, "done_reason": reason}
        assert b"\n" not in answer


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_have_the_texts_that_clients_match() -> None:
    said = {
        "model 'x' not found": ollama.errors.model_not_found("x"),
        "x is in no engine (model not found)": ModelNotFound("x is in no engine"),
        "server busy, please try again.  maximum pending requests exceeded": Busy("64 requests wait"),
        "server busy, please try again.  the queue is full": EngineOverloaded("the queue is full"),
        "request canceled": Cancelled("gone"),
        "engine failed": EngineFailed(""),
        "registry.ollama.ai/library/m:latest does not support tools": ollama.errors.does_not_support("m", "tools"),
        '"m" does not support thinking': ollama.errors.does_not_support("m", "thinking"),
        '"not a name" does not support tools': ollama.errors.does_not_support("not a name", "tools"),
        'blob "sha256:1" not found': ollama.errors.blob_not_found("sha256:1"),
        'digest mismatch, expected "a", got "b"': ollama.errors.digest_mismatch("a", "b"),
    }
    for text, error in said.items():
        assert json.loads(CHAT.encode_error(error)) == {"error": text}
    assert ollama.errors.model_not_found("x").status == 404


def test_a_refusal_says_in_its_own_words_why() -> None:
    refusals = (
        Unauthorized("no such key"),
        BudgetExceeded("key 'ci' has spent its budget"),
        Forbidden("key 'ci' may not use model 'x'"),
        RateLimited("key 'ci' allows 100 requests per minute"),
        StoreAway("the database cannot be asked"),
    )
    for error in refusals:
        assert json.loads(CHAT.encode_error(error)) == {"error": error.message}


def test_an_error_answer_is_read_as_the_same_kind() -> None:
    for error in (ollama.errors.model_not_found("x"), ollama.errors.does_not_support("m", "tools")):
        assert type(ollama.decode_error(error.status, ollama.encode_error(error))) is type(error)
