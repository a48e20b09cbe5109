"""One connection to an engine: an asyncio protocol that carries one request at a time.

Data wakes its one waiter at once and is joined per wake-up; or it is gathered for a while, if the waiter says so, for
each wake-up and each piece that is read alone costs several times what taking it from the socket does. A deadline
costs a timer only now and then: a timer that is already due earlier is left alone and looks at the deadline when it
fires.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from drivetrain.engines._http.reader import AnswerReader, Malformed
from drivetrain.errors import EngineError, EngineFailed, EngineTimeout
from drivetrain.outbox import Outbox

HIGH_WATER_BYTES = 256 * 1024  # of a body that nobody reads: then the peer has to wait
MAX_GATHERED_BYTES = 64 * 1024
LAST_CHUNK = b"0\r\n\r\n"  # ends a body of chunks, unless trailers follow (RFC 9112 §7.1)
STALE_WITHIN_S = 1.0  # a connection that the peer had already closed shows it within a round trip


class Connection(asyncio.Protocol):
    """`start` a request, `read` its body, then either reuse the connection if it is `idle_ready`, or `abort`."""

    __slots__ = (
        "_busy", "_deadline", "_error", "_gather_s", "_gathered", "_gathered_bytes", "_label", "_loop", "_on_lost",
        "_outbox", "_paused", "_sent_s", "_timer", "_timer_s", "_transport", "_used", "_waiter", "idle_until_s",
        "reader",
    )  # fmt: skip

    def __init__(self, label: str, outbox: Outbox, on_lost: Callable[["Connection"], None]) -> None:
        self._label = label  # how messages call the engine
        self._outbox = outbox
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when it fires
        self._deadline = 0.0
        self._sent_s = 0.0
        self._gather_s = 0.0
        self._gathered: list[bytes] = []  # from the socket, not yet read
        self._gathered_bytes = 0
        self._busy = False
        self._used = False  # has carried a request before
        self._paused = False
        self.reader = AnswerReader()
        self.idle_until_s = 0.0

    async def start(self, head: bytes, body: bytes, *, bodiless: bool, first_byte_s: float, under_way: int) -> None:
        """Sends a request and returns when status and headers are there. Aborts the connection on any failure.
        `under_way`: so many requests are, with this one."""
        transport = self._transport
        if transport is None:  # lost between its making and this call
            raise EngineFailed(f"{self._label} closed the connection at once")
        self._busy = True
        self._gather_s = 0.0
        self.reader.begin(bodiless=bodiless)
        if len(body) < HIGH_WATER_BYTES:
            self._outbox.post(self._loop, transport, head + body, under_way=under_way)
        else:
            transport.writelines((head, body))  # a large body is not copied
        self._sent_s = now = self._loop.time()
        try:
            while not self.reader.ready:
                if self._error is not None:
                    raise self._error
                await self._wait(now + first_byte_s)
        except BaseException:
            self.abort()
            raise

    @property
    def lost(self) -> bool:
        return self._transport is None

    def stale(self) -> bool:
        """The request that has just failed met a connection that the peer had closed before: nobody has seen it."""
        lost_soon = self._loop.time() - self._sent_s < STALE_WITHIN_S
        return self._used and lost_soon and not self.reader.started and not isinstance(self._error, EngineTimeout)

    async def read(self, idle_s: float, gather_s: float = 0.0) -> bytes:
        """What has come of the body, at least a byte; b"" at its end. `gather_s`: so long the first of it may be kept,
        to be read with what follows."""
        reader = self.reader
        self._gather_s = gather_s
        if not reader.chunks and not reader.complete:
            deadline = self._loop.time() + idle_s
            while not reader.chunks and not reader.complete:
                if self._error is not None:
                    raise self._error
                await self._wait(deadline)
        data = reader.take()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """The request is over. True if the connection may carry another; else it is closed, which cancels the work."""
        self._busy = False
        self._used = True
        reader, transport = self.reader, self._transport
        clean = reader.complete and reader.reusable and self._error is None
        if clean and not self._paused and transport is not None and not self._unsent(transport):
            return True
        self.abort()
        return False

    def _unsent(self, transport: asyncio.Transport) -> bool:
        """Whether some of a request that was answered early is still to be sent."""
        return transport.get_write_buffer_size() > 0 or self._outbox.holds(transport)

    def abort(self) -> None:
        """Closes the socket at once. A request that is under way fails."""
        if self._busy and self._error is None:
            self._error = EngineFailed(f"the connection to {self._label} was closed")
        if self._transport is not None:
            self._transport.abort()

    # --- deadlines ----------------------------------------------------------------------------------------------------

    def _wait(self, deadline: float) -> asyncio.Future[None]:
        """Done when something happens: data, the end, a failure or the deadline."""
        self._deadline = deadline
        if self._timer is None or self._timer_s > deadline:
            self._arm(deadline)
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._deadline:
            self._arm(self._deadline)
            return
        if self._gathered:
            self._take(b"")
            return
        stage = "in its answer" if self.reader.ready else "before its answer"
        waited_s = self._deadline - self._sent_s
        self._fail(EngineTimeout(f"{self._label} paused too long {stage}, {waited_s:.1f} s after the request"))

    def _fail(self, error: EngineError) -> None:
        if self._error is None:
            self._error = error
        self._wake()
        self.abort()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # it is done where whoever waited was cancelled
            waiter.set_result(None)

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a stream protocol gets no other kind
        endpoint = transport.get_extra_info("socket")
        if endpoint is not None and endpoint.family in (socket.AF_INET, socket.AF_INET6):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a peer that vanished is noticed

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # nobody has asked for anything
            self.abort()
            return
        if self._gather_s and self._waiter is not None and self._gathers(data):
            return
        self._take(data)

    def _gathers(self, data: bytes) -> bool:
        """Whether this is kept for a while. Not at the end of the answer, nor where too much would be kept."""
        if self._gathered_bytes + len(data) > MAX_GATHERED_BYTES or data.endswith(LAST_CHUNK):
            return False
        if not self._gathered:
            self._deadline = due = self._loop.time() + self._gather_s
            if self._timer is None or self._timer_s > due:
                self._arm(due)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        return True

    def _take(self, data: bytes) -> None:
        """Read it, after what was gathered."""
        if self._gathered:
            data = b"".join((*self._gathered, data))
            self._gathered.clear()
            self._gathered_bytes = 0
        try:
            self.reader.feed(data)
        except Malformed as error:
            self._fail(EngineFailed(f"{self._label} did not answer in HTTP/1.1 as it should: {error}"))
            return
        if self._waiter is not None:
            self._wake()
        elif self.reader.buffered > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathered:
            self._take(b"")
        if self._busy and self._error is None:
            self._lost_busy(exc)
        self._wake()
        self._transport = None
        self._on_lost(self)

    def _lost_busy(self, exc: Exception | None) -> None:
        try:
            if exc is not None:
                raise Malformed(str(exc) or type(exc).__name__)
            self.reader.eof()
        except Malformed as error:
            how = "broke off its answer" if self.reader.started else "closed the connection before answering"
            self._error = EngineFailed(f"{self._label} {how}: {error}")
