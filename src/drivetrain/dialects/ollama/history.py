"""Prompts longer than a model's context: Ollama leaves out the oldest of them instead of refusing. Pure."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects.ollama.messages import write_messages
from drivetrain.types import Message, Request, Source, Text

MOST_TRIES: Final = 24
_SYSTEM = ("system", "developer")
_AIM = 7 / 8  # of the room: how many tokens a text has is estimated by its length, and the answer needs some too
_AROUND = 16  # characters' worth of tokens that a template puts around a message
_LEAST = 1 / 8  # of its share, that a text keeps in one cut: what weighs besides may not be what was estimated
_KEPT = 3 / 4  # of a text, after one cut, where nobody tells how much has room


def shortened(request: Request, fits: float | None = None) -> Request | None:
    """The request with its oldest turns left out, and where that is not enough, with the beginning of the last one.

    `fits`: the share of it that there is room for; None: nobody tells, and it is half of the turns, then a quarter of
    the text. What the system says stays. None if the caller forbids it (`truncate`: false), or nothing is left.
    """
    if request.options.get("truncate") is False:
        return None
    if fits is not None:
        return _fitted(request, fits * _AIM)
    if len(starts := _starts(request)) > 1:
        return _from(request, starts[len(starts) // 2])
    return _ending(request, int(len(_last(request)) * _KEPT))


def _fitted(request: Request, share: float) -> Request | None:
    room = share * _weight(request)
    kept = _from(request, _start(request, room))
    over = math.ceil(_weight(kept) - room)
    if over <= 0 and kept is not request:
        return kept
    length = len(_last(kept))
    return _ending(kept, max(length - over, int(length * share * _LEAST))) or (None if kept is request else kept)


def _starts(request: Request) -> list[int]:
    """Where turns begin."""
    return [at for at, message in enumerate(request.messages) if message.role == "user"]


def _start(request: Request, room: float) -> int:
    """Of the first turn that has room with all that comes after it; if there is none, of the last one."""
    left = _weight(request)
    for at, message in enumerate(request.messages):
        if message.role == "user" and left <= room:
            return at
        left -= 0 if message.role in _SYSTEM else _length(message)
    return max(_starts(request), default=0)


def _weight(request: Request) -> int:
    """Characters that become tokens of the prompt."""
    tools = sum(len(tool.description) + len(bytes(tool.parameters)) for tool in request.tools)
    bare = 0 if request.completion is None else len(_last(request))
    return bare + tools + sum(map(_length, request.messages))


def _length(message: Message) -> int:
    return _AROUND + len(message.text) + sum(len(call.arguments) for call in message.tool_calls)


def _last(request: Request) -> str:
    if request.completion is not None:
        prompt = request.completion.prompts[0]
        return prompt if isinstance(prompt, str) else ""
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def _ending(request: Request, length: int) -> Request | None:
    """The request with so much of the end of what `_last` finds in its place; None if that is nothing."""
    if length < 1:
        return None
    text = _last(request)[-length:]
    said = {"prompt": Raw(msgspec.json.encode(text))}
    if request.completion is not None:
        completion = replace(request.completion, prompts=(text,))
        return replace(request, completion=completion, source=_said(request.source, said))
    at = max(at for at, message in enumerate(request.messages) if message.role == "user")
    turn = request.messages[at]
    rest = tuple(part for part in turn.content if not isinstance(part, Text))
    messages = (*request.messages[:at], replace(turn, content=(Text(text=text), *rest)), *request.messages[at + 1 :])
    return replace(request, messages=messages, source=_said(request.source, said | _written(messages)))


def _from(request: Request, start: int) -> Request:
    kept = tuple(message for at, message in enumerate(request.messages) if at >= start or message.role in _SYSTEM)
    if len(kept) == len(request.messages):
        return request
    source = request.source
    if source is not None:
        fields = {name: value for name, value in source.fields.items() if name != "context"}
        source = _said(replace(source, fields=fields), _written(kept))
    return replace(request, messages=kept, source=source)


def _written(messages: tuple[Message, ...]) -> dict[str, Raw]:
    return {"messages": Raw(msgspec.json.encode(write_messages(messages)))}


def _said(source: Source | None, said: Mapping[str, Raw]) -> Source | None:
    """What the caller said goes to an Ollama engine as it is: with other values of what is there."""
    if source is None:
        return None
    fresh = {name: value for name, value in said.items() if name in source.fields}
    return replace(source, fields={**source.fields, **fresh})
