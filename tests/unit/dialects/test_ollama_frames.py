"""An Ollama server's stream becomes events, the same however it is cut; its errors become ours."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from drivetrain.dialects.ollama import CHAT, GENERATE
from drivetrain.dialects.ollama.surfaces import OllamaSurface
from drivetrain.errors import (
    BadRequest,
    ContextOverflow,
    DrivetrainError,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    LoadFailed,
    ModelNotFound,
    TooLarge,
    Unsupported,
)
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    LogprobDelta,
    Opaque,
    ReasoningDelta,
    Request,
    Source,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)

AT = "2026-01-02T03:04:05.123456789Z"
FOREIGN = Request(model="m", source=Source(dialect="openai.chat", fields={}))
SAME = Request(model="m", source=Source(dialect="ollama.chat", fields={}))
METRICS: dict[str, Any] = {
    "total_duration": 174560334,
    "load_duration": 101397084,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 13074791,
    "eval_count": 18,
    "eval_duration": 52479709,
}


def frame(
    content: str = "", *, done: bool = False, thinking: str = "", calls: list[Any] | None = None, **top: Any
) -> bytes:
    said: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        said["thinking"] = thinking
    if calls:
        said["tool_calls"] = calls
    return (
        json.dumps({"model": "e", "created_at": AT, "message": said, "done": done, **top}, ensure_ascii=False).encode()
        + b"\n"
    )


def call(name: str, arguments: Any, **rest: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments, **rest}}


def read(
    pieces: Iterable[bytes], request: Request = FOREIGN, surface: OllamaSurface = CHAT
) -> tuple[list[Event], str | None]:
    """The events, and the error that ended them, if one did."""
    decoder, events = surface.decoder(request), list[Event]()
    try:
        for piece in pieces:
            events += decoder.feed(piece)
        events += decoder.close()
    except DrivetrainError as error:
        return events, f"{type(error).__name__}: {error.message}"
    return events, None


def test_text_and_the_final_frame() -> None:
    events, error = read([frame("Hel"), frame("lo"), frame(done=True, done_reason="stop", **METRICS)])
    assert error is None
    assert events == [
        TextDelta(text="Hel"),
        TextDelta(text="lo"),
        ChoiceFinished(reason="stop"),
        Finished(
            usage=Usage(prompt=11, completion=18),
            timings=Timings(load_s=0.101397084, prompt_s=0.013074791, completion_s=0.052479709),
        ),
    ]


def test_generate_frames() -> None:
    lines = [
        {"model": "e", "created_at": AT, "response": "", "thinking": "hm", "done": False},
        {"model": "e", "created_at": AT, "response": "Hi", "done": False},
        {
            "model": "e",
            "created_at": AT,
            "response": "!",
            "done": True,
            "done_reason": "length",
            "context": [1, 2],
            "eval_count": 2,
        },
    ]
    events, error = read([json.dumps(line).encode() + b"\n" for line in lines], surface=GENERATE)
    assert error is None
    assert events == [
        ReasoningDelta(text="hm"),
        TextDelta(text="Hi"),
        TextDelta(text="!"),
        ChoiceFinished(reason="length"),
        Finished(usage=Usage(completion=2)),
    ]


def test_parallel_calls_in_one_frame_or_several_are_told_apart() -> None:  # ollama#15457, #7881; litellm#33678
    stream = [
        frame(calls=[call("f", {"b": 1, "a": [1.5, 2]}), call("f", {"b": 2})]),
        frame(calls=[call("g", {}, index=0)]),
        frame(done=True, done_reason="stop"),
    ]
    events, _ = read(stream)
    answer = fold(events).choices[0]
    assert [(said.name, said.arguments) for said in answer.tool_calls] == [
        ("f", '{"b":1,"a":[1.5,2]}'),
        ("f", '{"b":2}'),
        ("g", "{}"),
    ]
    assert len({said.id for said in answer.tool_calls}) == 3
    assert answer.reason == "tool_calls"  # ollama PR#7963: though the calls came frames before the end
    assert [event.call for event in events if isinstance(event, ToolCallStart | ToolCallDelta)] == [0, 0, 1, 1, 2, 2]


def test_an_engines_call_id_is_kept_and_a_missing_one_depends_on_the_frame() -> None:
    def ids(*lines: bytes) -> list[str]:
        return [event.id for event in read([*lines, frame(done=True)])[0] if isinstance(event, ToolCallStart)]

    assert ids(frame(calls=[{"id": "call_1", **call("f", {})}])) == ["call_1"]
    once, again, later = (ids(frame(calls=[call("f", {})], at=at)) for at in (1, 1, 2))
    assert once == again != later


def test_empty_tool_calls_with_text_are_text() -> None:  # litellm#29286
    line = (
        json.dumps({"message": {"role": "assistant", "content": "x", "tool_calls": []}, "done": False}).encode() + b"\n"
    )
    assert read([line, frame(done=True)])[0][0] == TextDelta(text="x")


def test_logprobs() -> None:
    wire = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [{"token": "Ho", "logprob": -1.5}]}]
    events, _ = read([frame("Hi", logprobs=wire), frame(done=True)])
    token = TokenLogprob(token="Hi", logprob=-0.5, bytes=(72, 105), top=(TokenLogprob(token="Ho", logprob=-1.5),))
    assert events[:2] == [TextDelta(text="Hi"), LogprobDelta(tokens=(token,))]


def test_null_members_are_absent_ones() -> None:
    nulls = {
        "message": {"role": "assistant", "content": None, "thinking": None, "tool_calls": None},
        "logprobs": None,
        "error": None,
    }
    line = json.dumps({"model": "e", **nulls}).encode() + b"\n"
    assert read([line, frame(done=True)])[0] == [ChoiceFinished(reason="stop"), Finished()]


def test_frames_are_kept_on_the_same_surface_only_and_each_once() -> None:
    stream = [
        frame("a", thinking="t"),
        frame(),
        frame(calls=[call("f", {}), call("g", {})]),
        frame("z", done=True, done_reason="stop", **METRICS),
    ]
    events, _ = read(stream, SAME)
    assert [type(event) for event in events] == [
        *(ReasoningDelta, TextDelta, Opaque),
        *(ToolCallStart, ToolCallDelta, ToolCallStart, ToolCallDelta),
        *(TextDelta, ChoiceFinished, Finished),
    ]
    assert [event.raw for event in events] == [stream[0], b"", stream[1], stream[2], b"", b"", b"", b"", b"", stream[3]]
    assert all(event.raw is None for event in read(stream)[0])
    assert all(event.raw is None for event in read(stream, SAME, GENERATE)[0])


def test_members_of_the_final_frame_that_only_ollama_knows_are_kept() -> None:
    events, _ = read([frame(done=True, context=[1, 2], remote_host="h", **METRICS)], SAME)
    assert isinstance(events[-1], Finished)
    assert {name: bytes(raw) for name, raw in events[-1].extra.items()} == {
        "total_duration": b"174560334",
        "context": b"[1, 2]",
        "remote_host": b'"h"',
    }


def test_what_follows_the_final_frame_is_no_part_of_the_answer() -> None:
    events, error = read([frame(done=True) + frame("more"), b'{"error":"late"}\n', b"junk"])
    assert error is None
    assert events == [ChoiceFinished(reason="stop"), Finished()]


def test_a_last_line_without_its_newline_counts() -> None:
    events, error = read([frame("a"), frame(done=True).rstrip()])
    assert (len(events), error) == (3, None)


STREAM = b"".join(
    [
        frame("Grüße, 日本語 "),
        b"\n",
        frame("👩‍👩‍👧", thinking="思考").replace(b"\n", b"\r\n"),
        frame(calls=[call("f", {"k": "é\nline"})]),
        frame("x", logprobs=[{"token": "x", "logprob": -1.0}]),
        frame(done=True, done_reason="stop", **METRICS),
    ]
)
BROKEN = frame("Hel") + frame("lo") + b'{"error":"it broke"}\n'


@pytest.mark.parametrize("request_", [FOREIGN, SAME], ids=["foreign", "same"])
@pytest.mark.parametrize("stream", [STREAM, BROKEN, BROKEN[:-10]], ids=["whole", "error", "truncated"])
def test_a_stream_cut_at_every_byte_gives_the_same_events(
    stream: bytes, request_: Request
) -> None:  # rig#1758, llama.cpp#28926
    whole = read([stream], request_)
    assert len(whole[0]) > 1
    for cut in range(len(stream) + 1):
        assert read([stream[:cut], stream[cut:]], request_) == whole
    assert read([stream[at : at + 1] for at in range(len(stream))], request_) == whole


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in pairwise(edges)], SAME) == read([STREAM], SAME)


# --- errors in a stream -----------------------------------------------------------------------------------------------


def test_events_before_an_error_in_one_piece_are_not_lost() -> None:
    events, error = read([BROKEN])
    assert events == [TextDelta(text="Hel"), TextDelta(text="lo")]
    assert error == "EngineFailed: it broke"


def test_an_error_is_raised_again_whatever_comes() -> None:
    decoder = CHAT.decoder(FOREIGN)
    assert len(decoder.feed(BROKEN)) == 2
    for _ in range(2):
        with pytest.raises(EngineFailed, match="it broke"):
            decoder.feed(frame("more"))
    with pytest.raises(EngineFailed, match="it broke"):
        decoder.close()


@pytest.mark.parametrize("end", [b"", frame("Hel")[:-5], frame("lo")])
def test_a_stream_without_its_final_frame_has_failed(end: bytes) -> None:
    _, error = read([frame("Hel"), end])
    assert error is not None
    assert error.startswith("EngineFailed: ")


@pytest.mark.parametrize(
    "junk", [b"<html>bad gateway</html>\n", b"[1]\n", b'{"message":5}\n', b"\xff\n", b'{"a":' + b"[" * 99999 + b"\n"]
)
def test_what_is_no_frame_is_the_engines_failure(junk: bytes) -> None:
    _, error = read([junk])
    assert error is not None
    assert error.startswith("EngineFailed: the engine sent what is no Ollama frame")
    assert len(error) < 400


def test_an_error_may_be_an_object() -> None:
    assert read([b'{"error":{"message":"it broke"}}\n'])[1] == 'EngineFailed: {"message":"it broke"}'


# --- error answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (404, "model 'x' not found", ModelNotFound),
        (404, 'model "x" not found, try pulling it first', ModelNotFound),
        (400, "registry.ollama.ai/library/x:latest does not support tools", Unsupported),
        (400, '"x" does not support thinking', Unsupported),
        (503, "server busy, please try again.  maximum pending requests exceeded", EngineOverloaded),
        (500, "the input length exceeds the context length", ContextOverflow),
        (400, "request (600 tokens) exceeds the available context size (512 tokens)", ContextOverflow),
        (400, "prompt too long; exceeded max context length by 4 tokens", ContextOverflow),
        (500, "model requires more system memory (9.1 GiB) than is available (7.5 GiB)", LoadFailed),
        (500, "llama runner process has terminated: exit status 2", LoadFailed),
        (500, "unable to load model: /blobs/sha256-1", LoadFailed),
        (400, 'option "num_ctx" must be of type integer', BadRequest),
        (500, "image: unknown format", BadRequest),
        (400, "missing request body", BadRequest),
        (413, "too large", TooLarge),
        (429, "slow down", EngineOverloaded),
        (503, "loading", EngineUnavailable),
        (504, "late", EngineTimeout),
        (500, "an error was encountered while running the model", EngineFailed),
        (401, "unauthorized", EngineFailed),
        (402, "this model does not support free accounts", EngineOverloaded),
        (403, "forbidden", EngineFailed),
    ],
)
def test_an_engines_error_answer_is_told_by_its_text(status: int, text: str, kind: type[DrivetrainError]) -> None:
    error = CHAT.decode_error(status, msgspec.json.encode({"error": text}))
    assert type(error) is kind
    assert text in error.message
    error = GENERATE.decode_error(status, msgspec.json.encode({"error": {"message": text, "code": None}}))
    assert type(error) is kind


def test_an_address_without_the_api_is_named() -> None:
    error = CHAT.decode_error(404, b"404 page not found")
    assert type(error) is EngineFailed
    assert "check its url" in error.message


@pytest.mark.parametrize("body", [b"", b"null", b"\xff\xfe", b"<html>", b'{"error":null}', b"[" * 99999])
def test_any_error_body_is_read(body: bytes) -> None:
    error = CHAT.decode_error(502, body)
    assert isinstance(error, EngineError)
    assert error.message
    assert len(error.message) < 2100


def test_raw_members_do_not_hold_the_stream() -> None:
    events, _ = read([frame(done=True, **METRICS)], SAME)
    assert isinstance(events[-1], Finished)
    assert events[-1].extra["total_duration"] == Raw(b"174560334")
