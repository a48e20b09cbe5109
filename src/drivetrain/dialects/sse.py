"""Server-sent events: bytes cut anywhere → frames, and back (WHATWG HTML §9.2, server-sent events).

A frame is kept beside its own bytes, so that it can be forwarded as it came.
"""

import re
from collections.abc import Iterable
from typing import Final

from drivetrain.errors import EngineFailed

MEDIA_TYPE: Final = "text/event-stream"
DONE: Final = b"data: [DONE]\n\n"

Frame = tuple[bytes, bytes, bytes]  # data, the frame's own bytes, the event's name (b"" where none was sent)

# A line ends in CRLF, LF or CR, and an empty line ends a frame. A CR that ends the buffer waits: LF may follow.
_END_OF_FRAME = re.compile(rb"(?:\n|\r\n|\r(?!\n))(?:\n|\r\n|\r(?!\n|\Z))")
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_LONGEST_END = 4
_BOM = b"\xef\xbb\xbf"


def frame(data: bytes) -> bytes:
    """One event without a name. `data` holds no line break."""
    return b"data: %b\n\n" % data


def comment(text: str) -> bytes:
    """A line that every client ignores: it keeps the connection alive. `text` holds no line break."""
    return b": %b\n\n" % text.encode()


class Reader:
    """Frames out of a byte stream. Comments and frames without data yield nothing.

    A frame that outgrows `limit_bytes` raises `EngineFailed`: nothing upstream may fill our memory.
    """

    __slots__ = ("_limit_bytes", "_scanned", "pending")

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit_bytes = limit_bytes
        self.pending = bytearray()  # of a frame that is not complete; empty: the next byte begins one
        self._scanned = 0  # no frame ends before this offset of what is pending

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete."""
        if b"\r" not in data and not self.pending and data.endswith(b"\n\n"):
            pieces = data.split(b"\n\n")
            self.pending += pieces.pop()  # at most one line break too many
            return _parsed(piece + b"\n\n" for piece in pieces)
        self.pending += data
        pieces = self._cut()
        if len(self.pending) > self._limit_bytes:
            raise EngineFailed(f"the engine sent an event of more than {self._limit_bytes} bytes")
        return _parsed(pieces)

    def _cut(self) -> list[bytes]:
        pending, start, pieces = self.pending, 0, []
        for end in _END_OF_FRAME.finditer(pending, self._scanned):
            pieces.append(bytes(pending[start : end.end()]))
            start = end.end()
        if start:
            del pending[:start]
        self._scanned = max(0, len(pending) - _LONGEST_END)
        return pieces

    def rest(self) -> bytes:
        """What came after the last complete frame. The reader is empty afterwards."""
        rest = bytes(self.pending)
        self.pending.clear()
        self._scanned = 0
        return rest


def last(rest: bytes) -> Frame | None:
    """The frame that a stream's end completed: some engines leave out the last empty line."""
    return _parse(rest)


def _parsed(pieces: Iterable[bytes]) -> list[Frame]:
    return [parsed for piece in pieces if (parsed := _parse(piece)) is not None]


def _parse(raw: bytes) -> Frame | None:
    if raw.startswith(b"data: {") and raw.find(b"\n") == len(raw) - 2 and b"\r" not in raw:
        return raw[6:-2], raw, b""
    data: list[bytes] = []
    name = b""
    for line in _END_OF_LINE.split(raw.removeprefix(_BOM)):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":  # llama.cpp of old wrote `error: {…}` instead of an event named so
            data.append(value)
            name = b"error"
    return (b"\n".join(data), raw, name) if data else None
