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

    __slots__ = ("_at", "_ids")

    def __init__(self) -> None:
        self._ids: list[str] = []  # by position; "" where the engine gave none
        self._at: dict[int, int] = {}  # the engine's index → position

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, delta: wire.CallDelta, choice: int, frame: bytes) -> tuple[list[Event], bool]:
        """The events of a delta, and whether its frame says the same: a dubious index or a missing id is mended."""
        function = delta.function if delta.function is not None else _NO_FUNCTION
        position = self._find(delta.index, delta.id, named=bool(function.name))
        events: list[Event] = []
        sound = delta.index is not None and not isinstance(function.arguments, dict)
        if position is None:
            position = self._open(delta)
            id = delta.id or _invented(frame, position)
            events.append(ToolCallStart(index=choice, call=position, id=id, name=function.name or ""))
            sound = sound and bool(delta.id)
        if text := messages.arguments(function.arguments):
            events.append(ToolCallDelta(index=choice, call=position, arguments=text))
        return events, sound and position == delta.index

    def _find(self, index: int | None, id: str | None, *, named: bool) -> int | None:
        """The position of a call that goes on; None if a new one begins."""
        if index is None:
            if id:
                return self._ids.index(id) if id in self._ids else None
            return None if named or not self._ids else len(self._ids) - 1
        position = self._at.get(index)
        if position is not None and named and id and id != self._ids[position]:
            return None  # another call under a used index
        return position

    def _open(self, delta: wire.CallDelta) -> int:
        position = len(self._ids)
        self._ids.append(delta.id or "")
        if delta.index is not None:
            self._at[delta.index] = position
        return position


def _invented(frame: bytes, position: int) -> str:
    """An id for a call that came without one: the same for the same frame, however the stream was cut."""
    return f"call_{blake2b(frame, digest_size=6, salt=position.to_bytes(8, 'little')).hexdigest()}"
