"""Answers to OpenAI callers, byte for byte: what is ours to write and what is forwarded as it came."""

import json
from typing import Any

import msgspec
import pytest

from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.errors import EngineFailed
from drivetrain.types import (
    Choice,
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    LogprobDelta,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    Response,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)

HEAD = b'data: {"id":"chatcmpl-7","object":"chat.completion.chunk","created":1700000000,"model":"public"'
USAGE = (
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
    b'"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}}'
)
DONE = b"data: [DONE]\n\n"


def written(*events: Event, include_usage: bool = False, surface: Any = CHAT, legacy: bool = False) -> bytes:
    request = Request(model="public", stream=True, include_usage=include_usage)
    if legacy:
        request = CHAT.decode_request(
            b'{"model":"public","messages":[{"role":"user","content":"x"}],"functions":[{"name":"f"}]}'
        )
    reply = surface.reply(request, id="7", created_s=1700000000.9)
    return b"".join(reply.encode(event) for event in events)


def deltas(stream: bytes) -> list[Any]:
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_a_stream_of_text() -> None:
    events = (TextDelta(text='Hé "\n'), TextDelta(text="."), ChoiceFinished(reason="stop"), Finished())
    rest = b'},"logprobs":null,"finish_reason":null}]}\n\n'
    assert written(*events) == b"".join(
        [
            HEAD + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""' + rest,
            HEAD + ',"choices":[{"index":0,"delta":{"content":"Hé \\"\\n"'.encode() + rest,
            HEAD + b',"choices":[{"index":0,"delta":{"content":"."' + rest,
            HEAD + b',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n',
            DONE,
        ]
    )


def test_usage_comes_only_if_asked_for_in_a_last_chunk_without_choices() -> None:
    finished = Finished(usage=Usage(prompt=3, cached=1, completion=2))
    assert b"usage" not in written(TextDelta(text="a"), finished)
    stream = written(TextDelta(text="a"), finished, include_usage=True)
    assert stream.endswith(HEAD + b',"choices":[],' + USAGE + b"}\n\n" + DONE)
    assert stream.count(b'"usage":null') == 2


def test_calls_always_have_their_index_and_say_id_and_name_once() -> None:
    stream = written(
        ToolCallStart(call=0, id="a", name="f"),
        ToolCallDelta(call=0, arguments='{"x":'),
        ToolCallStart(call=1, id="b", name="g"),
        ToolCallDelta(call=0, arguments="1}"),
        ChoiceFinished(reason="tool_calls"),
    )
    assert deltas(stream) == [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]


def test_reasoning_is_written_under_both_names() -> None:
    assert deltas(written(ReasoningDelta(text="hm")))[1] == {"reasoning_content": "hm", "reasoning": "hm"}


def test_every_choice_begins_with_its_role() -> None:
    roles = [delta.get("role") for delta in deltas(written(*(TextDelta(text="x", index=at) for at in (0, 1, 0, 1))))]
    assert roles == ["assistant", None, "assistant", None, None, None]


def test_waiting_is_a_comment() -> None:
    assert written(Progress(stage="loading", fraction=0.42)) == b": loading 42%\n\n"
    assert written(Progress(stage="queued")) == b": queued\n\n"
    assert written(Opaque()) == b""


def test_a_caller_of_functions_is_answered_with_functions() -> None:
    events = (
        ToolCallStart(call=0, id="a", name="f"),
        ToolCallDelta(call=0, arguments="{}"),
        ChoiceFinished(reason="tool_calls"),
    )
    stream = written(*events, legacy=True)
    assert deltas(stream)[1:3] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert b'"finish_reason":"function_call"' in stream


def test_an_infinite_log_probability_is_a_very_low_one() -> None:
    stream = written(LogprobDelta(tokens=(TokenLogprob(token="a", logprob=float("-inf"), bytes=(97,)),)))
    assert b'"content":[{"token":"a","logprob":-9999.0,"bytes":[97],"top_logprobs":[]}],"refusal":null' in stream


def test_an_error_in_a_stream_is_one_event_and_the_end() -> None:
    reply = CHAT.reply(Request(model="public"), id="7", created_s=0)
    assert reply.error(EngineFailed("it broke off")) == (
        b'data: {"error":{"message":"it broke off","type":"server_error","param":null,"code":"engine_failed"}}\n\n'
    )


# --- forwarded frames -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colon", [":", ": ", " :"])
def test_a_frame_is_forwarded_as_it_came_but_for_the_models_name(colon: str) -> None:
    content = r'"choices":[{"delta":{"content":"\"model\":\"engine\""}}]'
    frame = 'event: x\ndata: {"id":"e","model"%s"engine/m\\u00e9",' + content + "}\n\n"
    raw = (frame % colon).encode()
    told = written(*[TextDelta(text="t", raw=raw)] * 2)
    if colon == " :":  # written as nobody does: the frame is written anew
        expected = raw.replace(b'"model" :"engine/m\\u00e9"', b'"model":"public"').removeprefix(b"event: x\n")
    else:
        expected = raw.replace(b'"engine/m\\u00e9"', b'"public"')
    assert told == expected * 2


def test_a_frame_that_names_the_model_as_the_caller_does_is_not_touched() -> None:
    raw = b'data: {"model": "public", "choices": []}\r\n\r\n'
    assert written(Opaque(raw=raw), Opaque(raw=raw)) == raw * 2


def test_a_name_that_changes_in_the_stream_is_renamed_all_the_same() -> None:
    frames = [
        b'data: {"choices":[]}\n\n',
        b'data: {"model":"a","choices":[]}\n\n',
        b'data: {"model":"b","choices":[]}\n\n',
    ]
    public = b'data: {"model":"public","choices":[]}\n\n'
    assert written(*(Opaque(raw=raw) for raw in frames)) == frames[0] + public * 2


@pytest.mark.parametrize(
    "frame",
    [
        b'data: {"choices":[],"created":%d,"id":"c-5","model":"e"}\n\n',  # llama.cpp dates each frame anew
        b'data: {"model": "e", "id": "c-5", "created": %d, "choices": []}\n\n',
        b'data: {"created":%d}\n\n',
    ],
)
def test_all_frames_have_one_time_of_creation(frame: bytes) -> None:
    stream = written(*(Opaque(raw=frame % at) for at in (5, 5, 6, 7)))
    assert stream == (frame % 5).replace(b'"e"', b'"public"') * 4


def test_a_sibling_of_a_forwarded_frame_is_silent() -> None:
    assert written(ChoiceFinished(reason="stop", raw=b"")) == b""


def test_the_engines_usage_frame_is_forwarded_only_if_asked_for() -> None:
    raw = b'data: {"model":"e","choices":[],"usage":{"prompt_tokens":3},"x":1}\n\n'
    assert written(Finished(raw=raw)) == DONE
    assert written(Finished(raw=raw), include_usage=True) == raw.replace(b'"e"', b'"public"') + DONE


def test_frames_of_ours_agree_with_those_forwarded_before() -> None:
    raw = b'data: {"id":"theirs","created":5,"model":"e","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    stream = written(TextDelta(text="a", raw=raw), ToolCallStart(call=0, id="i", name="f"))
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n\n")[:-1]]
    assert [(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks] == [("theirs", 5, "public")] * 2


# --- whole answers ----------------------------------------------------------------------------------------------------


def whole(response: Response, surface: Any = CHAT) -> Any:
    return json.loads(surface.reply(Request(model="public"), id="7", created_s=1.5).whole(response))


def test_a_whole_answer() -> None:
    response = Response(
        choices=(Choice(index=0, text="Hi", reasoning="hm", logprobs=(TokenLogprob(token="Hi", logprob=-1),)),),
        usage=Usage(prompt=3, cached=1, completion=2),
        extra={"timings": msgspec.Raw(b'{"prompt_n":3}'), "system_fingerprint": msgspec.Raw(b'"f"')},
    )
    assert whole(response) == {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 1,
        "model": "public",
        "timings": {"prompt_n": 3},
        "system_fingerprint": "f",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "refusal": None,
                    "reasoning_content": "hm",
                    "reasoning": "hm",
                },
                "logprobs": {
                    "content": [{"token": "Hi", "logprob": -1.0, "bytes": None, "top_logprobs": []}],
                    "refusal": None,
                },
                "finish_reason": "stop",
            }
        ],
        "usage": json.loads(b"{" + USAGE + b"}")["usage"],
    }


def test_a_whole_answer_of_calls_has_no_content() -> None:
    call = ToolCall(id="a", name="f", arguments="{}")
    (choice,) = whole(Response(choices=(Choice(index=0, tool_calls=(call,), reason="tool_calls"),)))["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


# --- completions ------------------------------------------------------------------------------------------------------


def test_a_stream_of_a_raw_completion() -> None:
    tokens = (TokenLogprob(token="ab", logprob=-1.0, top=(TokenLogprob(token="x", logprob=-2.0),)),)
    events = (TextDelta(text="ab"), LogprobDelta(tokens=tokens), LogprobDelta(tokens=tokens), ReasoningDelta(text="r"))
    head = (
        b'data: {"id":"cmpl-7","object":"text_completion","created":1700000000,"model":"public","choices":[{"index":0,'
    )
    told = (
        b'"text":"","logprobs":{"tokens":["ab"],"token_logprobs":[-1.0],"top_logprobs":[{"x":-2.0}],"text_offset":[%d]}'
    )
    stream = written(*events, ChoiceFinished(reason="length"), Finished(), surface=COMPLETIONS)
    assert stream == b"".join(
        [
            head + b'"text":"ab","logprobs":null,"finish_reason":null}]}\n\n',
            head + told % 0 + b',"finish_reason":null}]}\n\n',
            head + told % 2 + b',"finish_reason":null}]}\n\n',
            head + b'"text":"","logprobs":null,"finish_reason":"length"}]}\n\n',
            DONE,
        ]
    )


def test_a_whole_raw_completion() -> None:
    answer = whole(
        Response(choices=(Choice(index=0, text="a"), Choice(index=1, text="b", reason="length"))), COMPLETIONS
    )
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"text": "a", "index": 0, "logprobs": None, "finish_reason": "stop"},
        {"text": "b", "index": 1, "logprobs": None, "finish_reason": "length"},
    ]


def test_llama_cpps_chat_form_of_log_probabilities_is_put_into_the_surfaces_own() -> None:
    request = COMPLETIONS.decode_request(b'{"model":"public","prompt":"p","stream":true,"logprobs":1}')
    assert isinstance(request.completion, Completion)
    frame = (
        b'data: {"id":"e","created":1,"model":"e","choices":[{"index":0,"text":"a","finish_reason":null,'
        b'"logprobs":{"content":[{"token":"a","logprob":-1,"top_logprobs":[]}]}}]}\n\n'
    )
    reply = COMPLETIONS.reply(request, id="7", created_s=0)
    stream = b"".join(reply.encode(event) for event in COMPLETIONS.decoder(request).feed(frame))
    assert [json.loads(line[6:])["choices"][0]["logprobs"] for line in stream.split(b"\n\n")[:-1]] == [
        None,
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [0]},
    ]


# --- what engines leave out -------------------------------------------------------------------------------------------

SAID = '{"index":0,"text":"%s","finish_reason":null}'
LLAMA = 'data: {"choices":[%s],"created":%d,"model":"e","object":"text_completion","id":"chatcmpl-x"%s}\n\n'


def forwarded(*frames: str, include_usage: bool = True) -> list[Any]:
    """What a caller of bare completions gets, frame by frame."""
    options = b',"stream_options":{"include_usage":true}' if include_usage else b""
    request = COMPLETIONS.decode_request(b'{"model":"public","prompt":"p","stream":true%b}' % options)
    reply, decoder = COMPLETIONS.reply(request, id="7", created_s=0), COMPLETIONS.decoder(request)
    batches = [decoder.feed(frame.encode()) for frame in (*frames, "data: [DONE]\n\n")]
    stream = b"".join(reply.encode(event) for events in batches for event in events)
    return [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]


def test_frames_before_the_last_say_that_they_have_no_usage() -> None:
    quoting = SAID % '\\"usage\\":'
    run = "".join(LLAMA % (SAID % text, 1, "") for text in "bcd")
    last = LLAMA % ("", 2, ',"usage":{"prompt_tokens":1,"completion_tokens":5}')
    told = forwarded(LLAMA % (quoting, 1, ""), LLAMA % (SAID % "a", 1, ""), run, last)
    assert [chunk["usage"] for chunk in told[:-1]] == [None] * 6  # one of them of ours: how it ended
    assert told[-1]["usage"]["completion_tokens"] == 5
    assert {chunk["model"] for chunk in told} == {"public"}


def test_a_text_may_be_the_name_of_a_member() -> None:
    run = "".join(LLAMA % (SAID % text, 1, "") for text in ("a", "usage", "b"))
    told = forwarded(LLAMA % (SAID % "usage", 1, ""), run, LLAMA % ("", 2, ',"usage" : {"completion_tokens":5}'))
    assert [(chunk["usage"], chunk["choices"][0]["text"]) for chunk in told[:4]] == [
        (None, text) for text in ("usage", "a", "usage", "b")
    ]
    assert told[-1]["usage"] == {"completion_tokens": 5}


def test_frames_that_end_in_another_way_say_so_too() -> None:
    (chunk,) = forwarded((LLAMA % (SAID % "a", 1, "")).replace("\n", "\r\n"))[:1]
    assert (chunk["usage"], chunk["choices"][0]["text"]) == (None, "a")


def test_who_did_not_ask_for_usage_is_told_of_none() -> None:
    assert all("usage" not in chunk for chunk in forwarded(LLAMA % (SAID % "a", 1, ""), include_usage=False))


def test_a_bare_completion_has_an_id_of_its_kind() -> None:
    told = forwarded(*(LLAMA % (SAID % text, at, "") for at, text in enumerate("ab")), LLAMA % ("", 3, ',"usage":{}'))
    assert [(chunk["id"], chunk["created"]) for chunk in told] == [("cmpl-x", 0)] * 4
    assert [chunk["id"] for chunk in forwarded(LLAMA.replace("chatcmpl", "cmpl") % (SAID % "a", 1, ""))][:1] == [
        "cmpl-x"
    ]


# --- one answer, one head ---------------------------------------------------------------------------------------------


def heads(surface: Any, body: dict[str, Any], *frames: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """The id, time of creation and model of each chunk that a caller gets."""
    request = surface.decode_request(json.dumps({"model": "public", "stream": True, **body}).encode())
    reply, decoder = surface.reply(request, id="7", created_s=9), surface.decoder(request)
    wire = [b"data: %b\n\n" % json.dumps(frame).encode() for frame in frames]
    batches = [decoder.feed(frame) for frame in (*wire, DONE)]
    stream = b"".join(reply.encode(event) for events in batches for event in events)
    chunks = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    return [(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks]


THEIRS = {"id": "theirs", "object": "o", "created": 5, "model": "e"}
CHATTED = {"messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": True}}


def test_all_chunks_agree_where_one_of_ours_is_the_first() -> None:
    told = {"content": [{"token": "a", "logprob": -1, "top_logprobs": []}]}
    text = {"index": 0, "text": "a", "logprobs": told, "finish_reason": None}
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    frames = [{**THEIRS, "choices": [choice]} for choice in (text, text, end)]
    assert heads(COMPLETIONS, {"prompt": "p", "logprobs": 0}, *frames) == [("cmpl-7", 9, "public")] * 5


@pytest.mark.parametrize("mended", [0, 1])
def test_all_chunks_agree_where_a_call_is_mended(mended: int) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    deltas: list[dict[str, Any]] = [{"content": "hm"}, {"content": "hm"}]
    deltas.insert(mended, {"tool_calls": [call]})
    frames = [{**THEIRS, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    expected = ("chatcmpl-7", 9, "public") if mended == 0 else ("theirs", 5, "public")
    assert set(heads(CHAT, CHATTED, *frames)) == {expected}


@pytest.mark.parametrize("asked", [True, False])
def test_a_first_frame_of_no_id_and_no_time_is_none_for_the_others(asked: bool) -> None:
    filters = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
    deltas = [{"content": "a"}, {"content": "b"}]
    frames = [{**THEIRS, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    body = {**CHATTED, "stream_options": {"include_usage": asked}}
    told = heads(CHAT, body, filters, *frames)
    # The finish is ours, and so is the usage that was asked for.
    assert told == ([("chatcmpl-7", 9, "public")] * 5 if asked else [("theirs", 5, "public")] * 3)


# --- what a whole answer keeps ----------------------------------------------------------------------------------------


def answered(*frames: dict[str, Any], surface: Any = CHAT) -> Any:
    """A whole answer to a caller of the dialect that the engine speaks."""
    asked = {"messages": [{"role": "user", "content": "x"}]} if surface is CHAT else {"prompt": "x"}
    request = surface.decode_request(json.dumps({"model": "public", **asked}).encode())
    decoder = surface.decoder(request)
    events = [event for frame in frames for event in decoder.feed(b"data: %b\n\n" % json.dumps(frame).encode())]
    (choice,) = json.loads(surface.reply(request, id="7", created_s=9).whole(fold([*events, *decoder.close()])))[
        "choices"
    ]
    return choice


def said(finish_reason: str | None = None, *, logprobs: Any = None, more: Any = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **(more or {})}
    return {**THEIRS, "choices": [choice]}


def test_a_call_of_a_custom_tool_stays_one() -> None:
    custom = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sh", "input": "l"}}
    rest = {"index": 0, "custom": {"input": "s"}}
    function = {"index": 1, "id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    choice = answered(
        said(tool_calls=[custom]), said(tool_calls=[rest]), said(tool_calls=[function]), said("tool_calls")
    )
    assert choice["message"]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert choice["finish_reason"] == "tool_calls"


def test_a_refusal_stays_one_with_its_log_probabilities() -> None:
    tokens = [{"token": "No", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    choice = answered(
        said(refusal="No", logprobs={"content": None, "refusal": tokens}), said(refusal="."), said("stop")
    )
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": "No."}
    assert choice["logprobs"] == {"content": None, "refusal": tokens}


def test_a_refusal_after_a_text_leaves_the_text() -> None:
    choice = answered(said(content="Well. "), said(refusal="No."), said("stop"))
    assert choice["message"] == {"role": "assistant", "content": "Well. ", "refusal": "No."}


def test_members_of_a_choice_that_only_this_dialect_knows_are_kept() -> None:
    notes, filters = [{"type": "url_citation", "url_citation": {"url": "http://a"}}], {"hate": {"filtered": False}}
    choice = answered(
        said(content="a"),
        said(annotations=notes),
        said("stop", more={"stop_reason": "END", "content_filter_results": filters}),
    )
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "a", "refusal": None, "annotations": notes},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "END",
        "content_filter_results": filters,
    }


def test_a_token_that_nothing_precedes_has_no_log_probability() -> None:
    told = {"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [None, {"b": -1.0}]}
    choice = {"index": 0, "text": "ab", "logprobs": told, "finish_reason": "stop", "stop_reason": 7}
    assert answered({**THEIRS, "choices": [choice]}, surface=COMPLETIONS) == {
        "index": 0,
        "text": "ab",
        "logprobs": {**told, "text_offset": [0, 1]},
        "finish_reason": "stop",
        "stop_reason": 7,
    }
