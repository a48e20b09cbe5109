"""Which call a tool delta of an engine belongs to.

OpenAI numbers the calls of a choice with `index` and sends `id` and name once. Engines leave the index out, give every
call the index 0, repeat the id and the name, or have no ids at all.
"""

from hashlib import blake2b

from drivetrain.dialects.openai import messages, wire
from drivetrain.types import Event, ToolCallDelta, ToolCallStart

_NO_FUNCTION = wire.FunctionDelta()


class Calls:
    """The calls of one choice so far."""

    __slots__ = ("_at", "_frame", "_ids", "_names", "custom")

    def __init__(self) -> None:
        self._ids: list[str] = []  # by position; "" where the engine gave none
        self._names: list[str] = []
        self._at: dict[int, int] = {}  # the engine's index → position
        self._frame = b""  # in which the last one began
        self.custom: list[int] = []  # positions of calls of custom tools, whose arguments are free text

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, delta: wire.CallDelta, choice: int, frame: bytes) -> tuple[list[Event], bool]:
        """The events of a delta, and whether its frame says the same: a dubious index or a missing id is mended."""
        function = delta.function if delta.function is not None else _of_custom(delta.custom)
        position = self._find(delta.index, delta.id, function.name, frame)
        events: list[Event] = []
        sound = delta.index is not None and not isinstance(function.arguments, dict)
        if position is None:
            position = self._open(delta, function.name or "", frame)
            id = delta.id or _invented(frame, position)
            events.append(ToolCallStart(index=choice, call=position, id=id, name=function.name or ""))
            sound = sound and bool(delta.id)
        if text := messages.arguments(function.arguments):
            events.append(ToolCallDelta(index=choice, call=position, arguments=text))
        return events, sound and position == delta.index

    def _find(self, index: int | None, id: str | None, name: str | None, frame: bytes) -> int | None:
        """The position of a call that goes on; None if a new one begins."""
        if index is None:
            if id:
                return self._ids.index(id) if id in self._ids else None
            return None if name or not self._ids else len(self._ids) - 1
        position = self._at.get(index)
        if position is not None and name and self._is_another(position, id, name, frame):
            return None  # under a used index
        return position

    def _is_another(self, position: int, id: str | None, name: str, frame: bytes) -> bool:
        """Whether a delta with a name begins a call, where one has begun: by its id, or else by its name. Nobody tells
        one call in two pieces of the same frame."""
        return id != self._ids[position] if id else name != self._names[position] or frame is self._frame

    def _open(self, delta: wire.CallDelta, name: str, frame: bytes) -> int:
        position = len(self._ids)
        self._ids.append(delta.id or "")
        self._names.append(name)
        self._frame = frame
        if delta.custom is not None:
            self.custom.append(position)
        if delta.index is not None:
            self._at[delta.index] = position
        return position


def _of_custom(given: wire.CustomDelta | None) -> wire.FunctionDelta:
    return _NO_FUNCTION if given is None else wire.FunctionDelta(name=given.name, arguments=given.input)


def _invented(frame: bytes, position: int) -> str:
    """An id for a call that came without one: the same for the same frame, however the stream was cut."""
    return f"call_{blake2b(frame, digest_size=6, salt=position.to_bytes(8, 'little')).hexdigest()}"
