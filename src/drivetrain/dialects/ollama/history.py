"""Prompts longer than a model's context: Ollama leaves out the oldest of them instead of refusing. Pure."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects.ollama.messages import write_messages
from drivetrain.types import Message, Request, Source, Text

_SYSTEM = ("system", "developer")
_KEPT = 3 / 4  # of a text, from one try to the next: what is left fills the context by that much at least
_CUTS = 16  # of a text that is a hundred times too long


def shortened(request: Request) -> Iterator[Request]:
    """The request with more and more of its oldest turns left out, then of the beginning of the last one.

    What the system says stays. Nothing if the caller forbids it (`truncate`: false). How many turns are left out grows
    twofold, so that few tries are enough for any length.
    """
    if request.options.get("truncate") is False:
        return
    starts = [at for at, message in enumerate(request.messages) if message.role == "user"]
    last = request
    for place, start in enumerate(starts[1:], 1):
        if place & (place - 1) == 0 or place == len(starts) - 1:
            last = _from(request, start)
            yield last
    yield from _cut(last)


def _cut(request: Request) -> Iterator[Request]:
    """With less and less of the beginning of the prompt, or of what the user says last."""
    text, lengths = _last(request), set[int]()
    for cut in range(1, _CUTS + 1):
        length = int(len(text) * _KEPT**cut)
        if length and length not in lengths:
            lengths.add(length)
            yield _ending(request, text[-length:])


def _last(request: Request) -> str:
    if request.completion is not None:
        prompt = request.completion.prompts[0]
        return prompt if isinstance(prompt, str) else ""
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def _ending(request: Request, text: str) -> Request:
    """The request with `text` in the place of what `_last` found."""
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
