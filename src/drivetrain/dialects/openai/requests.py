"""Requests for a generation in OpenAI's form, both ways: chat completions and completions.

To an engine, a request that came through the same surface goes out in the caller's own words: all members verbatim but
for the model's name, `stream` and `stream_options`, plus the sampling parameters that the caller left open and the
model's or the policy's defaults filled in. Any other request is built from the canonical fields. Sampling parameters
that OpenAI does not know use the engines' common names; the penalty for repetition goes out under both of its names
(llama.cpp's and vLLM's). Load-time options and keep-alive cannot be said in this dialect and are left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects.openai import invalid, messages, wire
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.types import (
    Completion,
    Effort,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    OutputFormat,
    Request,
    Sampling,
    Source,
    Tool,
    ToolChoice,
)

CHAT: Final = "openai.chat"
COMPLETIONS: Final = "openai.completions"
LEGACY_CHAT: Final = "openai.chat.functions"  # `functions` instead of `tools`: engines get tools, callers functions

_EFFORTS: Mapping[str, Effort] = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
    "ultra": "max",
}
_EFFORT_NAMES: Mapping[Effort, str] = {"none": "none", "low": "low", "medium": "medium", "high": "high", "max": "high"}

# Canonical field → the names under which a caller may have said it; the names under which an engine is told.
_SAMPLING: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "max_tokens": (("max_tokens", "max_completion_tokens", "n_predict"), ("max_tokens",)),
    "repeat_penalty": (("repeat_penalty", "repetition_penalty"), ("repeat_penalty", "repetition_penalty")),
    **{
        name: ((name,), (name,))
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repeat_last_n",
            "logit_bias",
        )
    },
}
_values: Callable[[Sampling], tuple[Any, ...]] = attrgetter(*_SAMPLING)
_NULL = b"null"

_chat = msgspec.json.Decoder(wire.ChatIn)
_completion = msgspec.json.Decoder(wire.CompletionIn)
_encode = msgspec.json.Encoder().encode
_stream = msgspec.json.Decoder(wire.StreamOptions).decode
_options = msgspec.json.Decoder(dict[str, Raw])


# --- from callers -----------------------------------------------------------------------------------------------------


def decode_chat(body: bytes) -> Request:
    given = invalid.read(_chat, body)
    legacy = given.functions is not None and given.tools is None
    tools, choice = _functions(given) if legacy else _tools(given)
    _check_chat(given)
    sampling = _sampling(given, logprobs=given.logprobs, top_logprobs=given.top_logprobs)
    return Request(
        model=_model(given.model),
        messages=messages.decode(given.messages),
        sampling=sampling,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=given.parallel_tool_calls,
        output=_output(given),
        reasoning=_effort(given),
        stream=bool(given.stream),
        include_usage=_include_usage(given),
        user=given.user or given.safety_identifier,
        source=Source(
            dialect=LEGACY_CHAT if legacy else CHAT,
            fields=_fields(body, given.stop, sampling.stop),
            sampling=sampling,
        ),
    )


def _tools(given: wire.ChatIn) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    tools, choice = messages.decode_tools(given.tools or ()), messages.decode_choice(given.tool_choice)
    messages.check_choice(choice, tools, any_tools=bool(given.tools), param="tool_choice")
    if isinstance(given.tool_choice, dict):
        tools = messages.allowed(given.tool_choice, tools)
    return tools, choice


def _functions(given: wire.ChatIn) -> tuple[tuple[Tool, ...], ToolChoice | None]:
    functions, param = given.functions or (), "function_call"
    tools = tuple([messages.decode_function(each, f"functions[{at}]") for at, each in enumerate(functions)])
    choice = messages.decode_choice(given.function_call, param)
    messages.check_choice(choice, tools, any_tools=bool(tools), param=param)
    return tools, choice


def _check_chat(given: wire.ChatIn) -> None:
    """A chat has an answer; a bare completion may be of no token at all."""
    for param in ("max_completion_tokens", "max_tokens"):
        if getattr(given, param) == 0:
            raise BadRequest(f"'{param}' must be an integer >= 1, not 0", param=param)


def decode_completion(body: bytes) -> Request:
    given = invalid.read(_completion, body)
    if given.prompt is None:
        raise BadRequest("'prompt' is missing", param="prompt")
    completion = Completion(
        prompts=inputs(given.prompt, "prompt"),
        suffix=given.suffix or None,
        echo=bool(given.echo),
        logprobs=given.logprobs,
    )
    sampling = _sampling(given)
    return Request(
        model=_model(given.model),
        completion=completion,
        sampling=sampling,
        output=_output(given),
        stream=bool(given.stream),
        include_usage=_include_usage(given),
        user=given.user or given.safety_identifier,
        source=Source(dialect=COMPLETIONS, fields=_fields(body, given.stop, sampling.stop), sampling=sampling),
    )


def _fields(body: bytes, given: str | Sequence[str] | None, stops: tuple[str, ...]) -> Mapping[str, Raw]:
    """The members as the caller sent them, but for empty ones of the `given` stops: an engine would stop at once."""
    fields = invalid.fields(body)
    if given is None or (stops and len(stops) == len(_listed(given))):
        return fields
    kept = {name: value for name, value in fields.items() if name != "stop"}
    return {**kept, "stop": Raw(_encode(stops))} if stops else kept


def _listed(stop: str | Sequence[str]) -> Sequence[str]:
    return (stop,) if isinstance(stop, str) else stop


def inputs(given: str | list[Any], param: str) -> tuple[str | tuple[int, ...], ...]:
    """Prompts or inputs of embeddings: a text, texts, token ids, or lists of token ids."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise BadRequest(f"'{param}' is empty; a string or an array of strings is expected", param=param)
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        expected = "expected all strings, all token ids or all arrays of token ids"
        raise BadRequest(f"'{param}' mixes kinds; {expected}", param=param)
    if kinds == {int}:
        _check_tokens(given, param)
        return (tuple(given),)
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)


def _check_tokens(tokens: Iterable[int], param: str) -> None:
    for at, token in enumerate(tokens):
        if not 0 <= token < 2**31:
            raise BadRequest(f"'{param}[{at}]' is {token}; token ids are between 0 and {2**31 - 1}", param=param)


def _model(given: str) -> str:
    if not given.strip():
        raise BadRequest("'model' is empty; name a model", param="model")
    return given


def _sampling(given: wire.Common, *, logprobs: bool | None = None, top_logprobs: int | None = None) -> Sampling:
    if top_logprobs is not None and not logprobs:
        raise BadRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    limit = getattr(given, "max_completion_tokens", None)
    limit = given.max_tokens if limit is None else limit
    penalty = given.repeat_penalty if given.repeat_penalty is not None else given.repetition_penalty
    return Sampling(
        max_tokens=None if limit == -1 else limit,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        typical_p=given.typical_p,
        seed=given.seed,
        stop=tuple([stop for stop in _listed(given.stop or ()) if stop]),
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repeat_penalty=penalty,
        repeat_last_n=given.repeat_last_n,
        logit_bias=given.logit_bias,
        logprobs=bool(logprobs),
        top_logprobs=(top_logprobs or 0) if logprobs else None,
        n=given.n or 1,
    )


def _output(given: wire.Common) -> OutputFormat | None:
    if given.grammar:
        return Grammar(text=given.grammar)
    match given.response_format:
        case None | wire.FormatIn(type="text"):
            return None
        case wire.FormatIn(type="json_schema", json_schema=wire.SchemaIn() as named):
            return JsonSchema(schema=messages.schema(named.schema), name=named.name, strict=named.strict)
        case wire.FormatIn(type="json_schema" | "json_object", schema=bare) if bytes(bare) != _NULL:
            return JsonSchema(schema=bare)
        case wire.FormatIn(type="json_object"):
            return JsonObject()
        case wire.FormatIn(type="json_schema"):
            raise BadRequest("'response_format.json_schema' is missing", param="response_format.json_schema")
        case wire.FormatIn(type=other):
            messages.refuse("response_format.type", other, "one of text, json_object, json_schema")


def _effort(given: wire.ChatIn) -> Effort | None:
    name, param = given.reasoning_effort, "reasoning_effort"
    if name is None and given.reasoning is not None:  # OpenRouter's and Ollama's form
        name, param = given.reasoning.effort, "reasoning.effort"
        if name is None and given.reasoning.enabled is False:
            return "none"
    if name is None:
        return None
    effort = _EFFORTS.get(name)
    if effort is None:
        messages.refuse(param, name, f"one of {', '.join(_EFFORTS)}")
    return effort


def _include_usage(given: wire.Common) -> bool:
    return bool(given.stream_options and given.stream_options.include_usage)


def wants_running_usage(request: Request) -> bool:
    """Whether the caller asked for a count in every frame (vLLM's `continuous_usage_stats`)."""
    given = request.source.fields.get("stream_options") if request.source is not None else None
    return (
        given is not None
        and b'"continuous_usage_stats"' in bytes(given)
        and bool(_stream(given).continuous_usage_stats)
    )


# --- to engines -------------------------------------------------------------------------------------------------------


def encode_chat(request: Request) -> bytes:
    if request.completion is not None:
        raise Unsupported("a raw completion cannot be sent as a chat; use the completions route")
    source = request.source
    if source is not None and source.dialect == CHAT:
        return _encode(_verbatim(request, source))
    body = {"model": request.model, "messages": messages.encode(request.messages), **_common(request)}
    if request.sampling.logprobs:
        body["logprobs"] = True
        if request.sampling.top_logprobs is not None:
            body["top_logprobs"] = request.sampling.top_logprobs
    if request.tools:
        body["tools"] = [messages.encode_tool(tool) for tool in request.tools]
        if request.tool_choice is not None:
            body["tool_choice"] = messages.encode_choice(request.tool_choice)
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.reasoning is not None:
        body["reasoning_effort"] = _EFFORT_NAMES[request.reasoning]
        if request.reasoning == "none":  # where a template, not the engine, decides (Qwen and its kin)
            body["chat_template_kwargs"] = {"enable_thinking": False}
    return _encode(body)


def around(source: Source | None, *, before: Sequence[Message] = (), after: Sequence[Message] = ()) -> Source | None:
    """The caller's own words, with messages before and after its conversation. None if there are none of a chat."""
    if source is None or source.dialect != CHAT:
        return None
    pieces = [_encode(messages.encode(each))[1:-1] for each in (before, after)]
    said = bytes(source.fields["messages"]).strip()[1:-1].strip()
    whole = b",".join(piece for piece in (pieces[0], said, pieces[1]) if piece)
    return replace(source, fields={**source.fields, "messages": Raw(b"[%b]" % whole)})


def encode_completion(request: Request) -> bytes:
    completion, source = request.completion, request.source
    if completion is None:
        raise Unsupported("a chat cannot be sent as a raw completion; use the chat route")
    if source is not None and source.dialect == COMPLETIONS:
        return _encode(_verbatim(request, source))
    prompts = completion.prompts
    body = {"model": request.model, "prompt": prompts[0] if len(prompts) == 1 else prompts, **_common(request)}
    if completion.suffix is not None:
        body["suffix"] = completion.suffix
    if completion.echo:
        body["echo"] = True
    if completion.logprobs is not None:
        body["logprobs"] = completion.logprobs
    return _encode(body)


def _common(request: Request) -> dict[str, Any]:
    """What both surfaces say of a request that is built from its canonical fields."""
    body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    body.update(_unsaid(request.sampling, {}))
    if request.sampling.n != 1:
        body["n"] = request.sampling.n
    if request.user is not None:
        body["user"] = request.user
    match request.output:
        case JsonObject():
            body["response_format"] = {"type": "json_object"}
        case JsonSchema(schema=schema, name=name, strict=strict):
            named = {"name": name, "schema": schema} | ({} if strict is None else {"strict": strict})
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        case Grammar(text=text):
            body["grammar"] = text
    return body


def _verbatim(request: Request, source: Source) -> dict[str, Any]:
    body: dict[str, Any] = dict(source.fields)
    body["model"] = request.model
    body["stream"] = True
    body["stream_options"] = _stream_options(source.fields.get("stream_options"))
    if request.sampling is not source.sampling:  # else they say all of it
        body.update(_unsaid(request.sampling, source.fields))
    return body


def _stream_options(given: Raw | None) -> Any:
    """The caller's own options, and usage in any case: it is what the gateway accounts."""
    said = {} if given is None or bytes(given) == _NULL else _options.decode(given)
    return {**said, "include_usage": True}


def _unsaid(sampling: Sampling, fields: Mapping[str, Raw]) -> Mapping[str, Any]:
    """The sampling parameters that have a value and that the caller did not say."""
    unsaid: dict[str, Any] = {}
    for value, (names, written) in zip(_values(sampling), _SAMPLING.values(), strict=True):
        if value is not None and not _said(fields, names):
            unsaid.update(dict.fromkeys(written, value))
    if sampling.stop and not _said(fields, ("stop",)):
        unsaid["stop"] = sampling.stop
    return unsaid


def _said(fields: Mapping[str, Raw], names: Iterable[str]) -> bool:
    """By one of these names."""
    for name in names:
        value = fields.get(name)
        if value is not None and bytes(value) != _NULL:
            return True
    return False
