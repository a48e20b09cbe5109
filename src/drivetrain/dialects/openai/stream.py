"""An engine's stream in OpenAI's form → events.

Where the caller speaks the same surface and wants a stream, an event keeps its frame. A frame is changed only where it
would mislead the caller: usage beside content (clients add it to the usage at the end), reasoning under one of its two
names, log-probabilities without `refusal` (the dialect requires it, engines leave it out). Where an engine breaks the
dialect's rules (a tool call without an index, a finish reason of its own), the event goes without its frame, and is
written anew from its fields.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import force_setattr

from drivetrain.dialects import sse
from drivetrain.dialects.openai import errors, halves, logprobs, usage, wire
from drivetrain.dialects.openai.asides import Asides
from drivetrain.dialects.openai.calls import Calls
from drivetrain.dialects.openai.halves import Halves
from drivetrain.dialects.openai.requests import COMPLETIONS, wants_running_usage
from drivetrain.dialects.openai.template import Template
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
)

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "repetition": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_BROKEN = frozenset({"abort", "error", "cancelled", "insufficient_system_resource"})
_COMMON: Final = frozenset({"id", "object", "created", "model", "choices", "usage"})
_REASONING = re.compile(rb'"(reasoning_content|reasoning)"(\s*:\s*)("(?:[^"\\]|\\.)*")')
_REASONING_NAMES = re.compile(rb'"(reasoning_content|reasoning)"\s*:')
_LOGPROBS = re.compile(rb'("logprobs"\s*:\s*\{)(\s*"content"\s*:)')
_REFUSAL = re.compile(rb'"refusal"\s*:')
_DATA: Final = b"data: "
_LF_LF: Final = b"\n\n"
_NULL: Final = b"null"
_ANNOTATIONS: Final = b'"annotations"'
_CHARACTERS_PER_TOKEN: Final = 4  # the usual rule of thumb
_DOCUMENT = re.compile(rb"\s*\{")
_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")

_chunk = msgspec.json.Decoder(wire.ChunkOut).decode
_bare_chunk = msgspec.json.Decoder(wire.BareChunkOut).decode
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class StreamDecoder:
    """Reads one answer, of either surface.

    An error that follows content in the same bytes is kept as `failure`, so that no event is lost, and raised by the
    next `feed` or `close`.
    """

    def __init__(self, request: Request, surface: str) -> None:
        same = request.source is not None and request.source.dialect == surface
        self._keep = same and request.stream
        self._joins = self._keep or not request.stream  # nobody sees one event for each frame
        self._asides = Asides() if same and not request.stream else None
        self._include_usage = request.include_usage  # asked by the caller
        self._usage_everywhere = same and wants_running_usage(request)
        self._completions = surface == COMPLETIONS
        self._reader = sse.Reader()
        self._template = Template()
        self.failure: DrivetrainError | None = None
        self._request = request
        self._calls: dict[int, Calls] = {}
        self._open: dict[int, bool] = {}  # choice → has not finished
        self._deltas = 0
        self._usage: wire.UsageOut | None = None
        self._usage_raw: bytes | None = None
        self._timings: wire.TimingsOut | None = None
        self._extra: dict[str, Raw] = {}
        self._halves: Halves | None = None  # nobody has cut a character
        self._ended = False

    @property
    def complete(self) -> bool:
        completion = self._request.completion
        prompts = len(completion.prompts) if completion is not None else 1
        return len(self._open) >= self._request.sampling.n * prompts and not any(self._open.values())

    def feed(self, data: bytes) -> Sequence[Event]:
        if self.failure is not None:
            raise self.failure
        events: list[Event] = []
        try:
            if data.endswith(_LF_LF) and not self._reader.pending and data.find(b"\r") < 0:
                self._whole_frames(data, events)
            else:
                self._other_frames(data, events)
        except DrivetrainError as error:
            self.failure = error
            if not events:
                raise
        return events

    def _whole_frames(self, data: bytes, events: list[Event]) -> None:
        """The usual case, by the shortest way: frames with one text each, and around it what the frame before had."""
        at, size, template = 0, len(data), self._template
        while at < size:
            if data.startswith(template.before, at) and (end := self._texts(data, at, events)):
                at = end
                continue
            end = data.find(b"\n", at)  # not by `in`, which makes an exception for each look that it drops again
            if data.startswith(_DATA, at) and data.startswith(_LF_LF, end):
                self._take(data[at + 6 : end], data[at : end + 2] if self._keep else None, events)
            else:
                end = data.find(_LF_LF, at)
                end = end if end >= 0 else size  # one line break too many
                self._other_frames(data[at : end + 2], events)
            at = end + 2

    def _texts(self, data: bytes, start: int, events: list[Event]) -> int:
        """Take a run of text frames that begins here. Where it ends; 0 if there is none."""
        if self._ended:
            return 0
        template = self._template
        end = data.rfind(template.after, start) + len(template.after)
        texts = template.run(data[start:end]) if end > start else None
        if texts is None:  # other frames may stand in between: the next one only
            end = data.find(_LF_LF, start) + 2
            texts = template.run(data[start:end]) if data.endswith(template.after, start, end) else None
        if texts is None:
            return 0
        tokens, index = len(texts), template.index
        self._deltas += tokens
        if self._joins:
            raw = data[start:end] if self._keep else None
            events.append(TextDelta(text="".join(texts), tokens=tokens, index=index, raw=raw))
        else:
            events += [TextDelta(text=text, index=index) for text in texts]
        return end

    def _other_frames(self, data: bytes, events: list[Event]) -> None:
        if not self._open and _DOCUMENT.match(self._reader.pending or data):
            data = data.translate(_BREAKS)  # of a document: they end no frame
        for frame, raw, _ in self._reader.feed(data):
            self._take(frame, raw if self._keep else None, events)

    def close(self) -> Sequence[Event]:
        if self.failure is not None:
            raise self.failure
        events: list[Event] = []
        rest = self._reader.rest()
        if _DOCUMENT.match(rest):
            self._document(rest, events)
        elif (frame := sse.last(rest)) is not None and not (self.complete and _is_cut(frame[0])):
            self._take(frame[0], frame[1] + b"\n\n" if self._keep else None, events)
        if not self._ended:
            if not self._open or any(self._open.values()):
                raise EngineFailed("the engine's stream ended before its answer was complete")
            self._end(events)
        return events

    def _document(self, data: bytes, events: list[Event]) -> None:
        """One document instead of a stream. How many tokens a text is that came at once, its length tells."""
        self._take(data, None, events)
        for event in events:
            if isinstance(event, TextDelta | ReasoningDelta):
                self._deltas += max(1, len(event.text) // _CHARACTERS_PER_TOKEN) - 1

    def _take(self, data: bytes, raw: bytes | None, events: list[Event]) -> None:
        if self._ended or not data:
            return
        if data.startswith(b"[DONE]"):
            self._end(events)
            return
        try:
            chunk = _chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            chunk, data, raw = self._odd(data, raw, error)
        choices = chunk.choices
        if choices is None or chunk.error:
            self._not_content(chunk, data)
            return
        if len(choices) == 1 and chunk.usage is None and chunk.timings is None:
            self._one(choices[0], data, raw, events)
            return
        if chunk.timings is not None:
            self._timings = chunk.timings
        if chunk.usage is not None:
            raw = self._account(chunk.usage, choices, data, raw)
        elif not choices and raw is not None and self._include_usage:  # others expect a choice in every frame
            events.append(Opaque(raw=raw))
        before, sound = len(events), True
        for choice in choices:
            sound = self._choose(choice, data, events) and sound
        if raw is not None and choices and sound:
            _attach(raw, events, before)

    def _one(self, choice: wire.ChoiceOut, data: bytes, raw: bytes | None, events: list[Event]) -> None:
        before = len(events)
        sound = self._choose(choice, data, events)
        if raw is not None and sound:
            _attach(raw, events, before)
        if len(events) == before + 1 and type(event := events[before]) is TextDelta:
            self._template.learn(_DATA + data, event.text, choice.index, completions=self._completions)
        elif self._asides is not None and data.find(_ANNOTATIONS) >= 0:
            self._asides.keep(_members(data)["choices"])

    def _odd(self, data: bytes, raw: bytes | None, error: Exception) -> tuple[wire.ChunkOut, bytes, bytes | None]:
        """A frame that cannot be read, and what stands for its bytes: it tells an error, has accounts in a form of its
        own, or cuts a character in two."""
        if (told := errors.decode_frame(data)) is not None:
            raise told from error
        if not halves.cut(data):
            return _bare_of(data), data, raw
        if self._halves is None:
            self._halves = Halves(_choice_of)
        data = self._halves.mend(data).translate(_BREAKS)
        return _decoded(data), data, None if raw is None else sse.frame(data)

    def _not_content(self, chunk: wire.ChunkOut, data: bytes) -> None:
        if (told := errors.decode_frame(data)) is not None:
            raise told
        if chunk.usage is not None:
            self._usage = chunk.usage

    def _account(
        self, told: wire.UsageOut, choices: Sequence[wire.ChoiceOut], data: bytes, raw: bytes | None
    ) -> bytes | None:
        """Remember the usage; the frame's bytes as the caller may see them among content."""
        self._usage = told
        if not choices:
            self._usage_raw = raw
            self._remember(data)
        elif raw is None:
            return None
        elif not self._usage_everywhere:
            members = _members(data)
            if self._include_usage:
                members["usage"] = Raw(_NULL)
            else:
                del members["usage"]
            return sse.frame(_encode(members))
        return raw

    def _remember(self, data: bytes) -> None:
        """Keep what only this dialect knows of a last frame, for an answer that is not streamed: `timings`, …"""
        if self._asides is None:
            return
        members = _members(data)
        if not members.keys() <= _COMMON:
            self._extra.update({name: value for name, value in members.items() if name not in _COMMON})
        self._asides.keep(members["choices"])

    def _choose(self, choice: wire.ChoiceOut, data: bytes, events: list[Event]) -> bool:
        """One choice's part of a frame. False if the frame breaks a rule and must not reach a caller as it is."""
        index, sound, before, delta = choice.index, True, len(events), choice.delta
        if delta is None:
            delta, sound = choice.message, self._completions  # clients of a chat look into it in every frame
        if delta is not None:
            if text := delta.reasoning_content or delta.reasoning:
                events.append(ReasoningDelta(index=index, text=text))
            if text := delta.content:
                events.append(TextDelta(index=index, text=text))
            elif text := delta.refusal:
                events.append(TextDelta(index=index, text=text))
                if self._asides is not None:
                    self._asides.refuse(index, text)
            if delta.tool_calls or delta.function_call is not None:
                sound = self._call(delta, index, data, events) and sound
        elif choice.text:
            events.append(TextDelta(index=index, text=choice.text))
        if choice.logprobs is not None and (tokens := logprobs.decode(choice.logprobs)):
            events.append(LogprobDelta(index=index, tokens=tokens))
            sound = sound and (choice.logprobs.content is None or not self._completions)
        self._deltas += len(events) - before
        if not choice.finish_reason:
            self._open.setdefault(index, True)
            return sound
        return self._finish(choice, choice.finish_reason, data, events) and sound

    def _call(self, delta: wire.Delta, index: int, data: bytes, events: list[Event]) -> bool:
        calls = self._calls.setdefault(index, Calls())
        if delta.function_call is not None:
            old = wire.CallDelta(index=0, id=delta.function_call.name, function=delta.function_call)
            events.extend(calls.take(old, index, data)[0])
            return True
        given = delta.tool_calls
        sound = isinstance(given, list)
        for call in given if isinstance(given, list) else [given] if given else []:
            taken, right = calls.take(call, index, data)
            events.extend(taken)
            sound = sound and right
        return sound

    def _finish(self, choice: wire.ChoiceOut, given: str, data: bytes, events: list[Event]) -> bool:
        if given in _BROKEN:
            raise EngineFailed(f"the engine broke off its answer: finish_reason {given!r}")
        index, reason = choice.index, _REASONS.get(given, "stop")
        if reason == "stop" and self._calls.get(index):
            reason = "tool_calls"
        if self._open.get(index, True):
            self._open[index] = False
            met = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop
            stop_sequence = met if isinstance(met, str) else None
            events.append(ChoiceFinished(index=index, reason=reason, stop_sequence=stop_sequence))
        self._remember(data)
        return given in (reason, "function_call")

    def _end(self, events: list[Event]) -> None:
        if not self._open:
            raise EngineFailed("the engine ended its stream without an answer")
        for index, is_open in self._open.items():
            if is_open:  # [DONE] came without a reason
                reason: FinishReason = "tool_calls" if self._calls.get(index) else "stop"
                events.append(ChoiceFinished(index=index, reason=reason))
        self._ended = True
        used = usage.decode(self._usage, self._timings, self._deltas)
        events.append(
            Finished(
                usage=used,
                timings=_timings(self._timings),
                extra=self._extra if self._asides is None else {**self._extra, **self._asides.members(self._calls)},
                raw=None if used.estimated else self._usage_raw,  # which tells nothing then
            )
        )


def _is_cut(data: bytes) -> bool:
    try:
        _members(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    return False


def _choice_of(data: bytes) -> int:
    choices = _decoded(data).choices
    return choices[0].index if choices else 0


def _decoded(data: bytes) -> wire.ChunkOut:
    try:
        return _chunk(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _bare_of(data)


def _bare_of(data: bytes) -> wire.ChunkOut:
    try:
        bare = _bare_chunk(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFailed(f"the engine sent a frame that cannot be read: {error}") from error
    return wire.ChunkOut(choices=bare.choices, error=bare.error)


def _attach(raw: bytes, events: list[Event], start: int) -> None:
    """Give a frame's bytes to the first of its events, none of which has been handed out yet; siblings get b""."""
    if b'"logprobs"' in raw and not _REFUSAL.search(raw):
        raw = _LOGPROBS.sub(rb'\1"refusal":null,\2', raw)
    if start == len(events):
        events.append(Opaque(raw=raw))
        return
    if type(events[start]) is ReasoningDelta:  # always the first of its frame
        raw = _REASONING.sub(_both_names, raw) if _one_name(raw) else raw
    for event in events[start:]:
        force_setattr(event, "raw", raw)
        raw = b""


def _one_name(raw: bytes) -> bool:
    return len(set(_REASONING_NAMES.findall(raw))) == 1


def _both_names(found: re.Match[bytes]) -> bytes:
    name, colon, text = found.groups()
    other = b"reasoning" if name == b"reasoning_content" else b"reasoning_content"
    return b'"%b"%b%b,"%b"%b%b' % (name, colon, text, other, colon, text)


def _timings(given: wire.TimingsOut | None) -> Timings | None:
    if given is None:
        return None
    return Timings(prompt_s=(given.prompt_ms or 0.0) / 1000, completion_s=(given.predicted_ms or 0.0) / 1000)
