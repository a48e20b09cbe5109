"""From what the caller asked to what the engine is asked: model name, merged defaults, system prompt. Pure.

Order of weight: request, policy, model.json, engine.json, then the caller's dialect. A value from above hides those
below; nobody's value stays unsaid.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from drivetrain.dialects import ollama, openai
from drivetrain.parameters import sampling_of
from drivetrain.types import Message, ModelSpec, Request, Sampling, Text

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
