"""Conversations longer than a model's context: Ollama leaves out the oldest turns instead of refusing. Pure."""

from collections.abc import Iterator

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects.ollama.messages import write_messages
from drivetrain.types import Request

_SYSTEM = ("system", "developer")


def shortened(request: Request) -> Iterator[Request]:
    """The request with more and more of its oldest turns left out, until only the last is there.

    What the system says stays. Nothing if the caller forbids it (`truncate`: false), or if there is one turn only.
    How much is left out grows twofold, so that few tries are enough for any length.
    """
    if request.options.get("truncate") is False:
        return
    starts = [at for at, message in enumerate(request.messages) if message.role == "user"][1:]
    for place, start in enumerate(starts, 1):
        if place & (place - 1) == 0 or place == len(starts):
            yield _from(request, start)


def _from(request: Request, start: int) -> Request:
    kept = [message for at, message in enumerate(request.messages) if at >= start or message.role in _SYSTEM]
    source = request.source
    if source is not None:  # what the caller said goes to an Ollama engine as it is
        said = {name: value for name, value in source.fields.items() if name != "context"}
        if "messages" in said:
            said["messages"] = Raw(msgspec.json.encode(write_messages(kept)))
        source = replace(source, fields=said)
    return replace(request, messages=tuple(kept), source=source)
