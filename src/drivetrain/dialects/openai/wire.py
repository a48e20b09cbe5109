"""The members of OpenAI's bodies that Drivetrain reads, as typed structs: the fastest way through msgspec.

Members that are not named here are never lost: a request's are kept in `Source.fields`, a frame's in its raw bytes.
Engines stray from the schema in known ways (nulls, objects for lists, legacy forms), and the types say which.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw


class Wire(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Ancestor of the wire structs. Unknown members are accepted."""


# --- requests ---------------------------------------------------------------------------------------------------------

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Limit = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # of tokens; -1 means "none" to llama.cpp and its friends
Share = Annotated[float, Meta(ge=0, le=1)]
Heat = Annotated[float, Meta(ge=0, le=2)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Positive = Annotated[float, Meta(ge=0)]
Top = Annotated[int, Meta(ge=0, le=20)]
Tokens = list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]


class FunctionIn(Wire, frozen=True, kw_only=True, gc=False):
    name: str
    arguments: str | dict[str, Any] | None = None


class CallIn(Wire, frozen=True, kw_only=True, gc=False):
    id: str | None = None
    type: str = "function"
    function: FunctionIn | None = None
    custom: dict[str, Any] | None = None


class PartIn(Wire, frozen=True, kw_only=True, gc=False):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class MessageIn(Wire, frozen=True, kw_only=True, gc=False):
    role: str
    content: str | list[PartIn] | None = None
    name: str | None = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: str | None = None
    function_call: FunctionIn | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionTool(Wire, frozen=True, kw_only=True, gc=False):
    name: str
    description: str | None = None
    parameters: Raw = Raw(b"{}")
    strict: bool | None = None


class ToolIn(Wire, frozen=True, kw_only=True, gc=False):
    type: str = "function"
    function: FunctionTool | None = None


class SchemaIn(Wire, frozen=True, kw_only=True, gc=False):
    name: str = "response"
    schema: Raw = Raw(b"{}")
    strict: bool | None = None


class FormatIn(Wire, frozen=True, kw_only=True, gc=False):
    type: str
    json_schema: SchemaIn | None = None
    schema: Raw = Raw(b"null")  # llama.cpp: `{"type": "json_object", "schema": {…}}`


class StreamOptions(Wire, frozen=True, kw_only=True, gc=False):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ReasoningIn(Wire, frozen=True, kw_only=True, gc=False):
    effort: str | None = None
    enabled: bool | None = None


class Common(Wire, frozen=True, kw_only=True, gc=False):
    """What both generating surfaces accept, extensions of the engines included."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Limit | None = None
    temperature: Heat | None = None
    top_p: Share | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    top_k: Int64 | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Positive | None = None
    repetition_penalty: Positive | None = None
    repeat_last_n: Int64 | None = None
    grammar: str | None = None
    response_format: FormatIn | None = None
    user: str | None = None
    safety_identifier: str | None = None


class ChatIn(Common, frozen=True, kw_only=True, gc=False):
    messages: list[MessageIn]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: list[ToolIn] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionTool] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningIn | None = None


class CompletionIn(Common, frozen=True, kw_only=True, gc=False):
    prompt: str | list[str | int | Tokens] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Top | None = None


class EmbedIn(Wire, frozen=True, kw_only=True, gc=False):
    model: str
    input: str | list[str | int | Tokens]
    encoding_format: str | None = None
    dimensions: Count | None = None
    user: str | None = None


# --- answers ----------------------------------------------------------------------------------------------------------


class FunctionDelta(Wire, frozen=True, kw_only=True, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CustomDelta(Wire, frozen=True, kw_only=True, gc=False):
    """A call of a custom tool, which takes free text."""

    name: str | None = None
    input: str | None = None


class CallDelta(Wire, frozen=True, kw_only=True, gc=False):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None


class Delta(Wire, frozen=True, kw_only=True, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | CallDelta | None = None  # TGI of old wrote one object
    function_call: FunctionDelta | None = None


class TokenOut(Wire, frozen=True, kw_only=True, gc=False):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list["TokenOut"] | None = None


class LogprobsOut(Wire, frozen=True, kw_only=True, gc=False):
    """Both forms: `content` of chat; the four parallel lists of completions."""

    content: list[TokenOut] | None = None
    refusal: list[TokenOut] | None = None  # instead of content
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class ChoiceOut(Wire, frozen=True, kw_only=True, gc=False):
    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None  # of an engine that answers a request for a stream with one document
    text: str | None = None  # completions
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM: the stop sequence that was met, or a token's id
    matched_stop: str | int | None = None  # the same of SGLang
    logprobs: LogprobsOut | None = None


class Apart(Wire, frozen=True, kw_only=True, gc=False):
    """What a choice has that no event says. Not an engine's: kept for an answer that is not streamed, by index in the
    member `choices` of `Finished.extra`."""

    refusal: str = ""  # the end of the choice's text
    custom: tuple[int, ...] = ()  # positions of calls of custom tools
    choice: dict[str, Raw] = {}  # members that are not ours to write
    message: dict[str, Raw] = {}


class PromptDetails(Wire, frozen=True, kw_only=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Wire, frozen=True, kw_only=True, gc=False):
    reasoning_tokens: int | None = None


class UsageOut(Wire, frozen=True, kw_only=True, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    reasoning_tokens: int | None = None  # SGLang
    cached_tokens: int | None = None  # Moonshot
    prompt_cache_hit_tokens: int | None = None  # DeepSeek
    input_tokens: int | None = None  # Anthropic: without what came from the cache or went there
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None  # Anthropic, and gateways in front of it
    cache_creation_input_tokens: int | None = None


class TimingsOut(Wire, frozen=True, kw_only=True, gc=False):
    """llama.cpp's. Milliseconds."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class BareChunkOut(Wire, frozen=True, kw_only=True, gc=False):
    """A chunk without its accounts, for engines that put something of their own there."""

    choices: list[ChoiceOut] | None = None
    error: str | dict[str, Any] | None = None


class ChunkOut(BareChunkOut, frozen=True, kw_only=True, gc=False):
    usage: UsageOut | None = None
    timings: TimingsOut | None = None


class VectorOut(Wire, frozen=True, kw_only=True, gc=False):
    embedding: list[float] | str
    index: int | None = None


class EmbeddingsOut(Wire, frozen=True, kw_only=True, gc=False):
    data: list[VectorOut]
    usage: UsageOut | None = None


class ModelMeta(Wire, frozen=True, kw_only=True, gc=False):
    """llama.cpp's `meta` of a listed model."""

    n_ctx: int | None = None
    n_ctx_train: int | None = None
    n_embd: int | None = None
    size: int | None = None


class ModelOut(Wire, frozen=True, kw_only=True, gc=False):
    id: str
    created: int | float | None = None
    owned_by: str | None = None
    context_length: int | None = None
    max_model_len: int | None = None  # vLLM, SGLang
    meta: ModelMeta | None = None
