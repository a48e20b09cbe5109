"""Answers to callers of chat completions and completions, streamed or whole.

An engine's own frames are forwarded with nothing changed but the model's name, and a creation time that moves. Frames
of ours take up the id and the time of creation of the engine's, so that all chunks of one answer agree; where one of
ours was the first, the engine's take up its own.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects import sse
from drivetrain.dialects.openai import errors, logprobs, messages, requests, usage, wire
from drivetrain.errors import DrivetrainError
from drivetrain.types import (
    Choice,
    ChoiceFinished,
    Event,
    Finished,
    LogprobDelta,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    Response,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
)

COMPLETION = "text_completion"
_END = b"\n\n"
_USAGE = re.compile(rb'"usage"\s*:')  # in a text, quotes are escaped; one that is `usage` and no more has no colon
_LAST = b"}\n\n"  # of a frame; in a text, line breaks are escaped
_NO_USAGE = b',"usage":null}\n\n'
_CHAT_ID = b'"chatcmpl-'  # llama.cpp's, of bare completions too
_UNSET = frozenset({b'""', b"0", b"null"})  # an id or a time of creation that is none: Azure's first frame has such
_NOT_APART = wire.Apart()
_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_string = msgspec.json.Decoder(str).decode
_apart = msgspec.json.Decoder(dict[int, wire.Apart]).decode


class Frames:
    """The frames of one stream: what all of them have in common, and the engine's own with the model renamed."""

    def __init__(self, request: Request, *, id: str, object: str, created_s: float) -> None:
        self.begun = False  # an engine's frame has been forwarded
        self._include_usage = request.include_usage
        self._object = object
        self._model = _encode(request.model)
        self._theirs = b"\0"  # an engine's `model` and `created`, as its frames write them; at first, in no frame
        self._ours = b""  # the same as the caller sees it
        self._agree = False
        self._id, self._created = _encode(id), b"%d" % created_s
        self._head = b""

    def _begin(self) -> bytes:
        """What every frame of ours begins with; settled by the first one that is written."""
        if not self._head:
            common = (self._id, self._object.encode(), self._created, self._model)
            self._head = b'data: {"id":%b,"object":"%b","created":%b,"model":%b' % common
        return self._head

    def forward(self, raw: bytes) -> bytes:
        """An engine's frame under the public name of the model, and with one time of creation in all frames (llama.cpp
        writes the current time into each). Or a run of frames that differ in their texts only."""
        if self._include_usage and _USAGE.search(raw) is None:
            raw = _without_usage(raw)
        if self._agree:
            return raw if raw.find(self._theirs) >= 0 else self._learn(raw)  # `in` makes an exception, and drops it
        renamed = raw.replace(self._theirs, self._ours)
        return self._learn(raw) if renamed is raw else renamed  # bytes with nothing to replace are returned themselves

    def _learn(self, raw: bytes) -> bytes:
        """A frame that names the model, or dates itself, in a way not met before; the first one above all."""
        if len(frames := raw.split(_END)) > 2:  # a run
            return b"".join([self.forward(frame + _END) for frame in frames[:-1]])
        members = _object(raw)
        if not self.begun:
            self.begun = True
            if not self._head:  # else the caller knows our own
                self._take_up(members)
        ours = {"created": self._created, "model": self._model}
        ours = {name: value for name, value in ours.items() if name in members}
        if "id" in members and bytes(members["id"]) != self._id:
            ours["id"] = self._id
        for wanted in (ours, {name: value for name, value in ours.items() if name != "created"}):
            stretch = _stretch(raw, members, wanted)
            if stretch is not None:
                self._theirs, self._ours = stretch
                self._agree = self._theirs == self._ours
                return raw.replace(self._theirs, self._ours)
        return sse.frame(_encode({**members, **{name: Raw(value) for name, value in ours.items()}})) if ours else raw

    def _take_up(self, members: Mapping[str, Raw]) -> None:
        id, created = bytes(members.get("id", b"null")), bytes(members.get("created", b"null"))
        if id not in _UNSET:
            self._id = self._own_id(id)
        if created not in _UNSET:
            self._created = created

    def _own_id(self, theirs: bytes) -> bytes:
        return theirs.replace(_CHAT_ID, b'"cmpl-', 1) if self._object == COMPLETION else theirs

    def choice(self, index: int, body: bytes) -> bytes:
        """A frame of ours with one choice; `body` holds its members but for the index."""
        tail = b'}],"usage":null}\n\n' if self._include_usage else b"}]}\n\n"
        return b'%b,"choices":[{"index":%d,%b%b' % (self._begin(), index, body, tail)

    def end(self, done: Finished) -> bytes:
        if not self._include_usage:
            return sse.DONE
        if done.raw:
            return usage.priced(self.forward(done.raw), done.usage) + sse.DONE
        members = {**done.extra, "choices": [], "usage": usage.encode(done.usage)}
        return self._begin() + b"," + _encode(members)[1:] + b"\n\n" + sse.DONE


def _without_usage(raw: bytes) -> bytes:
    """Frames that tell no usage, saying so: to a caller who asked for it, none may be silent."""
    if raw.endswith(_LAST):
        return raw.replace(_LAST, _NO_USAGE)
    members = _object(raw)
    return sse.frame(_encode({**members, "usage": None})) if members else raw


def _object(raw: bytes) -> Mapping[str, Raw]:
    """The members of the object in an engine's frame."""
    frame = sse.last(raw)
    return {} if frame is None else _members(frame[0])


def _stretch(raw: bytes, members: Mapping[str, Raw], ours: Mapping[str, bytes]) -> tuple[bytes, bytes] | None:
    """The bytes from the first to the last of these members, as they are and as the caller sees them. None if they
    cannot be found in any usual way of writing, or have the content between them."""
    places = []
    for name, value in ours.items():
        theirs = bytes(members[name])
        heads = (b'"%b":' % name.encode(), b'"%b": ' % name.encode())
        found = [(at, at + len(head), len(theirs), value) for head in heads if (at := raw.find(head + theirs)) >= 0]
        if not found:
            return None
        places.append(found[0])
    if not places:
        return None
    start = end = min(places)[0]
    written = []
    for _, value_at, length, value in sorted(places):
        written += [raw[end:value_at], value]
        end = value_at + length
    return None if b'"choices"' in raw[start:end] else (raw[start:end], b"".join(written))


def progress(event: Progress) -> bytes:
    """A comment: clients skip it, and know that the connection lives."""
    share = "" if event.fraction is None else f" {event.fraction:.0%}"
    return sse.comment(event.stage + share)


class ChatReply:
    media_type = sse.MEDIA_TYPE
    content = "messages"  # the member of a request that holds what the model reads

    def __init__(self, request: Request, *, id: str, created_s: float) -> None:
        self._id = f"chatcmpl-{id}"
        self._created_s = int(created_s)
        self._model = request.model
        self._legacy = request.source is not None and request.source.dialect == requests.LEGACY_CHAT
        self._frames = Frames(request, id=self._id, object="chat.completion.chunk", created_s=created_s)
        self._forward = self._frames.forward
        self._started: set[int] = set()

    def encode(self, event: Event) -> bytes:
        raw = event.raw
        if raw is not None and type(event) is not Finished:
            return self._forward(raw) if raw else b""
        if type(event) is Finished:
            return self._frames.end(event)
        body = _CHAT_BODIES[type(event)](event, self._legacy)
        if body is None:
            return progress(event) if type(event) is Progress else b""
        index = event.index
        if index in self._started or self._frames.begun:
            return self._frames.choice(index, body)
        self._started.add(index)
        return self._frames.choice(index, _ROLE) + self._frames.choice(index, body)

    def error(self, error: DrivetrainError) -> bytes:
        return sse.frame(errors.encode(error, content=self.content))

    def whole(self, response: Response) -> bytes:
        apart = _kept_apart(response)
        return _encode(
            {
                **response.extra,
                "id": self._id,
                "object": "chat.completion",
                "created": self._created_s,
                "model": self._model,
                "choices": [self._choice(choice, apart.get(choice.index, _NOT_APART)) for choice in response.choices],
                "usage": usage.encode(response.usage),
            }
        )

    def _choice(self, choice: Choice, apart: wire.Apart) -> dict[str, Any]:
        calls, text = choice.tool_calls, choice.text.removesuffix(apart.refusal)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if (calls or apart.refusal) and not text else text,
            "refusal": apart.refusal or None,
            **apart.message,
        }
        if choice.reasoning:
            message["reasoning_content"] = message["reasoning"] = choice.reasoning
        if calls and self._legacy:
            message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            message["tool_calls"] = [_encode_call(call, custom=at in apart.custom) for at, call in enumerate(calls)]
        return {
            "index": choice.index,
            "message": message,
            "logprobs": _tokens(choice, refusal=bool(apart.refusal) and not text),
            "finish_reason": _reason(choice.reason, self._legacy),
            **apart.choice,
        }


def _tokens(choice: Choice, *, refusal: bool) -> dict[str, Any] | None:
    return logprobs.encode_chat(choice.logprobs, refusal=refusal) if choice.logprobs else None


def _kept_apart(response: Response) -> Mapping[int, wire.Apart]:
    return _apart(response.extra["choices"]) if "choices" in response.extra else {}


def _encode_call(call: ToolCall, *, custom: bool) -> dict[str, Any]:
    if custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return messages.encode_call(call)


def _reason(reason: str, legacy: bool) -> str:
    return "function_call" if legacy and reason == "tool_calls" else reason


# Each event → the members of a choice; None where a chat has no chunk for it. `legacy`: functions instead of tools.

_REST = b'},"logprobs":null,"finish_reason":null'
_ROLE = b'"delta":{"role":"assistant","content":""' + _REST


def _text(event: TextDelta, legacy: bool) -> bytes:
    return b'"delta":{"content":' + _encode(event.text) + _REST


def _reasoning(event: ReasoningDelta, legacy: bool) -> bytes:
    text = _encode(event.text)
    return b'"delta":{"reasoning_content":' + text + b',"reasoning":' + text + _REST


def _call_start(event: ToolCallStart, legacy: bool) -> bytes | None:
    function = {"name": event.name, "arguments": ""}
    if legacy:
        return None if event.call else b'"delta":{"function_call":' + _encode(function) + _REST
    call = {"index": event.call, "id": event.id, "type": "function", "function": function}
    return b'"delta":{"tool_calls":[' + _encode(call) + b"]" + _REST


def _call_delta(event: ToolCallDelta, legacy: bool) -> bytes | None:
    function = {"arguments": event.arguments}
    if legacy:
        return None if event.call else b'"delta":{"function_call":' + _encode(function) + _REST
    return b'"delta":{"tool_calls":[' + _encode({"index": event.call, "function": function}) + b"]" + _REST


def _logprobs(event: LogprobDelta, legacy: bool) -> bytes:
    return b'"delta":{},"logprobs":' + _encode(logprobs.encode_chat(event.tokens)) + b',"finish_reason":null'


def _finish(event: ChoiceFinished, legacy: bool) -> bytes:
    return b'"delta":{},"logprobs":null,"finish_reason":' + _encode(_reason(event.reason, legacy))


def _nothing(event: Opaque | Progress, legacy: bool) -> None:
    return None


_CHAT_BODIES: Mapping[type[Event], Callable[[Any, bool], bytes | None]] = {
    TextDelta: _text,
    ReasoningDelta: _reasoning,
    ToolCallStart: _call_start,
    ToolCallDelta: _call_delta,
    LogprobDelta: _logprobs,
    ChoiceFinished: _finish,
    Opaque: _nothing,
    Progress: _nothing,
}


class CompletionReply:
    """Raw text. Reasoning and tool calls have no place in this surface and are left out."""

    media_type = sse.MEDIA_TYPE
    content = "prompt"

    def __init__(self, request: Request, *, id: str, created_s: float) -> None:
        self._id = f"cmpl-{id}"
        self._created_s = int(created_s)
        self._model = request.model
        self._frames = Frames(request, id=self._id, object=COMPLETION, created_s=created_s)
        self._forward = self._frames.forward
        self._offsets: dict[int, int] = {}  # choice → characters so far

    def encode(self, event: Event) -> bytes:
        raw = event.raw
        if raw is not None and type(event) is not Finished:
            return self._forward(raw) if raw else b""
        match event:
            case TextDelta():
                text = _encode(event.text)
                return self._frames.choice(event.index, b'"text":' + text + b',"logprobs":null,"finish_reason":null')
            case LogprobDelta():
                return self._frames.choice(event.index, self._logprobs(event))
            case ChoiceFinished():
                reason = _encode(_completion_reason(event.reason))
                return self._frames.choice(event.index, b'"text":"","logprobs":null,"finish_reason":' + reason)
            case Progress():
                return progress(event)
            case Finished():
                return self._frames.end(event)
            case _:
                return b""

    def _logprobs(self, event: LogprobDelta) -> bytes:
        offset = self._offsets.get(event.index, 0)
        self._offsets[event.index] = offset + sum(len(token.token) for token in event.tokens)
        told = _encode(logprobs.encode_completion(event.tokens, offset))
        return b'"text":"","logprobs":' + told + b',"finish_reason":null'

    def error(self, error: DrivetrainError) -> bytes:
        return sse.frame(errors.encode(error, content=self.content))

    def whole(self, response: Response) -> bytes:
        apart = _kept_apart(response)
        choices = [
            {
                "text": choice.text,
                "index": choice.index,
                "logprobs": logprobs.encode_completion(choice.logprobs) if choice.logprobs else None,
                "finish_reason": _completion_reason(choice.reason),
                **apart.get(choice.index, _NOT_APART).choice,
            }
            for choice in response.choices
        ]
        return _encode(
            {
                **response.extra,
                "id": self._id,
                "object": COMPLETION,
                "created": self._created_s,
                "model": self._model,
                "choices": choices,
                "usage": usage.encode(response.usage),
            }
        )


def _completion_reason(reason: str) -> str:
    """This surface knows stop, length and content_filter."""
    return "stop" if reason == "tool_calls" else reason
