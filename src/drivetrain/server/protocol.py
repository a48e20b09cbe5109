"""HTTP/1.1 on the caller's side: a protocol class for uvicorn, which owns sockets and shutdown.

Bytes become an `Exchange` and one task that handles it; the task is cancelled when the connection is lost. A response
is one write where it can be. llhttp parses, strictly: what could be read in two ways is refused.
"""

import asyncio
import re
import time
from collections import deque
from functools import lru_cache
from typing import Any, Protocol, cast
from urllib.parse import unquote_to_bytes

import httptools
import uvicorn
from uvicorn.server import ServerState

from drivetrain.errors import BadRequest, DrivetrainError, SlowRequest
from drivetrain.outbox import Outbox
from drivetrain.server.exchange import Exchange

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128  # of different names
MAX_WAITING = 32  # requests that a caller sent ahead, without waiting for answers
LINGER_S = 2.0
GRACE_S = 1.0  # for a request that is on its way when a server stops that gave notice of it
HEAD_S = 20.0  # how long a caller may take to send the head of a request
BODY_S = 20.0  # how long the body of a request may stand still
BODY_BYTES_PER_S = 500  # and how fast it has to come in the long run
STALLED_S = 60.0  # how long a caller may take to read what fills the buffers
# What decides who asks and where a request ends: said twice, others on the way may have taken the other one for true.
SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key"})
UPGRADE = re.compile(rb"\r\n(?:upgrade|http2-settings):[^\r\n]*", re.IGNORECASE)


class Application(Protocol):
    leaving: bool  # connections end with their next answer: their callers are to come by another way
    outbox: Outbox  # of all connections

    async def handle(self, exchange: Exchange) -> None: ...


class Connection(asyncio.Protocol):
    """One connection of a caller."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None
    ) -> None:
        self._app: Application = config.loaded_app  # ours, not an ASGI application
        self._outbox = self._app.outbox
        self._state = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._dates: list[tuple[bytes, bytes]] = []
        self._head_lines = b""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._in_head = False  # what the parser reads are headers of a request; else trailers, which nobody asked for
        self._doubled = b""  # a header that was sent twice and must not be
        self._between = True  # no request has begun to arrive
        self._reading: Exchange | None = None  # whose body arrives
        self._current: Exchange | None = None  # who is answered
        self._waiting: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._lingering = False
        self._parting = False  # the server stops, of which it gave notice
        self.slow: asyncio.Event | None = None  # None: the caller keeps up
        self._stalled_since = 0.0
        self.peer = ""  # its address, where it has one
        self.quiet_since = time.monotonic()
        self._swept_s = self.quiet_since
        self._body_bytes = 0  # that came since then
        self._held = False  # the transport is paused: that no body comes is our doing
        self._patience_s = BODY_S

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        found = transport.get_extra_info("peername")  # asks the kernel each time
        self.peer = str(found[0]) if isinstance(found, tuple) else ""
        self._state.connections.add(cast(Any, self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(cast(Any, self))
        self._closing = True
        if self.slow is not None:
            self.slow.set()
        if self._current is not None and not self._current.done:
            self._current.gone = True
            if self._task is not None:
                self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing and not self._lingering and self._reading is None:
            return  # of a request that has begun to arrive, the rest is still taken
        if self._between:
            self.quiet_since = time.monotonic()
            if data.find(b"pgrade") >= 0:  # `in` makes an exception, and drops it
                data = _without_upgrade(data)
        if self._reading is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(b"501 Not Implemented", b"this server speaks HTTP/1.1 only")
        except httptools.HttpParserError as error:
            self._refuse(b"400 Bad Request", f"malformed HTTP request: {error}".encode())
        if self._head_bytes > MAX_HEAD_BYTES and self._reading is None:
            self._refuse(b"431 Request Header Fields Too Large", b"the head of the request is too large")

    def pause_writing(self) -> None:
        self.slow = asyncio.Event()
        self._stalled_since = time.monotonic()

    def resume_writing(self) -> None:
        if self.slow is not None:
            self.slow.set()
            self.slow = None

    # --- called by the parser -----------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._between = False
        self._in_head = True
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            name = name.lower()
            if name in self._headers and name in SINGLE:
                self._doubled = name
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._closing or not self._acceptable():
            return
        parser = self._parser
        path, query = _taken_apart(self._url)
        method = parser.get_method().decode("ascii")
        keep_alive = parser.should_keep_alive() and not self._app.leaving
        exchange = Exchange(self, method, path, query, self._headers, keep_alive=keep_alive)
        self._reading = exchange
        self._url, self._headers, self._head_bytes = b"", {}, 0
        self._patience_s = BODY_S
        if self._current is None:
            self._begin(exchange)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append(exchange)
            self.hold(hold=True)
        else:
            self._refuse(b"400 Bad Request", b"too many requests sent ahead")

    def _acceptable(self) -> bool:
        """Whether the head is one that is answered; else it is refused."""
        if self._doubled:
            self._refuse(b"400 Bad Request", b"two headers %b; send one" % self._doubled)
        elif len(self._headers) > MAX_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large", b"at most %d headers are accepted" % MAX_HEADERS)
        return not self._closing

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._reading is not None:
            self._reading.feed(data)

    def on_message_complete(self) -> None:
        self._between = True
        self._head_bytes = 0
        if self._lingering:
            self._close()
        if self._reading is not None:
            self._reading.complete()
            self._reading = None

    # --- one exchange after another -----------------------------------------------------------------------------------

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self._state.total_requests += 1
        self._task = task = self._loop.create_task(self._run(exchange))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._app.handle(exchange)
        finally:
            if not exchange.done:  # it was broken off: the caller must not take what came for the whole
                self._outbox.flush()  # what came before is his
                self._transport.abort()

    def ended(self, *, keep_alive: bool) -> None:
        self._current = self._task = None
        self.quiet_since = time.monotonic()
        if self._reading is not None and self._reading.done:
            self._linger()
        elif not keep_alive or self._closing:
            self._closing = True
            self._close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
            if self._reading is self._current:  # its body was not whole when the line was held
                self.hold(hold=False)
        else:
            self.hold(hold=False)
            if self._parting:
                self._loop.call_later(GRACE_S, self._hang_up)

    def _linger(self) -> None:
        """An answer came before its request was whole. Read on for a while: hanging up now could cost the answer."""
        self._closing = self._lingering = True
        self._held = False
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    # --- used by the exchange -----------------------------------------------------------------------------------------

    @property
    def default_head(self) -> bytes:
        """The date, as uvicorn keeps it: a new list every second."""
        if self._state.default_headers is not self._dates:
            self._dates = self._state.default_headers
            self._head_lines = b"".join(b"%b: %b\r\n" % header for header in self._dates)
        return self._head_lines

    def write(self, data: bytes) -> None:
        self._outbox.post(self._loop, self._transport, data, under_way=len(self._state.tasks))

    def hold(self, *, hold: bool) -> None:
        if hold is self._held:
            return
        if hold:
            self._held = True
            self._transport.pause_reading()
        elif not self._closing or self._reading is not None:
            self._held = False
            self._transport.resume_reading()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _refuse(self, status: bytes, text: bytes) -> None:
        """Answer what is no request, and hang up. Whoever is being answered keeps the line until then."""
        if self._closing:
            return
        self._closing = True
        if self._current is None:
            head = b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.write(head % (status, len(text)) + text)
            self._outbox.flush()
            self._transport.write_eof()
            self._loop.call_later(
                LINGER_S, self._transport.close
            )  # at once, what is still on its way would cost the answer
        elif self._reading is not None:
            self._break_off(BadRequest(text.decode()))

    def _break_off(self, error: DrivetrainError) -> None:
        """No more of this body is taken; whoever waits for it gets the error."""
        self._closing = True
        if self._reading is not None:
            self._reading.break_off(error)
            self._reading = None

    def shutdown(self) -> None:
        """The server stops: hang up now, or after the answer that is under way. If notice was given, what a caller has
        sent before it could take it is still answered: the head of a long answer did not tell of it."""
        self._parting = self._app.leaving
        if self._parting and self._current is None:
            self._loop.call_later(GRACE_S, self._hang_up)
        elif not self._parting:
            self._closing = True
            self._hang_up()

    def _hang_up(self) -> None:
        if self._current is None:
            self._closing = True
            self._close()

    def _close(self) -> None:
        self._outbox.flush()
        self._transport.close()

    def sweep(self, now_s: float, *, idle_s: float) -> None:
        """Hang up on a caller who is silent too long, or takes too long to say what it wants or to hear the answer."""
        passed_s, self._swept_s = max(0.0, now_s - self._swept_s), now_s
        if self.slow is not None and now_s - self._stalled_since > STALLED_S:
            self._transport.abort()
        if self._reading is not None:
            self._wait_for_body(passed_s)
        elif self._current is None and not self._closing:
            allowed_s = idle_s if self._between else HEAD_S
            if now_s - self.quiet_since > allowed_s:
                self._closing = True
                self._close()

    def _wait_for_body(self, passed_s: float) -> None:
        """Each byte buys its sender time, up to a limit: who sends one now and then runs out of it."""
        came_s, self._body_bytes = self._body_bytes / BODY_BYTES_PER_S, 0
        if self._held:
            return
        self._patience_s = min(BODY_S, self._patience_s + came_s) - passed_s
        if self._patience_s < 0:
            self._break_off(
                SlowRequest(f"the body of the request came too slowly: {BODY_S:g} s passed with little or none of it")
            )


def _without_upgrade(data: bytes) -> bytes:
    """A request without its offer to change the protocol: Java's client makes one with each first request."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"", head) + end + rest if end else data


@lru_cache(maxsize=1024)
def _taken_apart(url: bytes) -> tuple[str, bytes]:
    """Path, percent-decoded, and query of a request's target, which may also name the whole address (RFC 9112 §3.2)."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        path, query = parsed.path or b"/", parsed.query or b""
    else:
        path, _, query = url.partition(b"#")[0].partition(b"?")
    return (unquote_to_bytes(path) if b"%" in path else path).decode("utf-8", "replace"), query
