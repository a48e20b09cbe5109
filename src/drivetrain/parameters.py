"""Request-time parameters of models and policies: the names they are written by, the values they may have."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from drivetrain.errors import BadRequest
from drivetrain.excerpts import shown
from drivetrain.types import Sampling

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
_WHOLE = frozenset(field.name for field in msgspec.structs.fields(Sampling) if field.type == int | None)
_OTHER: Mapping[str, str] = {"stop": "a text or a list of texts", "logit_bias": "a mapping of tokens to numbers"}


def sampling_of(parameters: Mapping[str, Any]) -> Sampling:
    """The parameters that we know, as `Sampling`. Raises `BadRequest` for one of the wrong type, which it names."""
    try:
        return _converted(parameters)
    except msgspec.ValidationError as error:
        told = "; ".join(f"{name!r} {wrong}" for name, wrong in flaws(parameters)) or str(error)
        raise BadRequest(f"parameters of the model or its policy: {told}") from error


def check(parameters: Mapping[str, Any]) -> None:
    """Raises `BadRequest` for a parameter of a model that no request could use."""
    for name, wrong in flaws(parameters):
        raise BadRequest(f"parameter {name!r} of a model {wrong}", param=f"parameters.{name}")


def flaws(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The parameters that no request could use, and what is wrong with each. Names that we do not know may have any
    value."""
    for name, value in parameters.items():
        try:
            _converted({name: value})
        except msgspec.ValidationError:
            yield name, f"must be {_wanted(PARAMETERS[name])}, not {shown(value)}"


def _converted(parameters: Mapping[str, Any]) -> Sampling:
    """As a request's own: a limit of 0 or less is none, and so is a stop of no letter."""
    known = {PARAMETERS[name]: value for name, value in parameters.items() if name in PARAMETERS and value is not None}
    if isinstance(known.get("stop"), str):
        known["stop"] = (known["stop"],)
    said = msgspec.convert(known, Sampling)
    limit = said.max_tokens if said.max_tokens is not None and said.max_tokens > 0 else None
    return replace(said, max_tokens=limit, stop=tuple([stop for stop in said.stop if stop]))


def _wanted(field: str) -> str:
    return _OTHER.get(field, "a whole number" if field in _WHOLE else "a number")
