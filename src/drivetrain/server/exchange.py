"""One HTTP request and its answer, as a handler sees them: headers, a body within limits, one response."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol
from urllib.parse import parse_qs

from drivetrain.errors import DrivetrainError, TooLarge, UnsupportedMedia
from drivetrain.governance import ANYBODY

Header = tuple[bytes, bytes]

JSON = b"application/json"
# A stream must pass proxies unbuffered, and no cache may keep an answer.
STREAM_HEADERS: tuple[Header, ...] = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
STATUS_LINES: Mapping[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
} | {499: b"HTTP/1.1 499 Client Closed Request\r\n"}
BODILESS = frozenset({204, 304})
BUFFER_BYTES = 2**20  # of a body that waits to be read; then the caller is slowed down


class Wire(Protocol):
    """The connection below an exchange."""

    @property
    def default_head(self) -> bytes:
        """Header lines of every response."""

    @property
    def peer(self) -> str:
        """The caller's address; "" where it has none."""

    @property
    def slow(self) -> asyncio.Event | None:
        """Set when a caller who reads slowly has caught up; None where it keeps up."""

    def write(self, data: bytes) -> None: ...

    def hold(self, *, hold: bool) -> None:
        """Stop or go on taking bytes from the caller."""

    def ended(self, *, keep_alive: bool) -> None:
        """The response is complete."""


class Exchange:
    """What a handler works with. `respond` once, or `start` and then `send_body` until `more=False`.

    The task that handles it is cancelled as soon as the caller leaves.
    """

    __slots__ = (
        "_arrived",
        "_arrived_bytes",
        "_body",
        "_broken",
        "_chunked",
        "_complete",
        "_head",
        "_keep_alive",
        "_news",
        "_wire",
        "done",
        "extra",
        "gone",
        "headers",
        "id",
        "json_type",
        "max_body_bytes",
        "method",
        "path",
        "query_string",
        "started",
        "who",
    )

    def __init__(
        self, wire: Wire, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes], *, keep_alive: bool
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query
        self.headers = headers
        self.id = ""
        self.started = False
        self.done = False
        self.gone = False  # the caller has left
        self.extra: list[Header] = []  # headers of every answer to this request
        self.json_type = JSON  # how the dialect of this path writes it
        self.max_body_bytes = 0
        self.who = ANYBODY  # who asks, once that is known
        self._wire = wire
        self._keep_alive = keep_alive
        self._head = b""  # of the response, until there is something to send with it
        self._chunked = False
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._complete = False
        self._broken: DrivetrainError | None = None
        self._news: asyncio.Future[None] | None = None
        self._body: bytes | None = None

    # --- the request --------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """The address that it came from; "" if there is none."""
        return self._wire.peer

    @property
    def has_body(self) -> bool:
        return b"content-length" in self.headers or b"transfer-encoding" in self.headers

    def query(self, name: str) -> str | None:
        """The last value of a query parameter."""
        values = parse_qs(self.query_string.decode("latin-1")).get(name)
        return values[-1] if values else None

    async def body(self) -> bytes:
        """The whole body. Raises `TooLarge`, or `UnsupportedMedia` if it is compressed."""
        if self._body is None:
            self._check_declared()
            while self._arrived_bytes <= self.max_body_bytes and not self._complete:
                self._wire.hold(hold=False)
                await self._more()
            if self._arrived_bytes > self.max_body_bytes:
                raise self._too_large(self._arrived_bytes)
            self._body = b"".join(self._arrived) if len(self._arrived) != 1 else self._arrived[0]
        return self._body

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """A body of any size, as it comes; the caller is slowed down to the reader's pace."""
        if self._body is not None:
            yield self._body
            return
        while True:
            while self._arrived:
                data = self._arrived.popleft()
                self._arrived_bytes -= len(data)
                yield data
            if self._complete:
                return
            self._wire.hold(hold=False)
            await self._more()

    async def _more(self) -> None:
        if self.headers.get(b"expect", b"").lower() == b"100-continue" and not self.started and not self._arrived:
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._broken is None:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._broken is not None:
            raise self._broken

    def feed(self, data: bytes) -> None:
        """A piece of the body has come. Nobody reads it once the answer is out."""
        if self.done:
            return
        self._arrived.append(data)
        self._arrived_bytes += len(data)
        if self._arrived_bytes > BUFFER_BYTES:
            self._wire.hold(hold=True)
        self._tell()

    def complete(self) -> None:
        """The body is whole."""
        self._complete = True
        if self._news is not None:
            self._tell()

    def break_off(self, why: DrivetrainError) -> None:
        """The rest of the body cannot be read."""
        self._broken = why
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _check_declared(self) -> None:
        encoding = self.headers.get(b"content-encoding", b"identity")
        if encoding != b"identity":
            name = encoding.decode("latin-1")
            raise UnsupportedMedia(f"content-encoding {name!r} is not accepted; send the body as it is")
        declared = self.headers.get(b"content-length")
        if declared is not None and int(declared) > self.max_body_bytes:
            raise self._too_large(int(declared))

    def _too_large(self, size: int) -> TooLarge:
        limit = self.max_body_bytes
        return TooLarge(f"the body has {size} bytes or more; at most {limit} are accepted (server.max_body_bytes)")

    # --- the response -------------------------------------------------------------------------------------------------

    async def respond(
        self, status: int, body: bytes = b"", media_type: bytes | None = None, headers: Sequence[Header] = ()
    ) -> None:
        """The whole answer, in one write. JSON unless said otherwise; what has no body has no type."""
        self.started = True
        head = self._head_of(status, media_type or self.json_type if body else b"", headers)
        length = b"" if status in BODILESS else b"content-length: %d\r\n" % len(body)
        content = b"" if self.method == "HEAD" or status in BODILESS else body
        self._wire.write(b"".join((head, length, b"\r\n", content)))
        self._end()
        if (slow := self._wire.slow) is not None:
            await slow.wait()

    async def start(self, status: int, media_type: bytes, headers: Sequence[Header] = ()) -> None:
        """Begin an answer whose length is not known. Its head is sent with the first piece of its body."""
        self.started = True
        self._chunked = True
        self._head = self._head_of(status, media_type, headers) + b"transfer-encoding: chunked\r\n\r\n"

    async def relay(self, status: int, headers: Sequence[Header]) -> None:
        """Start an answer with another server's headers, its request id and what browsers want among them."""
        self.started = True
        self._chunked = not any(name.lower() == b"content-length" for name, _ in headers) and status not in BODILESS
        framing = ((b"transfer-encoding", b"chunked"),) if self._chunked else ()
        lines = self._wire.default_head + _lines((*headers, *framing)) + self._closing()
        self._head = STATUS_LINES[status] + lines + b"\r\n"

    async def send_body(self, data: bytes, *, more: bool) -> None:
        head, self._head = self._head, b""
        if self.method == "HEAD":
            data = b""
        elif self._chunked:
            data = _chunk(data, last=not more)
        if head or data:
            self._wire.write(head + data)
        if not more:
            self._end()
        if (slow := self._wire.slow) is not None:
            await slow.wait()

    def _end(self) -> None:
        self.done = True
        self._wire.ended(keep_alive=self._keep_alive and self._complete)

    def _head_of(self, status: int, media_type: bytes, headers: Sequence[Header]) -> bytes:
        lines = _lines((*self.extra, *headers)) if headers or self.extra else b""
        type = b"content-type: " + media_type + b"\r\n" if media_type else b""
        id = b"x-request-id: " + self.id.encode("latin-1") + b"\r\n" if self.id else b""
        return b"".join((STATUS_LINES[status], self._wire.default_head, type, id, lines, self._closing()))

    def _closing(self) -> bytes:
        return b"" if self._keep_alive and self._complete else b"connection: close\r\n"


def _lines(headers: Sequence[Header]) -> bytes:
    return b"\r\n".join([*map(b": ".join, headers), b""])


def _chunk(data: bytes, *, last: bool) -> bytes:
    """RFC 9112 §7.1."""
    chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return chunk + b"0\r\n\r\n" if last else chunk
