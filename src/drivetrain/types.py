"""The values that flow through Drivetrain: requests, events, answers, models. Imports nothing of ours.

Every value is frozen. A caller's dialect decodes a `Request`; an engine turns it into a stream of `Event`s; the
caller's dialect encodes those. A non-streaming answer is `fold(events)`: there is no second path.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]
Effort = Literal["none", "low", "medium", "high", "max"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
Capability = Literal["completion", "tools", "insert", "vision", "audio", "embedding", "thinking", "rerank"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Ancestor of the values: immutable, compared by content, built by keyword."""


# --- requests ---------------------------------------------------------------------------------------------------------


class Text(Value, frozen=True, kw_only=True, tag="text"):
    text: str


class Image(Value, frozen=True, kw_only=True, tag="image"):
    """An image as the caller gave it: a `data:` URL with base64 content, or an http(s) URL."""

    url: str
    detail: str | None = None


class Audio(Value, frozen=True, kw_only=True, tag="audio"):
    data: str  # base64
    format: str  # "wav", "mp3"


Part = Text | Image | Audio


class ToolCall(Value, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: str  # JSON text of an object


class Message(Value, frozen=True, kw_only=True):
    role: Role
    content: tuple[Part, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None  # a participant's name, or the tool's for role "tool"

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


class Tool(Value, frozen=True, kw_only=True):
    name: str
    description: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")  # a JSON schema, verbatim
    strict: bool | None = None


class NamedTool(Value, frozen=True, kw_only=True):
    """A `tool_choice` that demands one function."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


class JsonObject(Value, frozen=True, kw_only=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(Value, frozen=True, kw_only=True, tag="json_schema"):
    schema: msgspec.Raw  # verbatim
    name: str = "response"
    strict: bool | None = None


class Grammar(Value, frozen=True, kw_only=True, tag="grammar"):
    text: str  # GBNF


OutputFormat = JsonObject | JsonSchema | Grammar


class Sampling(Value, frozen=True, kw_only=True):
    """Request-time parameters. None means "not said": the engine's or the model's default holds."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None  # alternatives beside each chosen token; 0 or None: the chosen one only
    n: int = 1


class Completion(Value, frozen=True, kw_only=True):
    """Raw text completion: no chat template is applied. A prompt is text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]
    suffix: str | None = None  # fill in the middle
    echo: bool = False
    logprobs: int | None = None  # alternatives beside each chosen token; 0: the chosen one only; None: none at all


class Source(Value, frozen=True, kw_only=True):
    """What the caller sent, in the caller's own words: for an engine that speaks the same dialect, byte for byte."""

    dialect: str  # "openai.chat", "openai.completions", "ollama.chat", "ollama.generate", …
    fields: Mapping[str, msgspec.Raw]  # top-level members of the body
    sampling: Sampling | None = None  # what they say of it, where that was worked out

    def without(self, members: Collection[str]) -> "Source":
        """The same but for these; itself, if it has none of them."""
        if self.fields.keys().isdisjoint(members):
            return self
        return Source(
            dialect=self.dialect, fields={name: raw for name, raw in self.fields.items() if name not in members}
        )


class Request(Value, frozen=True, kw_only=True):
    """One generation. Either `messages` (chat) or `completion` is set."""

    model: str
    messages: tuple[Message, ...] = ()
    completion: Completion | None = None
    sampling: Sampling = Sampling()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output: OutputFormat | None = None
    reasoning: Effort | None = None
    stream: bool = False
    include_usage: bool = False  # the caller asked for a usage chunk at the end of a stream
    keep_alive_s: float | None = None  # None: default; negative: for ever; 0: unload when done
    options: Mapping[str, Any] = {}  # load-time options (num_ctx, …) of dialects that carry them in a request
    user: str | None = None
    source: Source | None = None
    traceparent: str | None = None  # W3C Trace Context, for the engine
    connect_s: float | None = None  # how long a connection to the engine may take; None: as the engine's entry says
    gather_s: float = 0.0  # after the first content, pieces of the answer may be kept so long, to be read together
    resumes: bool = False  # the last message is an answer that broke off, which the engine is to go on with
    urgency: int = 1  # for engines with a queue of their own: 0 bulk, 1 default, 2 interactive, 3 system


class EmbedRequest(Value, frozen=True, kw_only=True):
    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    truncate: bool = True
    normalised: bool = True  # False: of the length that the model gives them, where the engine can tell that
    keep_alive_s: float | None = None
    options: Mapping[str, Any] = {}
    source: Source | None = None
    traceparent: str | None = None
    connect_s: float | None = None  # as of a `Request`


# --- events -----------------------------------------------------------------------------------------------------------


class Usage(Value, frozen=True, kw_only=True):
    prompt: int = 0
    cached: int = 0  # part of prompt
    completion: int = 0
    reasoning: int = 0  # part of completion
    cache_write: int = 0  # part of prompt: written to a cache that is charged for
    estimated: bool = False  # counted by us, not reported by the engine
    cost_micro_usd: int | None = None  # by the price table; None: it has no price for this


class Timings(Value, frozen=True, kw_only=True):
    """Seconds, measured by the engine where it tells, by the gateway where not."""

    load_s: float = 0.0
    prompt_s: float = 0.0
    completion_s: float = 0.0


class TokenLogprob(Value, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: tuple["TokenLogprob", ...] = ()


class Experts(Value, frozen=True, kw_only=True):
    """How the experts of a streamed model fare: what its worker has counted since it began, and the bytes it holds now.

    Of requests side by side nobody can tell which one an expert was read for: the difference of two is that of all.
    """

    budget_bytes: int = 0  # of memory that they may take
    resident_bytes: int = 0  # that they take
    total_bytes: int = 0  # of all of them
    hits: int = 0  # experts that were asked for, and in memory
    misses: int = 0  # and not
    read_bytes: int = 0
    wait_s: float = 0.0  # the calculation waited for the drive
    compute_s: float = 0.0  # it ran
    tokens: int = 0
    failures: int = 0

    @property
    def hit_rate(self) -> float:
        """0 to 1; 1 where none was asked for."""
        return self.hits / (self.hits + self.misses) if self.misses else 1.0

    @property
    def wait_share(self) -> float:
        """Of the time that experts took, that spent waiting for the drive: 0 to 1."""
        return self.wait_s / (self.wait_s + self.compute_s) if self.wait_s else 0.0

    def since(self, before: "Experts") -> "Experts":
        """The counts from `before` to now."""
        counts = ("hits", "misses", "read_bytes", "wait_s", "compute_s", "tokens", "failures")
        return msgspec.structs.replace(self, **{name: getattr(self, name) - getattr(before, name) for name in counts})


class Framed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every event may carry: `raw`, the engine's own frame in the caller's dialect, forwarded as it came.

    `None`: no frame, encode from the fields. `b""`: a sibling event of the same frame carries it.
    """

    index: int = 0  # which choice
    raw: bytes | None = None


class TextDelta(Framed, frozen=True, kw_only=True, gc=False, tag="text"):
    """Some text. What an engine sent at once in several frames may be one event, whose `raw` is all of them."""

    text: str
    tokens: int = 1  # frames of the engine that it is made of: about one token each


class ReasoningDelta(Framed, frozen=True, kw_only=True, gc=False, tag="reasoning"):
    text: str


class ToolCallStart(Framed, frozen=True, kw_only=True, gc=False, tag="tool_start"):
    call: int  # position among the choice's calls
    id: str
    name: str


class ToolCallDelta(Framed, frozen=True, kw_only=True, gc=False, tag="tool_delta"):
    call: int
    arguments: str  # a piece of JSON text


class LogprobDelta(Framed, frozen=True, kw_only=True, tag="logprobs"):
    tokens: tuple[TokenLogprob, ...]


class Opaque(Framed, frozen=True, kw_only=True, gc=False, tag="opaque"):
    """A frame that only this dialect understands (a role chunk, an empty delta). Dropped across dialects."""


class Progress(Framed, frozen=True, kw_only=True, gc=False, tag="progress"):
    """A caller waits: in a queue, for a model to load. Never content; a dialect shows it in its own way, or not."""

    stage: Literal["queued", "loading", "prompt"]
    fraction: float | None = None  # 0..1 where known
    experts: Experts | None = None  # of a streamed model, before this request


class ChoiceFinished(Framed, frozen=True, kw_only=True, gc=False, tag="choice_finished"):
    reason: FinishReason
    stop_sequence: str | None = None


class Finished(Framed, frozen=True, kw_only=True, tag="finished"):
    """The one terminal event of a generation. `extra` holds members of the last frames that only this dialect knows."""

    usage: Usage = Usage()
    timings: Timings | None = None
    extra: Mapping[str, msgspec.Raw] = {}
    experts: Experts | None = None  # of a streamed model, while this request ran


Content = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | LogprobDelta
Event = Content | Opaque | Progress | ChoiceFinished | Finished


# --- answers ----------------------------------------------------------------------------------------------------------


class Choice(Value, frozen=True, kw_only=True):
    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reason: FinishReason = "stop"
    stop_sequence: str | None = None


class Response(Value, frozen=True, kw_only=True):
    choices: tuple[Choice, ...]
    usage: Usage = Usage()
    timings: Timings | None = None
    extra: Mapping[str, msgspec.Raw] = {}
    experts: Experts | None = None


class _Draft:
    """A choice being folded."""

    __slots__ = ("calls", "logprobs", "reason", "reasoning", "stop_sequence", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, tuple[str, str, list[str]]] = {}  # position → id, name, pieces of arguments
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason = "stop"
        self.stop_sequence: str | None = None

    def choice(self, index: int) -> Choice:
        calls = (
            ToolCall(id=id, name=name, arguments="".join(args)) for _, (id, name, args) in sorted(self.calls.items())
        )
        return Choice(
            index=index,
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            tool_calls=tuple(calls),
            logprobs=tuple(self.logprobs),
            reason=self.reason,
            stop_sequence=self.stop_sequence,
        )


class Fold:
    """Accumulates events into a `Response`. `add` them, then read `response()`."""

    def __init__(self) -> None:
        self._drafts: dict[int, _Draft] = {}
        self._finished = Finished()

    def extend(self, events: Iterable[Event]) -> None:
        """Take a batch. Text, which most events are, goes the shortest way."""
        drafts = self._drafts
        for event in events:
            if type(event) is TextDelta and event.index in drafts:
                drafts[event.index].text.append(event.text)
            else:
                self.add(event)

    def add(self, event: Event) -> None:
        if type(event) is Finished:
            self._finished = event
        elif type(event) is not Opaque and type(event) is not Progress:
            draft = self._drafts.get(event.index)
            if draft is None:
                draft = self._drafts[event.index] = _Draft()
            self._add_to(draft, event)

    @staticmethod
    def _add_to(draft: _Draft, event: Event) -> None:
        match event:
            case TextDelta():
                draft.text.append(event.text)
            case ReasoningDelta():
                draft.reasoning.append(event.text)
            case ToolCallStart():
                draft.calls[event.call] = (event.id, event.name, [])
            case ToolCallDelta():
                draft.calls[event.call][2].append(event.arguments)
            case LogprobDelta():
                draft.logprobs.extend(event.tokens)
            case ChoiceFinished():
                draft.reason, draft.stop_sequence = event.reason, event.stop_sequence

    def response(self) -> Response:
        choices = tuple(draft.choice(index) for index, draft in sorted(self._drafts.items())) or (Choice(index=0),)
        done = self._finished
        return Response(choices=choices, usage=done.usage, timings=done.timings, extra=done.extra, experts=done.experts)


def fold(events: Iterable[Event]) -> Response:
    """The whole answer that a stream of events spells."""
    folded = Fold()
    folded.extend(events)
    return folded.response()


class Embeddings(Value, frozen=True, kw_only=True):
    vectors: tuple[Sequence[float], ...]  # one per input
    usage: Usage = Usage()
    experts: Experts | None = None  # of a streamed model, while this request ran


# --- models and engines -----------------------------------------------------------------------------------------------


class Model(Value, frozen=True, kw_only=True):
    """A model as an engine or the library lists it."""

    id: str
    engine: str = ""
    capabilities: frozenset[Capability] = frozenset()
    context_length: int | None = None
    embedding_length: int | None = None
    created_s: int = 0  # Unix time
    size_bytes: int = 0
    digest: str = ""  # 64 hex digits
    format: str = ""
    family: str = ""
    parameter_size: str = ""  # "8.0B"
    quantization: str = ""  # "Q4_K_M"


class Loaded(Value, frozen=True, kw_only=True):
    """A model that occupies memory now."""

    model: Model
    size_bytes: int
    vram_bytes: int = 0
    context_length: int | None = None
    expires_s: float | None = None  # Unix time; None: never
    active: int = 0  # requests in flight
    address: str = ""  # where its worker answers, for direct measurement
    experts: Experts | None = None  # of a streamed model


class Resident(Value, frozen=True, kw_only=True):
    """A model in memory, as the choice of what to evict sees it."""

    id: str
    size_bytes: int
    active: int  # requests in flight; it leaves when they are done, never before
    last_used_s: float
    since_s: float = 0.0  # when it came, by the same clock


class ModelSpec(Value, frozen=True, kw_only=True):
    """A model of the library, resolved: which engine runs it, from which files, with which effective settings."""

    id: str
    engine: str = "local"
    weights: str | None = None  # absolute path of the first weights file; None for a remote model
    projector: str | None = None  # absolute path of a multimodal projector
    adapters: tuple[str, ...] = ()
    remote_model: str | None = None  # the engine's own name of the model
    settings: Mapping[str, Any] = {}  # load time, merged: engine.json < model.json
    parameters: Mapping[str, Any] = {}  # request time, merged likewise
    template: str | None = None
    system: str | None = None
    messages: tuple[Message, ...] = ()  # a conversation that precedes each request
    model: Model = Model(id="")


class Health(Value, frozen=True, kw_only=True):
    live: bool  # the engine answers
    ready: bool  # it takes requests
    awake: bool = True  # its model is in memory, or will be without a hand
    running: int | None = None
    waiting: int | None = None
    message: str = ""


class Notice(Value, frozen=True, kw_only=True):
    """A lifecycle event: `model.loading`, `model.ready`, `engine.down`, `download.progress`, …"""

    name: str
    model: str | None = None
    engine: str | None = None
    fraction: float | None = None
    completed: int | None = None  # bytes
    total: int | None = None  # bytes
    error: str | None = None
    experts: Experts | None = None  # of a streamed model that is ready, or leaves
    at_s: float = 0.0
