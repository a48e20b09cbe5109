"""Reading the JSON that callers send: typed shapes of the members both surfaces share, and helpful refusals."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from drivetrain.errors import BadRequest

Body = TypeVar("Body")

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_WHERE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)
_TICKS = re.compile("`")


def read(body: bytes, shape: type[Body]) -> Body:
    """A request's body, whatever its content type said. Raises `BadRequest`: the member, what it is, what it may be."""
    if not body or body.isspace():
        raise BadRequest("missing request body")
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"invalid JSON in the request body: {error}") from error


def fields(body: bytes) -> Mapping[str, Raw]:
    """The top-level members of a body that `read` took, verbatim."""
    return _fields(body)


def _refusal(said: str) -> BadRequest:
    found = _WHERE.fullmatch(said)
    if found is None:
        return BadRequest(f"invalid request: {_TICKS.sub('', said)}")
    path, what = found["path"], _TICKS.sub("", found["what"])
    return BadRequest(f"invalid value of {path}: {what[:1].lower()}{what[1:]}", param=path)


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Ancestor of the shapes of what callers and engines send. Members that nobody knows are let pass."""


class Function(Wire, frozen=True, kw_only=True):
    name: str = ""
    arguments: Raw = Raw(b"{}")  # an object; text holding one is taken too


class Call(Wire, frozen=True, kw_only=True):
    id: str | None = None
    function: Function


class WireMessage(Wire, frozen=True, kw_only=True):
    role: str = ""
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolFunction(Wire, frozen=True, kw_only=True):
    name: str
    description: str | None = None
    parameters: Raw = Raw(b"{}")


class WireTool(Wire, frozen=True, kw_only=True):
    type: str | None = None
    function: ToolFunction


class Asked(Wire, frozen=True, kw_only=True):
    """What chat and generate have in common."""

    model: str = ""
    stream: bool | None = None  # null means true
    format: Raw = Raw(b"")
    options: dict[str, Any] | None = None
    keep_alive: int | float | str | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class ChatBody(Asked, frozen=True, kw_only=True):
    messages: list[WireMessage] | None = None
    tools: list[WireTool] | None = None


class GenerateBody(Asked, frozen=True, kw_only=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None
