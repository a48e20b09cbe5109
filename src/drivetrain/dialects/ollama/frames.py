"""An Ollama server's stream, cut anywhere, read into events.

Calls are numbered in the order they come: their own `index` is missing at some servers and repeats at others. A call
without an id gets one that its frame's bytes determine, so it differs from turn to turn and not with the cuts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects.ndjson import Lines
from drivetrain.dialects.ollama.errors import by_text
from drivetrain.dialects.ollama.messages import json_object
from drivetrain.dialects.ollama.wire import Call, Wire
from drivetrain.errors import DrivetrainError, EngineFailed
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    LogprobDelta,
    Opaque,
    ReasoningDelta,
    Request,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

_QUOTED = 200  # characters of a bad line that an error quotes
_NS = 1e9  # durations come in nanoseconds


class _Logprob(Wire, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top_logprobs: list["_Logprob"] | None = None


class _Said(Wire, frozen=True, kw_only=True):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class _Frame(Wire, frozen=True, kw_only=True):
    """A frame of either surface: chat has `message`, generate has the members of `_Said` beside the rest."""

    message: _Said | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    done: bool = False
    done_reason: str | None = None
    logprobs: list[_Logprob] | None = None
    error: Any = None
    load_duration: int = 0
    prompt_eval_count: int | None = None  # left out where it is zero
    prompt_eval_duration: int = 0
    eval_count: int | None = None
    eval_duration: int = 0


_KNOWN = frozenset(_Frame.__struct_fields__) | {"model", "created_at"}
_decode = msgspec.json.Decoder(_Frame).decode


class Decoder:
    """Reads the answer to one request. Frames are kept on the events if the request came by the same surface.

    An error frame is raised by the call after the one that brought it if events came with it, so that none is lost.
    """

    __slots__ = ("_calls", "_deltas", "_done", "_keep", "_lines", "failure")

    def __init__(self, request: Request, surface: str) -> None:
        self._keep = request.source is not None and request.source.dialect == surface
        self._lines = Lines()
        self._calls = 0
        self._deltas = 0  # frames with content: about one token each
        self._done = False
        self.failure: DrivetrainError | None = None

    @property
    def complete(self) -> bool:
        return self._done

    def feed(self, data: bytes) -> Sequence[Event]:
        return self._read(self._lines.feed(data))

    def close(self) -> Sequence[Event]:
        """Takes a last line without its newline. Raises `EngineFailed` if the final frame never came."""
        rest = self._lines.rest()
        events = self._read([rest] if rest else [])
        if self.failure is not None and not events:
            raise self.failure
        if not self._done and self.failure is None:
            raise EngineFailed("the engine's stream ended before its final frame")
        return events

    def _read(self, lines: Sequence[bytes]) -> Sequence[Event]:
        if self.failure is not None:
            raise self.failure
        events: list[Event] = []
        for line in lines:
            if self._done:  # nothing after the final frame is part of the answer
                break
            try:
                self._read_line(line, events)
            except DrivetrainError as error:
                if not events:
                    raise
                self.failure = error
                break
        return events

    def _read_line(self, line: bytes, events: list[Event]) -> None:
        frame = _frame(line)
        raw = line + b"\n" if self._keep else None
        said = frame.message
        if said is not None:
            thinking, text, calls = said.thinking, said.content, said.tool_calls
        else:
            thinking, text, calls = frame.thinking, frame.response, frame.tool_calls
        if text and not (thinking or calls or frame.done or frame.logprobs):  # all but a few frames
            events.append(TextDelta(text=text, raw=raw))
            self._deltas += 1
            return
        # The first event has the frame; a final frame goes with `Finished`, which closes the caller's stream.
        sibling = raw and b""
        found = self._content(line, thinking or "", text or "", calls or [], frame.logprobs or [], sibling)
        self._deltas += bool(found)
        if frame.done:
            found += self._end(frame, line, raw)
        elif raw:
            found[:1] = [msgspec.structs.replace(found[0], raw=raw)] if found else [Opaque(raw=raw)]
        events += found

    def _content(
        self,
        line: bytes,
        thinking: str,
        text: str,
        calls: list[Call],
        logprobs: list[_Logprob],
        raw: bytes | None,
    ) -> list[Event]:
        found: list[Event] = []
        if thinking:
            found.append(ReasoningDelta(text=thinking, raw=raw))
        if text:
            found.append(TextDelta(text=text, raw=raw))
        for call in calls:
            at, self._calls = self._calls, self._calls + 1
            said = bytes(call.function.arguments)
            arguments = json_object(said)
            found.append(ToolCallStart(call=at, id=call.id or _id(line, at), name=call.function.name, raw=raw))
            found.append(ToolCallDelta(call=at, arguments=said.decode() if arguments is None else arguments, raw=raw))
        if logprobs:
            found.append(LogprobDelta(tokens=tuple(map(_logprob, logprobs)), raw=raw))
        return found

    def _end(self, frame: _Frame, line: bytes, raw: bytes | None) -> tuple[Event, Event]:
        self._done = True
        reason: FinishReason = "length" if frame.done_reason == "length" else "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        extra = _unknown(line) if self._keep else {}
        return (
            ChoiceFinished(reason=reason, raw=raw and b""),
            Finished(usage=self._usage(frame), timings=_timings(frame), extra=extra, raw=raw),
        )

    def _usage(self, frame: _Frame) -> Usage:
        """As reported; an estimate only of a server that counts nothing."""
        if frame.prompt_eval_count is None and frame.eval_count is None:
            return Usage(completion=self._deltas, estimated=self._deltas > 0)
        return Usage(prompt=frame.prompt_eval_count or 0, completion=frame.eval_count or 0)


def _frame(line: bytes) -> _Frame:
    try:
        frame = _decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        quoted = line[:_QUOTED].decode(errors="replace")
        raise EngineFailed(f"the engine sent what is no Ollama frame ({error}): {quoted}") from error
    if frame.error:
        said = frame.error if isinstance(frame.error, str) else msgspec.json.encode(frame.error).decode()
        raise by_text(said) or EngineFailed(said)
    return frame


def _timings(frame: _Frame) -> Timings | None:
    durations = (frame.load_duration, frame.prompt_eval_duration, frame.eval_duration)
    if not any(durations):
        return None
    load, prompt, completion = durations
    return Timings(load_s=load / _NS, prompt_s=prompt / _NS, completion_s=completion / _NS)


def _unknown(line: bytes) -> Mapping[str, Raw]:
    """The members of a final frame that only this dialect knows, `context` and `total_duration` among them."""
    members = msgspec.json.decode(line, type=dict[str, Raw])
    return {name: raw.copy() for name, raw in members.items() if name not in _KNOWN}


def _logprob(wire: _Logprob) -> TokenLogprob:
    top = tuple(map(_logprob, wire.top_logprobs or ()))
    return TokenLogprob(token=wire.token, logprob=wire.logprob, bytes=wire.bytes, top=top)


def _id(line: bytes, at: int) -> str:
    return f"call_{hashlib.blake2s(line, digest_size=4, salt=at.to_bytes(8, 'little')).hexdigest()}"
