"""Newline-delimited JSON framing: bytes cut anywhere → whole lines. Owns no JSON.

Blank lines, which some servers send to keep a connection alive, vanish; so does a carriage return before a newline.
"""

from drivetrain.errors import EngineFailed

MEDIA_TYPE = "application/x-ndjson"
LINE_LIMIT = 64 * 2**20


class Lines:
    """Splits one stream. `feed` it bytes as they arrive; `rest` is what came after the last newline."""

    __slots__ = ("_held", "_limit", "_pending")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []  # pieces of a line whose newline has not come
        self._held = 0  # bytes in them

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newlines. Raises `EngineFailed` for a line without end."""
        end = data.find(b"\n")
        if end < 0:
            self._hold(data)
            return []
        if end == len(data) - 1 and not self._pending:  # one whole line, as most servers send
            line = data.strip()
            return [line] if line else []
        if self._pending:
            data = b"".join((*self._pending, data))
            self._pending.clear()
            self._held = 0
        *lines, rest = data.split(b"\n")
        if rest:
            self._hold(rest)
        return [line for line in map(bytes.strip, lines) if line]

    def rest(self) -> bytes:
        """The unfinished line, which is then forgotten."""
        line = b"".join(self._pending).strip()
        self._pending.clear()
        self._held = 0
        return line

    def _hold(self, piece: bytes) -> None:
        self._pending.append(piece)
        self._held += len(piece)
        if self._held > self._limit:
            raise EngineFailed(f"the engine sent more than {self._limit} bytes without a newline")
