"""A small HTTP/1.1 server that plays an engine, well or badly, and tells what it has seen."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httptools

from tests.fakes.manners import MANNERS
from tests.fakes.replies import Raw, Reply, Stream, Whole, as_raw

Scripted = Reply | Callable[["Received"], Reply]


class Received:
    """A request that came in, and what became of it."""

    def __init__(self, method: str, path: str, connection: "_Connection") -> None:
        self.method = method
        self.path = path
        self.connection = connection.number  # which connection, counted from 1
        self.transport = connection.transport  # to write what no script can say
        self.headers: dict[str, str] = {}
        self.body = b""
        self.answered = False  # the whole answer was sent
        self.closed_early = False  # the client left first
        self.left = asyncio.Event()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def wait_closed(self, within_s: float = 1.0) -> None:
        """Returns when the connection of this request is gone. Raises `TimeoutError`."""
        async with asyncio.timeout(within_s):
            await self.left.wait()


class FakeUpstream:
    """Listens on a free port (or a Unix socket) while its block is entered.

    Without a script it behaves as a healthy engine that speaks OpenAI and Ollama (`manners.py`). `script(path, …)`
    queues replies for a path, used one after the other; the last one stays.
    """

    def __init__(
        self,
        *,
        unix: bool = False,
        tls: ssl.SSLContext | None = None,
        idle_close_s: float | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._host = host
        self.requests: list[Received] = []
        self.accepted = 0  # connections so far
        self.open = 0  # connections now
        self.active = 0  # requests being answered now
        self.idle_close_s = idle_close_s
        self._port = port  # 0: a free one
        self._unix = unix
        self._tls = tls
        self._scripts: dict[str, deque[Scripted]] = defaultdict(deque)
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._unix:
            self._folder = tempfile.TemporaryDirectory(prefix="fake-")
            path = str(Path(self._folder.name) / "s")
            self._server = await loop.create_unix_server(lambda: _Connection(self), path)
            self.url = f"unix:{path}"
        else:
            await self.listen()
        return self

    async def listen(self) -> None:
        """Take connections, again after `refuse`: where it was."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self._host, self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://{self._host}:{self._port}"

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()
        self.drop_connections()
        await self.wait(lambda: self.open == 0)
        if self._folder is not None:
            self._folder.cleanup()

    def script(self, path: str, *replies: Scripted) -> None:
        self._scripts[path] = deque(replies)

    def forget(self) -> None:
        """No script any more: a healthy engine again."""
        self._scripts.clear()

    def refuse(self) -> None:
        """No new connection from now on."""
        if self._server is not None:
            self._server.close()

    def drop_connections(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def wait(self, condition: Callable[[], bool], within_s: float = 2.0) -> None:
        """Returns when `condition` holds; it is looked at whenever something happens here. Raises `TimeoutError`."""
        if condition():
            return
        waiter = condition, asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(within_s):
                await waiter[1]
        finally:
            self._waiters.remove(waiter)

    async def request(self, number: int = 1) -> Received:
        """The request of this number, counted from 1, as soon as it is there."""
        await self.wait(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    # --- used by the connections --------------------------------------------------------------------------------------

    def reply_to(self, request: Received) -> Reply:
        script = self._scripts.get(request.path)
        if script:
            scripted = script.popleft() if len(script) > 1 else script[0]
            return scripted(request) if callable(scripted) else scripted
        manner = MANNERS.get((request.method, request.path))
        if manner is None:
            return Whole(status=404, body=b"404 page not found", headers={"content-type": "text/plain"})
        return manner(request.json if request.body else {})

    def join(self, connection: "_Connection") -> int:
        self._connections.add(connection)
        self.accepted += 1
        self.open += 1
        self.tell()
        return self.accepted

    def part(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        self.open -= 1
        self.tell()

    def tell(self) -> None:
        """Something has happened: whoever waits for that goes on."""
        for condition, future in self._waiters:
            if not future.done() and condition():
                future.set_result(None)


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self.transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._requests: list[Received] = []  # the last one is the current one
        self._answering: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.number = 0

    def abort(self) -> None:
        self.transport.abort()

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = self._upstream.join(self)

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._answering is not None:
            self._answering.cancel()
        for request in self._requests:
            request.closed_early = not request.answered
            request.left.set()
        self._upstream.part(self)

    # --- called by the parser -----------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._requests.append(Received(self._parser.get_method().decode(), url.decode(), self))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._requests[-1].headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self._requests[-1].body += data

    def on_message_complete(self) -> None:
        request = self._requests[-1]
        self._upstream.requests.append(request)
        self._answering = asyncio.get_running_loop().create_task(self._answer(request))

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Received) -> None:
        upstream = self._upstream
        upstream.active += 1
        upstream.tell()
        try:
            reply = upstream.reply_to(request)
            if isinstance(reply, Stream):
                await asyncio.sleep(reply.delay_s)
            raw = as_raw(reply)
            await self._send(raw)
            request.answered = raw.then != "stall"
            await self._conclude(raw.then)
        finally:
            upstream.active -= 1
            upstream.tell()

    async def _send(self, raw: Raw) -> None:
        if not raw.pause_s:
            self.transport.write(b"".join(raw.pieces))
            return
        for piece in raw.pieces:
            self.transport.write(piece)
            await asyncio.sleep(raw.pause_s)

    async def _conclude(self, then: str) -> None:
        match then:
            case "close":
                self.transport.close()
            case "reset":
                endpoint: socket.socket = self.transport.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
            case "half_close":
                self.transport.write_eof()
            case "stall":
                await asyncio.get_running_loop().create_future()
            case "keep":
                if self._upstream.idle_close_s is not None:
                    loop = asyncio.get_running_loop()
                    self._idle = loop.call_later(self._upstream.idle_close_s, self.transport.close)
