"""The `options` of a request, with `format` and `think`: their names, types and meaning, both ways.

Precedence of a value: request, then the model's parameters, then `DEFAULTS`; the gateway merges in that order.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from drivetrain.errors import BadRequest, Unsupported
from drivetrain.types import Effort, Grammar, JsonObject, JsonSchema, OutputFormat, Sampling

# What Ollama assumes where nobody says. Only what differs from no effect: an engine of another kind may assume else.
DEFAULTS = Sampling(temperature=0.8, top_p=0.9, top_k=40, min_p=0.0)

_INTEGER, _FLOAT, _BOOLEAN, _ARRAY = "integer", "float32", "boolean", "array"
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("num_keep", "seed", "num_predict", "top_k", "repeat_last_n", "mirostat"), _INTEGER),
    **dict.fromkeys(("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict"), _INTEGER),
    **dict.fromkeys(("top_p", "min_p", "typical_p", "temperature", "repeat_penalty", "tfs_z"), _FLOAT),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "mirostat_tau", "mirostat_eta"), _FLOAT),
    **dict.fromkeys(("penalize_newline", "numa", "low_vram", "f16_kv", "logits_all"), _BOOLEAN),
    **dict.fromkeys(("vocab_only", "use_mmap", "use_mlock"), _BOOLEAN),
    "stop": _ARRAY,
}
# Options that a model is loaded with: a change means a reload.
RUNNER = frozenset({"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "draft_num_predict"})
# Options that `Sampling` has, under its names.
SAMPLING: Mapping[str, str] = {
    "num_predict": "max_tokens",
    **{
        name: name
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop", "presence_penalty"),
            *("frequency_penalty", "repeat_penalty", "repeat_last_n"),
        )
    },
}


def read(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """`options` as members of `Sampling`, and those of the rest that Ollama knows. Unknown ones are ignored.

    Raises `BadRequest` in Ollama's words for a value of the wrong type.
    """
    sampling: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in (options or {}).items():
        kind = KINDS.get(name)
        if kind is None or value is None:
            continue
        value = _CHECKS[kind](name, value)
        if name not in SAMPLING:
            rest[name] = value
        elif name != "num_predict" or value > 0:  # -1: no limit; -2: until the context is full
            sampling[SAMPLING[name]] = value
    return sampling, rest


def write(sampling: Sampling, rest: Mapping[str, Any]) -> dict[str, Any]:
    """The `options` member for an Ollama server. Raises `Unsupported` for what it has no word for."""
    if sampling.n > 1:
        raise Unsupported("an Ollama engine gives one answer per request; ask with n=1", param="n")
    if sampling.logit_bias:
        raise Unsupported("an Ollama engine takes no logit_bias", param="logit_bias")
    said = {name: getattr(sampling, field) for name, field in SAMPLING.items()}
    return {**rest, **{name: value for name, value in said.items() if value is not None and value != ()}}


def parameter(name: str, text: str) -> Any:
    """The value that a Modelfile's `PARAMETER name text` means; of an array, one item. Raises `BadRequest`."""
    kind = KINDS.get(name)
    if kind is None:
        raise BadRequest(f"unknown parameter '{name}'")
    if kind == _ARRAY:
        return text
    try:
        return _PARSERS[kind](text)
    except (ValueError, KeyError) as error:
        raise BadRequest(f"invalid {kind.removesuffix('32')} value [{text}] of parameter {name}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)  # JSON has no word for it
    return value


def _wrong(name: str, kind: str) -> BadRequest:
    return BadRequest(f'option "{name}" must be of type {kind}', param=f"options.{name}")


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2**63) <= value < 2**63:
        raise _wrong(name, _INTEGER)
    return int(value)


def _float(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -3.4e38 <= value <= 3.4e38:
        raise _wrong(name, _FLOAT)
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, _BOOLEAN)
    return value


def _array(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value  # Ollama's own specification allows one string
    if not isinstance(items, list):
        raise _wrong(name, _ARRAY)
    if not all(isinstance(item, str) for item in items):
        raise BadRequest(f'option "{name}" must be of an array of strings', param=f"options.{name}")
    return tuple(item for item in items if item)  # an empty stop sequence would end every answer at once


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    _INTEGER: _integer,
    _FLOAT: _float,
    _BOOLEAN: _boolean,
    _ARRAY: _array,
}
_TRUTH = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    _INTEGER: int,
    _FLOAT: _finite,
    _BOOLEAN: lambda text: _TRUTH[text.lower()],
}


# --- format and think -------------------------------------------------------------------------------------------------


def read_format(raw: msgspec.Raw) -> OutputFormat | None:
    """`"json"`, or a JSON schema; null and `""` say nothing."""
    said = bytes(raw)
    if said in (b"", b"null", b'""'):
        return None
    if said == b'"json"':
        return JsonObject()
    if said.startswith(b"{"):
        return JsonSchema(schema=raw)
    quoted = said.decode(errors="replace")
    raise BadRequest(f'invalid format: {quoted}; expected "json" or a valid JSON Schema object', param="format")


def write_format(output: OutputFormat) -> msgspec.Raw:
    match output:
        case JsonObject():
            return msgspec.Raw(b'"json"')
        case JsonSchema():
            return output.schema
        case Grammar():
            raise Unsupported("an Ollama engine takes a JSON schema but no grammar", param="grammar")


_EFFORTS: Mapping[bool | str, Effort] = {
    True: "medium",
    False: "none",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
}
_THINK: Mapping[Effort, bool | str] = {"none": False, "medium": True, "low": "low", "high": "high", "max": "max"}


def read_think(think: bool | str | None) -> Effort | None:
    if think is None or think == "":
        return None
    effort = _EFFORTS.get(think)
    if effort is None:
        expected = 'must be "high", "medium", "low", "max", true, or false'
        raise BadRequest(f'invalid think value: "{think}" ({expected})', param="think")
    return effort


def write_think(effort: Effort) -> bool | str:
    """`true` for a medium effort: servers that know no levels know that."""
    return _THINK[effort]
