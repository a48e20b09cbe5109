"""The connections to one origin, and the exchange of a request for an answer."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from time import monotonic  # which the loop's own time is, too: to ask for the loop costs a system call
from types import TracebackType

from drivetrain.engines._http.connection import Connection
from drivetrain.engines._http.origin import common_head, parse_origin, request_head
from drivetrain.errors import ConnectTimeout, EngineError, EngineFailed, EngineUnavailable
from drivetrain.outbox import Outbox

MAX_IDLE = 256  # connections kept per origin
MAX_HINTED_IDLE_S = 60.0  # however long the peer says that it keeps a connection
HINT = re.compile(rb"timeout=(\d{1,9})")
MAX_HEADS = 64  # request heads kept per origin; paths that carry a name may be many


@lru_cache(maxsize=1)
def system_trust() -> ssl.SSLContext:
    """Verifies certificates against the system's authorities. Loading those is slow: once per process."""
    return ssl.create_default_context()


@lru_cache(maxsize=64)
def hinted_idle_s(keep_alive: bytes) -> float | None:
    """How long to keep a connection whose peer sent this Keep-Alive header: safely less than it says."""
    hint = HINT.search(keep_alive)
    return None if hint is None else min(MAX_HINTED_IDLE_S, max(0.0, int(hint[1]) - 1.0))


def reason_of(error: OSError) -> str:
    """Why a connection failed, without the address: callers see it, and it is none of their business."""
    if isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return error.strerror or "its name is unknown"
    return os.strerror(error.errno) if error.errno else "none of its addresses accepts a connection"


class Upstream:
    """An HTTP server of an engine. Belongs to the event loop that first uses it; `aclose` it there.

        async with upstream.post("/v1/chat/completions", body) as answer:
            while data := await answer.next(): ...

    Leaving the block before the answer's end closes the connection at once, which tells the engine to stop. A request
    that meets a connection which the engine closed while idle is sent once more, on a new one.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        label: str | None = None,
        headers: Mapping[str, str] = {},
        connect_timeout_s: float = 5.0,
        first_byte_s: float = 600.0,
        idle_s: float = 600.0,
        keep_idle_s: float = 4.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`label`: how error messages call the engine. `first_byte_s` and `idle_s`: how long to wait for the head of
        an answer and for each piece of its body. `keep_idle_s`: how long an unused connection is kept where the engine
        does not say; keep it below the engine's own limit. Raises `BadRequest` for a URL or header that cannot be."""
        self._origin = parse_origin(base_url)
        self._common = common_head(self._origin, api_key, headers)
        self.label = label or self._origin.url
        self._connect_timeout_s = connect_timeout_s
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._keep_idle_s = keep_idle_s
        self._tls = tls
        self._heads: dict[tuple[str, str], bytes] = {}
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # the one used last is at the end and goes first
        self._outbox = Outbox()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed: asyncio.Event | None = None

    def post(
        self,
        path: str,
        body: bytes,
        *,
        first_byte_s: float | None = None,
        idle_s: float | None = None,
        traceparent: str | None = None,
        connect_s: float | None = None,
    ) -> "Answer":
        """`traceparent`: W3C Trace Context of this request, as a header. `connect_s`: a shorter time to connect in."""
        first_byte_s, idle_s = first_byte_s or self._first_byte_s, idle_s or self._idle_s
        return Answer(self, "POST", path, body, first_byte_s, idle_s, traceparent, connect_s)

    def get(self, path: str, *, first_byte_s: float | None = None, idle_s: float | None = None) -> "Answer":
        return Answer(self, "GET", path, b"", first_byte_s or self._first_byte_s, idle_s or self._idle_s)

    def head(self, path: str, *, first_byte_s: float | None = None) -> "Answer":
        return Answer(self, "HEAD", path, b"", first_byte_s or self._first_byte_s, self._idle_s)

    async def aclose(self) -> None:
        """Closes every connection, those in use too, and returns when they are gone."""
        if self._closed is None:
            self._closed = asyncio.Event()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await self._closed.wait()

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    @property
    def _under_way(self) -> int:
        return len(self._open) - len(self._idle)

    # --- one exchange -------------------------------------------------------------------------------------------------

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        first_byte_s: float,
        traceparent: str | None = None,
        connect_s: float | None = None,
    ) -> Connection:
        """A connection on which the head of the answer has come. Hand it back by `release`."""
        head = self._heads.get((method, path)) or self._head(method, path)
        if method == "POST":
            trace = b"traceparent: %b\r\n" % traceparent.encode("ascii") if traceparent else b""
            head = b"%b%d\r\n%b\r\n" % (head, len(body), trace)
        bodiless = method == "HEAD"
        connection = self._take_idle()
        if connection is not None:
            try:
                await connection.start(
                    head, body, bodiless=bodiless, first_byte_s=first_byte_s, under_way=self._under_way
                )
                return connection
            except EngineError:
                if not connection.stale():
                    raise
        connection = await self._connect(connect_s)
        await connection.start(head, body, bodiless=bodiless, first_byte_s=first_byte_s, under_way=self._under_way)
        return connection

    def _head(self, method: str, path: str) -> bytes:
        head = request_head(method, self._origin.prefix + path, self._common)
        if method != "POST":
            head += b"\r\n"
        if len(self._heads) < MAX_HEADS:
            self._heads[method, path] = head
        return head

    def release(self, connection: Connection) -> None:
        """Keeps the connection if its answer ended cleanly, closes it if not."""
        if not connection.finish():
            return
        hint = connection.reader.keep_alive
        keep_s = self._keep_idle_s if hint is None else hinted_idle_s(hint)
        if keep_s is None:
            keep_s = self._keep_idle_s
        if keep_s <= 0 or len(self._idle) >= MAX_IDLE or self._closed is not None:
            connection.abort()
            return
        connection.idle_until_s = monotonic() + keep_s
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(keep_s, self._sweep)

    # --- the pool -----------------------------------------------------------------------------------------------------

    def _take_idle(self) -> Connection | None:
        if not self._idle:
            return None
        now = monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_until_s > now:
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        """Closes what has been idle too long, and looks again when the next is due."""
        now = monotonic()
        for connection in self._idle:
            if connection.idle_until_s <= now:
                connection.abort()
        self._idle = [connection for connection in self._idle if connection.idle_until_s > now]
        due = min((connection.idle_until_s for connection in self._idle), default=None)
        self._sweeper = None if due is None else asyncio.get_running_loop().call_later(due - now, self._sweep)

    async def _connect(self, within_s: float | None) -> Connection:
        if self._closed is not None:
            raise EngineUnavailable(f"{self.label} is closed")
        loop, origin = asyncio.get_running_loop(), self._origin
        limit_s = min(self._connect_timeout_s, within_s or self._connect_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                if origin.socket is not None:
                    _, connection = await loop.create_unix_connection(self._connection, origin.socket)
                elif origin.secure:
                    tls = self._tls or system_trust()
                    _, connection = await loop.create_connection(self._connection, origin.host, origin.port, ssl=tls)
                else:
                    _, connection = await loop.create_connection(self._connection, origin.host, origin.port)
        except TimeoutError as error:
            late = ConnectTimeout(f"{self.label} did not accept a connection within {limit_s:g} s")
            late.within_s = limit_s
            raise late from error
        except OSError as error:
            raise EngineUnavailable(f"{self.label} cannot be reached: {reason_of(error)}") from error
        if self._closed is not None:
            connection.abort()
        if not connection.lost:
            self._open.add(connection)
        return connection

    def _connection(self) -> Connection:
        return Connection(self.label, self._outbox, self._lost)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._closed is not None and not self._open:
            self._closed.set()


class Answer:
    """The answer to one request, while its block is entered: `status`, `headers`, and the body as it arrives."""

    __slots__ = (
        "_body", "_connect_s", "_connection", "_first_byte_s", "_idle_s", "_method", "_path", "_trace", "_upstream",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        upstream: Upstream,
        method: str,
        path: str,
        body: bytes,
        first_byte_s: float,
        idle_s: float,
        traceparent: str | None = None,
        connect_s: float | None = None,
    ) -> None:
        self._upstream = upstream
        self._method = method
        self._path = path
        self._body = body
        self._first_byte_s = first_byte_s
        self._idle_s = idle_s
        self._trace = traceparent
        self._connect_s = connect_s
        self._connection: Connection | None = None
        self.status = 0

    async def __aenter__(self) -> "Answer":
        self._connection = await self._upstream.exchange(
            self._method, self._path, self._body, self._first_byte_s, self._trace, self._connect_s
        )
        self.status = self._connection.reader.status
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.release(connection)

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case; of a header that came twice, the values joined by commas."""
        joined: dict[str, str] = {}
        for raw_name, raw_value in self._entered.reader.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return joined

    def next(self, gather_s: float = 0.0) -> Awaitable[bytes]:
        """The next piece of the body, as soon as there is one or `gather_s` later with more; b"" at its end. Raises
        `EngineFailed` if the answer broke off."""
        return self._entered.read(self._idle_s, gather_s)

    async def read(self, limit: int) -> bytes:
        """The rest of the body. Raises `EngineFailed` if it is longer than `limit` bytes."""
        pieces, size = [], 0
        while data := await self.next():
            size += len(data)
            if size > limit:
                raise EngineFailed(f"{self._upstream.label} sent more than the {limit} bytes allowed for {self._path}")
            pieces.append(data)
        return b"".join(pieces)

    async def drain(self, within_s: float) -> None:
        """Waits a moment for the end of the body, so that the connection can be used again. Drops what comes; what
        fails now is of no interest, for the caller has all that it wanted."""
        deadline = monotonic() + within_s
        try:
            while await self._entered.read(max(0.0, deadline - monotonic())):
                pass
        except EngineError:
            pass

    @property
    def _entered(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the answer is used outside its `async with` block")
        return self._connection
