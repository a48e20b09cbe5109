"""Answers to callers of `/api/chat` and `/api/generate`: one JSON object per line, the last one with `done`.

- Every frame has `model`, `created_at`, which is when it was made, and its content, empty if need be; none has an
  `error`; none is blank.
- The frame that has the text of tokens has their log-probabilities.
- A tool call goes out whole: its pieces are kept until the choice is finished.
- Counts and durations stand in the final frame only, and only if they are not zero. `total_duration` is the sum of the
  others; an Ollama engine's own frame goes out with its own figure.
- `done_reason` is "stop" or "length"; Ollama has no other for an answer.
- Progress is a frame without content, so that a caller who waits sees no silence (and never `done_reason` "load").
- A frame of an Ollama engine goes out as it came but for the model's name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from drivetrain.dialects import logprobs, ndjson
from drivetrain.dialects.ollama import context, requests
from drivetrain.dialects.ollama.durations import nanoseconds, stamp
from drivetrain.dialects.ollama.errors import encode_error
from drivetrain.dialects.ollama.messages import write_call
from drivetrain.errors import DrivetrainError
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    LogprobDelta,
    Message,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    Response,
    Text,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)

Clock = Callable[[], int]  # tells the Unix time in nanoseconds
_OPEN = b',"done":false}\n'  # how all frames end but the last
_json = msgspec.json.Encoder().encode
_MODEL_FIRST = re.compile(rb'\{\s*"model"\s*:\s*"(?:[^"\\]|\\.)*"')


class Shape(msgspec.Struct, frozen=True):
    """What the two surfaces' frames differ in: what stands around the text."""

    before: bytes
    after: bytes


CHAT = Shape(b'"message":{"role":"assistant","content":', b"}")
GENERATE = Shape(b'"response":', b"")


class Reply:
    """One answer, streamed (`encode`, `error`) or not (`whole`)."""

    __slots__ = (
        *("_calls", "_clock", "_context", "_engine_model", "_held", "_joins", "_model", "_reason", "_said", "_second"),
        *("_shape", "_tail", "_until"),
    )
    media_type = ndjson.MEDIA_TYPE

    def __init__(self, request: Request, *, clock: Clock, shape: Shape) -> None:
        self._clock = clock
        self._shape = shape
        self._model = b'{"model":' + _json(request.model)
        self._tail = shape.after + _OPEN
        self._second = -1
        self._until = b""  # how frames of this second begin
        self._engine_model: bytes | None = None  # how the engine's frames begin
        self._calls: dict[int, tuple[str, str, list[str]]] = {}  # position → id, name, pieces of arguments
        self._reason = "stop"
        keeps = shape is GENERATE and request.completion is None
        self._context = request.messages if keeps else None
        self._said: list[str] = []  # the answer so far, for `context`
        self._joins = logprobs.asked(request) is not None
        self._held: TextDelta | ReasoningDelta | None = None  # its log-probabilities may come next

    def encode(self, event: Event) -> bytes:
        return self._joined(event) if self._joins else self._alone(event)

    def _joined(self, event: Event) -> bytes:
        """A piece of text waits for the event after it, and takes that into its frame if it tells how likely it was."""
        held, self._held = self._held, None
        if isinstance(event, TextDelta | ReasoningDelta) and event.raw is None:
            self._held = event
            return self._alone(held) if held else b""
        if isinstance(event, LogprobDelta) and event.raw is None and held is not None:
            return self._with_logprobs(self._alone(held), event)
        return (self._alone(held) if held else b"") + self._alone(event)

    def _alone(self, event: Event) -> bytes:
        raw = event.raw
        if raw is not None:
            return self._forward(raw) if raw else b""
        if type(event) is TextDelta:
            if self._context is not None:
                self._said.append(event.text)
            return self._head() + _json(event.text) + self._tail
        return self._encode_rarer(event)

    def _head(self) -> bytes:
        """The beginning of a frame that is made now."""
        second, ns = divmod(self._clock(), 10**9)
        if second != self._second:
            self._second = second
            self._until = self._model + b',"created_at":"' + stamp(second)[: -len("000000000Z")].encode()
        return b'%b%09dZ",%b' % (self._until, ns, self._shape.before)

    def error(self, error: DrivetrainError) -> bytes:
        held, self._held = self._held, None
        return (self._alone(held) if held else b"") + encode_error(error) + b"\n"

    def whole(self, response: Response) -> bytes:
        choice = response.choices[0]
        self._said.append(choice.text)
        thinking = b',"thinking":' + _json(choice.reasoning) if choice.reasoning else b""
        reason = "length" if choice.reason == "length" else "stop"
        end = {**_logprobs(choice.logprobs), **self._end(reason, response.usage, response.timings, response.extra)}
        return self._frame(choice.text, thinking + _tool_calls(choice.tool_calls), end)

    def _encode_rarer(self, event: Event) -> bytes:
        match event:
            case ReasoningDelta():
                return self._head() + b'"","thinking":' + _json(event.text) + self._tail
            case ToolCallStart():
                self._calls[event.call] = (event.id, event.name, [])
            case ToolCallDelta() if event.call in self._calls:
                self._calls[event.call][2].append(event.arguments)
            case LogprobDelta():
                return self._with_logprobs(self._head() + b'""' + self._tail, event)
            case Progress():
                return self._head() + b'""' + self._tail
            case ChoiceFinished():
                self._reason = "length" if event.reason == "length" else "stop"
                return self._pending_calls()
            case Finished():
                end = self._end(self._reason, event.usage, event.timings, event.extra)
                return self._pending_calls() + self._frame("", b"", end) + b"\n"
            case Opaque():  # another dialect's, or it would have its frame with it
                pass
        return b""

    def _with_logprobs(self, frame: bytes, event: LogprobDelta) -> bytes:
        return frame[: -len(_OPEN)] + b"," + _json({"done": False, **_logprobs(event.tokens)})[1:] + b"\n"

    def _pending_calls(self) -> bytes:
        if not self._calls:
            return b""
        calls = [
            ToolCall(id=id, name=name, arguments="".join(args)) for _, (id, name, args) in sorted(self._calls.items())
        ]
        self._calls.clear()
        return self._head() + b'""' + _tool_calls(calls) + self._tail

    def _frame(self, text: str, members: bytes, end: Mapping[str, Any]) -> bytes:
        """A frame with `members` beside the text and those of `end` at the top. No newline."""
        return self._head() + _json(text) + members + self._shape.after + b"," + _json(end)[1:]

    def _end(self, reason: str, usage: Usage, timings: Timings | None, extra: Mapping[str, Raw]) -> dict[str, Any]:
        end: dict[str, Any] = {"done": True, "done_reason": reason, **metrics(usage, timings)}
        if self._context is not None:
            answer = Message(role="assistant", content=(Text(text="".join(self._said)),))
            end["context"] = context.encode((*self._context, answer))
        # Every final frame of an Ollama engine has a total_duration and no other dialect's has: these are its words.
        return {**end, **extra} if "total_duration" in extra else end

    def _forward(self, raw: bytes) -> bytes:
        if self._engine_model is not None and raw.startswith(self._engine_model):
            return self._model + raw[len(self._engine_model) :]
        if found := _MODEL_FIRST.match(raw):
            self._engine_model = found[0]
            return self._model + raw[found.end() :]
        members = msgspec.json.decode(raw, type=dict[str, Raw])
        members["model"] = Raw(self._model[len(b'{"model":') :])
        return _json(members) + b"\n"


def metrics(usage: Usage, timings: Timings | None) -> dict[str, int]:
    """The counts and durations of a final frame; zero is left out."""
    timed = timings or Timings()
    figures = {
        "total_duration": nanoseconds(timed.load_s + timed.prompt_s + timed.completion_s),
        "load_duration": nanoseconds(timed.load_s),
        "prompt_eval_count": usage.prompt,
        "prompt_eval_duration": nanoseconds(timed.prompt_s),
        "eval_count": usage.completion,
        "eval_duration": nanoseconds(timed.completion_s),
    }
    return {name: figure for name, figure in figures.items() if figure}


def encode_load(request: Request, *, created_s: float) -> bytes:
    """The one object that answers a request which only loads a model, or unloads it. Never a stream."""
    shape = GENERATE if request.source and request.source.dialect == requests.GENERATE else CHAT
    head = _json({"model": request.model, "created_at": stamp(created_s)})[:-1] + b","
    reason = "unload" if request.keep_alive_s == 0 else "load"
    return head + shape.before + b'""' + shape.after + b"," + _json({"done": True, "done_reason": reason})[1:]


def _tool_calls(calls: Iterable[ToolCall]) -> bytes:
    wire = [write_call(call, at, wire_id=call.id) for at, call in enumerate(calls)]
    return b',"tool_calls":' + _json(wire) if wire else b""


def _logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    wire = [_logprob(token) for token in tokens]
    return {"logprobs": wire} if wire else {}


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    wire: dict[str, Any] = {"token": token.token, "logprob": token.logprob}
    if token.bytes is not None:
        wire["bytes"] = token.bytes
    if token.top:
        wire["top_logprobs"] = [_logprob(other) for other in token.top]
    return wire
