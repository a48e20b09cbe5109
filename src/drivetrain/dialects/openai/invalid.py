"""Bodies that cannot be read, explained: which member, which value, what is expected."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.excerpts import shown

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key in )?(\$[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: ([<>]=? ?[-\d.e+]+))?")
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def fields(body: bytes) -> Mapping[str, msgspec.Raw]:
    """The top-level members of a JSON object, verbatim. Raises `BadRequest`."""
    members: Mapping[str, msgspec.Raw] = read(_FIELDS, body)
    return members


def read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body, decoded. Raises `BadRequest` with a helpful text."""
    try:
        if not body.isascii():
            body.decode()  # msgspec skips over members it is not asked for without a look at their encoding
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error), body) from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise BadRequest(_malformed(str(error), body)) from error


def _malformed(text: str, body: bytes) -> str:
    if not body.strip():
        return "the body is empty; a JSON object is expected"
    reason = text.removeprefix("JSON is malformed: ").replace("Input data was truncated", "it ends too early")
    return f"the body is not JSON: {reason}"


def _explained(text: str, body: bytes) -> BadRequest:
    """msgspec says "Expected `int`, got `str` - at `$.seed`": add the value, and say it in JSON's words."""
    at = _PATH.search(text)
    path = at.group(1).removeprefix("$").removeprefix(".") if at else ""
    if missing := _MISSING.match(text):
        member = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return BadRequest(f"'{member}' is missing", param=member)
    problem = _problem(text[: at.start()] if at else text)
    if not path:
        return BadRequest(f"the body must be {problem}")
    found, value = _value_at(body, path)
    return BadRequest(f"'{path}' must be {problem}" + (f", not {shown(value)}" if found else ""), param=path)


def _problem(text: str) -> str:
    expected = _EXPECTED.match(text)
    if expected is None:
        return "within range" if "out of range" in text else f"valid ({text})"
    types, bound = expected.groups()
    names = " or ".join(_NAMES.get(name, name) for name in types.split(" | ") if name != "null" or types == "null")
    return f"{names} {bound.removesuffix('.0')}" if bound else names


def _value_at(body: bytes, path: str) -> tuple[bool, Any]:
    """The value at a path like `messages[0].role`; not found where the path leads through arbitrary keys, or to a
    member that comes once more, for it is the last of them that is decoded here."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):  # a number out of range, or in what the typed decoder skips
        return False, None
    end = 0
    for step in _STEP.finditer("." + path):
        key, index = step.groups()
        if step.start() != end:
            return False, None
        try:
            value = value[key] if key else value[int(index)]
        except (KeyError, IndexError, TypeError):
            return False, None
        end = step.end()
    return end == len(path) + 1, value


_FIELDS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, msgspec.Raw])
