"""An engine's stream, read: every engine's habits give the same events, wherever the bytes were cut."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from drivetrain.dialects import Surface
from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.errors import (
    BadRequest,
    ContextOverflow,
    DrivetrainError,
    EngineFailed,
    EngineOverloaded,
)
from drivetrain.types import (
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    LogprobDelta,
    Opaque,
    ReasoningDelta,
    Request,
    Sampling,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)

FOREIGN = Request(model="m", stream=True)  # of another dialect: no frames are kept
RAW = Request(model="m", stream=True, completion=Completion(prompts=("p",)))
SAME = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}')
WITH_USAGE = CHAT.decode_request(
    b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}'
)
DONE = b"data: [DONE]\n\n"


def chunk(*choices: dict[str, Any], **members: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c1", "model": "engine", "choices": choices, **members}).encode() + b"\n\n"


def delta(index: int = 0, finish_reason: str | None = None, logprobs: Any = None, **members: Any) -> dict[str, Any]:
    return {"index": index, "delta": members, "logprobs": logprobs, "finish_reason": finish_reason}


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    given = {"index": index, "id": id, "function": {key: value for key, value in function.items() if value is not None}}
    return {key: value for key, value in given.items() if value is not None}


def read(pieces: bytes | Iterable[bytes], request: Request = FOREIGN, surface: Surface = CHAT) -> list[Event]:
    decoder = surface.decoder(request)
    events: list[Event] = []
    for piece in [pieces] if isinstance(pieces, bytes) else pieces:
        events.extend(decoder.feed(piece))
    return [*events, *decoder.close()]


def failure(stream: bytes, request: Request = FOREIGN) -> tuple[list[Event], DrivetrainError]:
    decoder = CHAT.decoder(request)
    events: list[Event] = []
    with pytest.raises(DrivetrainError) as caught:
        events.extend(decoder.feed(stream))
        events.extend(decoder.close())
    return events, caught.value


ANSWER = b"".join(
    [
        b": keep-alive\n\n",
        chunk(delta(role="assistant", content="")),
        chunk(delta(content="Hé ")),
        chunk(delta(content="日本 😀")).replace(b"\\ud83d\\ude00", "😀".encode()),
        chunk(delta(content='\r\n"}]\\')).replace(b"\n\n", b"\r\n\r\n"),
        b'data: {"id":"c1","model":"engine",\r\ndata: "choices":[{"index":0,"delta":{"content":"two lines"}}]}\r\n\r\n',
        chunk(delta(content="next")),
        chunk(delta(content="!")),
        chunk(delta(finish_reason="stop")),
        chunk(usage={"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}),
        DONE,
    ]
)
TEXTS = ["Hé ", "日本 😀", '\r\n"}]\\', "two lines", "next", "!"]


def test_reads_an_answer() -> None:
    assert read(ANSWER) == [
        *(TextDelta(text=text) for text in TEXTS),
        ChoiceFinished(reason="stop"),
        Finished(usage=Usage(prompt=3, completion=5)),
    ]


def test_keeps_the_engines_frames_for_a_caller_of_the_same_surface() -> None:
    frames = [frame + b"\n\n" for frame in ANSWER.replace(b"\r\n\r\n", b"\r\r\n\n").split(b"\n\n")[1:-1]]
    frames = [frame.replace(b"\r\r\n\n", b"\r\n\r\n") for frame in frames]
    raws = [event.raw for event in read(ANSWER, SAME)]
    assert raws == frames[:-1]


@pytest.mark.parametrize("request_", [FOREIGN, SAME], ids=["foreign", "same"])
def test_a_cut_at_any_byte_changes_nothing(request_: Request) -> None:
    whole = read(ANSWER, request_)
    for at in range(len(ANSWER) + 1):
        assert read([ANSWER[:at], ANSWER[at:]], request_) == whole
    assert read((ANSWER[at : at + 1] for at in range(len(ANSWER))), request_) == whole
    assert read((ANSWER[at : at + 7] for at in range(0, len(ANSWER), 7)), request_) == whole


def test_a_frame_that_looks_like_the_one_before_is_still_read_right() -> None:
    stream = [
        chunk(delta(content="a")),
        chunk(delta(content="b")),
        chunk(delta(content="c"), extra=1),
        chunk(delta(1, content="d")),
        chunk(delta(1, content="e")),
        b'data: {"id": "c1", "model": "engine", "choices": [{"index": 1, "delta": {"content": "f", "reasoning": "r"}, '
        b'"logprobs": null, "finish_reason": null}]}\n\n',
        chunk(delta(1, content="")),
        chunk(delta(finish_reason="stop"), delta(1, finish_reason="length")),
        DONE,
    ]
    answer = fold(read(b"".join(stream)))
    assert [(choice.index, choice.text, choice.reasoning, choice.reason) for choice in answer.choices] == [
        (0, "abc", "", "stop"),
        (1, "def", "r", "length"),
    ]


# --- tool calls -------------------------------------------------------------------------------------------------------

TWO_CALLS = [ToolCall(id="a", name="f", arguments='{"x":1}'), ToolCall(id="b", name="g", arguments='{"y":2}')]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                [call(0, "a", "f", "")],
                [call(0, arguments='{"x"')],
                [call(1, "b", "g", "")],
                [call(0, arguments=":1}")],
                [call(1, arguments='{"y":2}')],
            ],
            id="as OpenAI does, interleaved",
        ),
        pytest.param([[call(0, "a", "f", '{"x":1}'), call(1, "b", "g", '{"y":2}')]], id="both in one chunk"),
        pytest.param([[call(0, "a", "f", '{"x":1}')], [call(0, "b", "g", '{"y":2}')]], id="all under index 0"),
        pytest.param([[call(None, "a", "f", '{"x":1}')], [call(None, "b", "g", '{"y":2}')]], id="no index"),
        pytest.param(
            [
                [call(None, "a", "f", '{"x"'), call(None, "b", "g", "")],
                [call(None, "a", None, ":1}")],
                [call(None, "b", None, '{"y":2}')],
            ],
            id="no index, told apart by id",
        ),
        pytest.param(
            [[call(0, "a", "f", '{"x"')], [call(0, "a", "f", ":1}")], [call(1, "b", "g", '{"y":2}')]],
            id="name repeated",
        ),
        pytest.param([[call(0, "a", "f", {"x": 1})], [call(1, "b", "g", {"y": 2})]], id="arguments as objects"),
        pytest.param([call(0, "a", "f", '{"x":1}'), call(1, "b", "g", '{"y":2}')], id="one object for the list"),
    ],
)
@pytest.mark.parametrize("request_", [FOREIGN, SAME], ids=["foreign", "same"])
def test_parallel_calls_come_out_as_two_with_their_own_arguments(deltas: list[Any], request_: Request) -> None:
    frames = [chunk(delta(tool_calls=given)) for given in deltas]
    events = read(b"".join([*frames, chunk(delta(finish_reason="tool_calls")), DONE]), request_)
    (choice,) = fold(events).choices
    assert list(choice.tool_calls) == TWO_CALLS
    assert choice.reason == "tool_calls"


@pytest.mark.parametrize("request_", [FOREIGN, SAME], ids=["foreign", "same"])
@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")])
def test_two_calls_in_one_frame_are_two_even_under_one_index_and_without_ids(
    names: tuple[str, str], request_: Request
) -> None:
    frame = chunk(delta(tool_calls=[call(0, None, name, "{}") for name in names]))
    (choice,) = fold(read(frame + chunk(delta(finish_reason="tool_calls")) + DONE, request_)).choices
    assert [(made.name, made.arguments) for made in choice.tool_calls] == [(name, "{}") for name in names]


def test_a_name_repeated_without_an_id_goes_on_with_its_call() -> None:
    frames = [chunk(delta(tool_calls=[call(0, None, "f", piece)])) for piece in ('{"x"', ":1}")]
    (choice,) = fold(read(b"".join([*frames, chunk(delta(finish_reason="tool_calls")), DONE]))).choices
    assert [made.arguments for made in choice.tool_calls] == ['{"x":1}']


def test_the_reason_is_tool_calls_even_if_the_calls_came_several_frames_before() -> None:
    frames = [chunk(delta(tool_calls=[call(0, "a", "f", "{}")])), chunk(delta(content=" ")), chunk(delta(content="."))]
    events = read(b"".join([*frames, chunk(delta(finish_reason="stop")), DONE]), SAME)
    assert ChoiceFinished(reason="tool_calls") in events  # without its frame, which says "stop"


def test_an_empty_list_of_calls_beside_text_is_no_call() -> None:
    assert read(chunk(delta(content="a", tool_calls=[])) + chunk(delta(finish_reason="stop")) + DONE)[:2] == [
        TextDelta(text="a"),
        ChoiceFinished(reason="stop"),
    ]


def test_a_call_without_an_id_gets_one_that_does_not_depend_on_the_cut() -> None:
    stream = (
        chunk(delta(tool_calls=[call(0, None, "f", "{}"), call(1, None, "g", "{}")]))
        + chunk(delta(finish_reason="stop"))
        + DONE
    )
    first, second = fold(read(stream)).choices[0].tool_calls
    assert first.id.startswith("call_")
    assert first.id != second.id
    assert fold(read([stream[:50], stream[50:]])).choices[0].tool_calls == (first, second)


def test_a_broken_index_does_not_reach_the_caller() -> None:
    stream = chunk(delta(tool_calls=[call(None, "a", "f", "{}")])) + chunk(delta(finish_reason="tool_calls")) + DONE
    assert [event.raw for event in read(stream, SAME)[:2]] == [None, None]


def test_a_legacy_function_call_is_a_call() -> None:
    stream = chunk(delta(function_call={"name": "f", "arguments": ""})) + chunk(
        delta(function_call={"arguments": "{}"})
    )
    events = read(stream + chunk(delta(finish_reason="function_call")) + DONE)
    assert events[:2] == [ToolCallStart(call=0, id="f", name="f"), ToolCallDelta(call=0, arguments="{}")]
    assert events[2] == ChoiceFinished(reason="tool_calls")


# --- reasoning, log-probabilities, choices ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_both_names_and_forwarded_under_both(name: str) -> None:
    frame = chunk({"index": 0, "delta": {name: 'Let "me" think\\', "content": None}})
    first, *_ = read(frame + chunk(delta(content="a")) + chunk(delta(finish_reason="stop")) + DONE, SAME)
    assert isinstance(first, ReasoningDelta)
    assert first.text == 'Let "me" think\\'
    told = json.loads((first.raw or b"").removeprefix(b"data: "))["choices"][0]["delta"]
    assert told == {"reasoning_content": 'Let "me" think\\', "reasoning": 'Let "me" think\\', "content": None}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_text_that_is_a_name_of_reasoning_is_none(name: str) -> None:
    for text in ("reasoning", "reasoning_content"):
        first, *_ = read(chunk({"index": 0, "delta": {name: text}}) + chunk(delta(finish_reason="stop")) + DONE, SAME)
        told = json.loads((first.raw or b"").removeprefix(b"data: "))["choices"][0]["delta"]
        assert told == {"reasoning_content": text, "reasoning": text}


def test_a_frame_of_several_events_is_forwarded_once() -> None:
    tokens = {
        "content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1}]}],
        "refusal": None,
    }
    frame = chunk(delta(content="a", finish_reason="length", logprobs=tokens))
    assert read(frame + DONE, SAME)[:3] == [
        TextDelta(text="a", raw=frame),
        LogprobDelta(
            tokens=(TokenLogprob(token="a", logprob=-0.5, bytes=(97,), top=(TokenLogprob(token="b", logprob=-1),)),),
            raw=b"",
        ),
        ChoiceFinished(reason="length", raw=b""),
    ]


@pytest.mark.parametrize("text", ["a", '"refusal"', '"logprobs":{"content":'])
def test_log_probabilities_reach_the_caller_with_the_refusal_that_engines_leave_out(text: str) -> None:
    tokens = [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    frame = chunk(delta(content=text, logprobs={"content": tokens}))
    first, *_ = read(frame + chunk(delta(finish_reason="stop")) + DONE, SAME)
    told = json.loads((first.raw or b"").removeprefix(b"data: "))["choices"][0]
    assert told == delta(content=text, logprobs={"refusal": None, "content": tokens})


def test_reads_a_raw_completion_with_its_log_probabilities() -> None:
    told = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -2}], "text_offset": [0]}
    stream = chunk({"index": 0, "text": "a", "logprobs": told, "finish_reason": None})
    stream += chunk({"index": 0, "text": "b", "logprobs": None, "finish_reason": "stop"}) + DONE
    top = (TokenLogprob(token="a", logprob=-0.5), TokenLogprob(token="b", logprob=-2))
    assert read(stream, RAW, COMPLETIONS)[:4] == [
        TextDelta(text="a"),
        LogprobDelta(tokens=(TokenLogprob(token="a", logprob=-0.5, top=top),)),
        TextDelta(text="b"),
        ChoiceFinished(reason="stop"),
    ]


@pytest.mark.parametrize(
    ("given", "read_"),
    [
        ("stop", "stop"),
        ("eos_token", "stop"),
        ("stop_sequence", "stop"),
        ("repetition", "stop"),
        ("something new", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_maps_every_engines_reason(given: str, read_: Any) -> None:
    assert ChoiceFinished(reason=read_) in read(chunk(delta(content="a")) + chunk(delta(finish_reason=given)) + DONE)


def test_an_empty_reason_ends_nothing() -> None:
    stream = chunk(delta(content="a", finish_reason="")) + chunk(delta(content="b", finish_reason="")) + DONE
    assert fold(read(stream)).choices[0].text == "ab"


# --- usage and timings ------------------------------------------------------------------------------------------------

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 6},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def test_usage_beside_content_is_counted_and_taken_out_of_the_frame() -> None:
    last = chunk(delta(finish_reason="stop"), usage=USAGE, odd=1)
    events = read(chunk(delta(content="a")) + last + DONE, SAME)
    assert events[-1] == Finished(usage=Usage(prompt=9, cached=6, completion=4, reasoning=2))
    frame = json.loads((events[1].raw or b"").removeprefix(b"data: "))
    assert "usage" not in frame
    assert frame["odd"] == 1


def test_usage_in_every_frame_is_left_alone_if_asked_for() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,'
        b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
    )
    frame = chunk(delta(content="a"), usage=USAGE)
    assert read(frame + chunk(delta(finish_reason="stop")) + DONE, CHAT.decode_request(body))[0].raw == frame


def test_the_usage_frame_is_carried_by_the_terminal_event() -> None:
    last = chunk(usage=USAGE)
    events = read(chunk(delta(content="a", finish_reason="stop")) + last + DONE, SAME)
    assert events[-1].raw == last


def test_llama_cpps_timings_become_timings_and_stay_as_they_are() -> None:
    timings = {"cache_n": 2, "prompt_n": 3, "prompt_ms": 1500.0, "predicted_n": 4, "predicted_ms": 250.0}
    stream = (
        chunk(delta(content="a")) + chunk(delta(finish_reason="stop"), timings=timings, system_fingerprint="f") + DONE
    )
    whole = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    done = read(stream, whole)[-1]
    assert isinstance(done, Finished)
    assert done.usage == Usage(prompt=5, cached=2, completion=4)
    assert done.timings == Timings(prompt_s=1.5, completion_s=0.25)
    assert {name: msgspec.json.decode(value) for name, value in done.extra.items()} == {
        "timings": timings,
        "system_fingerprint": "f",
    }


def test_a_usage_frame_without_counts_does_not_reach_the_caller() -> None:
    done = read(chunk(delta(content="a", finish_reason="stop")) + chunk(usage={}) + DONE, WITH_USAGE)[-1]
    assert done == Finished(usage=Usage(completion=1, estimated=True))


def test_usage_that_no_engine_told_is_an_estimate() -> None:
    done = read(chunk(delta(content="a")) + chunk(delta(content="b")) + chunk(delta(finish_reason="stop")) + DONE)[-1]
    assert done == Finished(usage=Usage(completion=2, estimated=True))


# --- ends and errors --------------------------------------------------------------------------------------------------


def test_a_stream_without_done_is_complete_once_its_choices_are() -> None:
    assert isinstance(read(chunk(delta(content="a")) + chunk(delta(finish_reason="stop")))[-1], Finished)


def test_a_last_frame_without_its_empty_line_counts() -> None:
    assert isinstance(read(chunk(delta(content="a", finish_reason="stop")) + b"data: [DONE]")[-1], Finished)


def test_done_without_a_reason_is_a_stop() -> None:
    assert read(chunk(delta(content="a")) + DONE)[1] == ChoiceFinished(reason="stop")


@pytest.mark.parametrize(
    "stream", [b"", b": ping\n\n", chunk(delta(content="a")), chunk(delta(content="a")) + b'data: {"ch', DONE]
)
def test_a_stream_that_breaks_off_is_the_engines_failure(stream: bytes) -> None:
    _, error = failure(stream)
    assert isinstance(error, EngineFailed)


def test_what_comes_after_done_is_ignored() -> None:
    assert len(read(chunk(delta(content="a", finish_reason="stop")) + DONE + chunk(delta(content="b")) + DONE)) == 3


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_answer_is_the_engines_failure(reason: str) -> None:
    events, error = failure(chunk(delta(content="a")) + chunk(delta(finish_reason=reason)))
    assert events == [TextDelta(text="a")]
    assert isinstance(error, EngineFailed)


def test_an_error_behind_content_is_known_at_once() -> None:
    decoder = CHAT.decoder(FOREIGN)
    assert decoder.feed(chunk(delta(content="a")) + b'data: {"error":{"message":"boom"}}\n\n') == [TextDelta(text="a")]
    assert decoder.failure is not None
    assert decoder.failure.message == "boom"


@pytest.mark.parametrize(("n", "finished", "complete"), [(1, 1, True), (2, 1, False), (2, 2, True)])
def test_an_answer_is_complete_when_all_choices_that_were_asked_for_have_finished(
    n: int, finished: int, complete: bool
) -> None:
    decoder = CHAT.decoder(Request(model="m", stream=True, sampling=Sampling(n=n)))
    decoder.feed(b"".join(chunk(delta(index, content="a")) for index in range(finished)))
    assert not decoder.complete
    decoder.feed(b"".join(chunk(delta(index, finish_reason="stop")) for index in range(finished)))
    assert decoder.complete == complete


def test_a_frame_cut_off_behind_a_complete_answer_is_no_failure() -> None:
    stream = chunk(delta(content="a")) + chunk(delta(finish_reason="stop")) + b'data: {"choices":[],"usage":{"pr'
    assert read(stream)[1:] == [ChoiceFinished(reason="stop"), Finished(usage=Usage(completion=1, estimated=True))]


@pytest.mark.parametrize(
    ("frame", "kind", "message"),
    [
        (
            b'data: {"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}\n\n',
            EngineFailed,
            "boom",
        ),
        (
            b'data: {"error":{"message":"The engine is currently busy","type":"Service Unavailable","code":503}}\n\n',
            EngineOverloaded,
            "The engine is currently busy",
        ),
        (
            b'data: {"object":"error","message":"bad","type":"BadRequestError","param":null,"code":400}\n\n',
            BadRequest,
            "bad",
        ),
        (b'data: {"error":{"message":"no","http_status_code":422}}\n\n', BadRequest, "no"),
        (b'data: {"error":"CUDA error"}\n\n', EngineFailed, "CUDA error"),
        (
            b'error: {"code":400,"message":"the request is too big","type":"exceed_context_size_error"}\n\n',
            ContextOverflow,
            "the request is too big",
        ),
        (b'event: error\ndata: {"error":{"message":"boom"}}\n\n', EngineFailed, "boom"),
    ],
)
def test_an_error_inside_the_stream_is_raised_after_what_came_before(
    frame: bytes, kind: type[DrivetrainError], message: str
) -> None:
    before = chunk(delta(content="a"))
    for stream in (before + frame, before + frame + DONE):
        events, error = failure(stream)
        assert events == [TextDelta(text="a")]
        assert (type(error), error.message) == (kind, message)
    assert failure(frame)[0] == []


def test_a_null_error_is_none() -> None:
    assert read(chunk(delta(content="a", finish_reason="stop"), error=None) + DONE)[0] == TextDelta(text="a")


@pytest.mark.parametrize(
    "garbage", [b"data: nonsense\n\n", b'data: {"choices":3}\n\n', b"data: " + b"[" * 100_000 + b"\n\n"]
)
def test_a_frame_that_cannot_be_read_is_the_engines_failure(garbage: bytes) -> None:
    events, error = failure(chunk(delta(content="a")) + garbage)
    assert events == [TextDelta(text="a")]
    assert isinstance(error, EngineFailed)


def test_one_document_instead_of_a_stream_is_read_all_the_same() -> None:
    document = json.dumps(
        {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
            "usage": USAGE,
        },
        indent=1,
    ).encode()
    events = read([document[:40], document[40:]], SAME)
    assert events == [
        TextDelta(text="Hi"),
        ChoiceFinished(reason="stop"),
        Finished(usage=Usage(prompt=9, cached=6, completion=4, reasoning=2)),
    ]


@pytest.mark.parametrize("end", ["\n", "\n\n", "\r\n\r\n", "\n\n\n"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_may_end_in_blank_lines(end: str, indent: int | None) -> None:
    message = {"role": "assistant", "content": "Hi\n\nyou"}
    document = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, indent=indent)
    body = (document.replace("\n", end[:2] if "\r" in end else "\n") + end).encode()
    for at in range(len(body)):
        assert texts(read([body[:at], body[at:]], SAME)) == ["Hi\n\nyou"]


def test_a_document_of_many_words_is_many_tokens_where_the_engine_counts_none() -> None:
    message = {"role": "assistant", "content": "word " * 100}
    document = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    text, _, done = read(document)
    assert text == TextDelta(text="word " * 100)
    assert done == Finished(usage=Usage(completion=125, estimated=True))


def test_an_error_document_with_status_200_is_raised() -> None:
    _, error = failure(
        b'{"error":{"message":"maximum context length is 512 tokens","type":"BadRequestError","code":400}}'
    )
    assert isinstance(error, ContextOverflow)


def test_a_frame_of_no_meaning_to_us_is_forwarded_only() -> None:
    filters = chunk(prompt_filter_results=[])
    role = chunk(delta(role="assistant"))
    events = read(filters + role + chunk(delta(content="a", finish_reason="stop")) + DONE, SAME)
    assert events[0] == Opaque(raw=role)  # who did not ask for usage expects a choice in every frame
    events = read(filters + role + chunk(delta(content="a", finish_reason="stop")) + DONE, WITH_USAGE)
    assert events[:2] == [Opaque(raw=filters), Opaque(raw=role)]


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def test_a_refusal_is_text() -> None:
    assert texts(read(chunk(delta(refusal="No.")) + chunk(delta(finish_reason="stop")) + DONE)) == ["No."]


@pytest.mark.parametrize(
    ("name", "met", "told"), [("stop_reason", "END", "END"), ("matched_stop", "END", "END"), ("stop_reason", 7, None)]
)
def test_the_stop_sequence_that_was_met_is_told(name: str, met: object, told: str | None) -> None:
    last = {**delta(finish_reason="stop"), name: met}
    assert read(chunk(delta(content="a")) + chunk(last) + DONE)[1] == ChoiceFinished(reason="stop", stop_sequence=told)


@pytest.mark.parametrize("delta_", [{"delta": None}, {}])
def test_a_frame_without_a_delta_does_not_reach_the_caller_as_it_is(delta_: dict[str, Any]) -> None:
    empty, last = ({"index": 0, **delta_, "finish_reason": reason} for reason in (None, "stop"))
    text = chunk(delta(content="a"))
    assert read(text + chunk(empty) + chunk(last) + DONE, SAME)[:2] == [
        TextDelta(text="a", raw=text),
        ChoiceFinished(reason="stop"),
    ]


@pytest.mark.parametrize("odd", [{"timings": [1]}, {"usage": "none"}, {"usage": {"prompt_tokens": 1.5}}])
def test_accounts_in_an_unknown_form_do_not_cost_the_answer(odd: dict[str, Any]) -> None:
    stream = chunk(delta(content="a"), **odd) + chunk(delta(finish_reason="stop"), **odd) + DONE
    assert read(stream)[:2] == [TextDelta(text="a"), ChoiceFinished(reason="stop")]


def test_line_breaks_too_many_between_frames_are_none_of_a_frames() -> None:
    frames = [chunk(delta(content="a")) + b"\n", b"\n" + chunk(delta(content="b")), chunk(delta(finish_reason="stop"))]
    assert fold(read([*frames, DONE])).choices[0].text == "ab"
