"""From what the caller asked to what the engine is asked: model name, merged defaults, system prompt. Pure.

Order of weight: request, policy, model.json, engine.json, then the caller's dialect. A value from above hides those
below; nobody's value stays unsaid.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from drivetrain.dialects import ollama, openai
from drivetrain.errors import BadRequest
from drivetrain.types import Message, ModelSpec, Request, Sampling, Text

# What a parameter is called in model.json, in Jan's, OpenAI's and Ollama's words → our field.
PARAMETERS: Mapping[str, str] = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "logit_bias": "logit_bias",
}
NOTHING = Sampling()


def prepare(
    request: Request,
    *,
    model: str,
    spec: ModelSpec | None,
    layers: Mapping[str, Any],
    native: bool,
    changes: Mapping[str, Any] = {},
    system: str = "",
) -> Request:
    """The request for an engine that calls the model `model`.

    `changes`: further members. `layers`: merged parameters of policy and model. `native`: the engine speaks the
    caller's own dialect, whose defaults it therefore knows. `system`: a system prompt in place of the model's own.
    Raises `BadRequest` for a parameter of the wrong type, which names it.
    """
    changes = dict(changes)
    if model != request.model:
        changes["model"] = model
    sampling = request.sampling
    if layers:
        sampling = under(sampling, sampling_of(layers))
    if not native and request.source is not None and request.source.dialect.startswith("ollama."):
        sampling = under(sampling, ollama.DEFAULTS)
    if sampling is not request.sampling:
        changes["sampling"] = sampling
    if (spec is not None or system) and request.messages and (preamble := preamble_of(spec, request, system)):
        changes["messages"] = (*preamble, *request.messages)
        changes["source"] = openai.around(request.source, before=preamble)  # None: it no longer says it all
    return replace(request, **changes) if changes else request


def sampling_of(parameters: Mapping[str, Any]) -> Sampling:
    """The parameters that we know, as `Sampling`; `num_predict` below zero means "no limit", which is our default."""
    known = {PARAMETERS[name]: value for name, value in parameters.items() if name in PARAMETERS and value is not None}
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    if isinstance(limit := known.get("max_tokens"), int) and limit < 0:
        del known["max_tokens"]
    try:
        return msgspec.convert(known, Sampling)
    except msgspec.ValidationError as error:
        raise BadRequest(f"parameters of the model or its policy: {error}") from error


def under(upper: Sampling, lower: Sampling) -> Sampling:
    """`upper`, with what it leaves unsaid taken from `lower`."""
    filled = {
        name: value
        for name in Sampling.__struct_fields__
        if (value := getattr(lower, name)) != getattr(NOTHING, name) and getattr(upper, name) == getattr(NOTHING, name)
    }
    return replace(upper, **filled) if filled else upper


def preamble_of(spec: ModelSpec | None, request: Request, system: str = "") -> tuple[Message, ...]:
    """The system prompt, unless the request has one, and the conversation that precedes every request of the model."""
    text = system or (spec.system if spec is not None else None)
    before: tuple[Message, ...] = ()
    if text and not any(message.role in ("system", "developer") for message in request.messages):
        before = (Message(role="system", content=(Text(text=text),)),)
    return (*before, *spec.messages) if spec is not None else before
