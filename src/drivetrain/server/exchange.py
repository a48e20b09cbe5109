"""One HTTP request and its answer, on top of ASGI: headers, body within limits, one response, the caller's leaving."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from drivetrain.errors import BadRequest, Cancelled, TooLarge, UnsupportedMedia

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
# A stream must pass proxies unbuffered, and no cache may keep an answer.
STREAM_HEADERS: tuple[Header, ...] = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Exchange:
    """What a handler works with. `respond` once, or `start` and then `send_body` until `more=False`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, max_body_bytes: int) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.id = ""
        self.started = False
        self.done = False
        self.gone = False  # the caller has left
        self.extra: list[Header] = []  # headers of every answer to this request
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._body: bytes | None = None

    @property
    def has_body(self) -> bool:
        return b"content-length" in self.headers or b"transfer-encoding" in self.headers

    def query(self, name: str) -> str | None:
        """The last value of a query parameter."""
        values = parse_qs(self.query_string.decode("latin-1")).get(name)
        return values[-1] if values else None

    async def body(self) -> bytes:
        """The whole body. Raises `TooLarge`; `UnsupportedMedia` if it is compressed; `Cancelled` if the caller left."""
        if self._body is None:
            self._check_declared()
            self._body = await self._read()
        return self._body

    async def _read(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            return self._checked(message.get("body", b""))
        parts: list[bytes] = []
        size = 0
        while message["type"] == "http.request":
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise self._too_large(size)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()
        raise Cancelled("the caller left before its request was complete")

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """A body of any size, as it comes. Raises `Cancelled` if the caller leaves."""
        if self._body is not None:
            yield self._body
            return
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise Cancelled("the caller left before its request was complete")
            if data := message.get("body", b""):
                yield data
            if not message.get("more_body"):
                return

    def _check_declared(self) -> None:
        encoding = self.headers.get(b"content-encoding", b"identity")
        if encoding != b"identity":
            name = encoding.decode("latin-1")
            raise UnsupportedMedia(f"content-encoding {name!r} is not accepted; send the body as it is")
        declared = self.headers.get(b"content-length")
        if declared is None:
            return
        if not declared.isdigit():
            raise BadRequest(f"content-length {declared.decode('latin-1')!r} is not a number")
        if int(declared) > self._max_body_bytes:
            raise self._too_large(int(declared))

    def _checked(self, body: bytes) -> bytes:
        if len(body) > self._max_body_bytes:
            raise self._too_large(len(body))
        return body

    def _too_large(self, size: int) -> TooLarge:
        limit = self._max_body_bytes
        return TooLarge(f"the body has {size} bytes; at most {limit} are accepted (server.max_body_bytes)")

    async def start(self, status: int, media_type: bytes, headers: Sequence[Header] = ()) -> None:
        self.started = True
        lines = [(b"content-type", media_type), *self.extra, *headers]
        if self.id:
            lines.append((b"x-request-id", self.id.encode("latin-1")))
        await self._send({"type": "http.response.start", "status": status, "headers": lines})

    async def relay(self, status: int, headers: Sequence[Header]) -> None:
        """Start an answer with another server's headers, its request id among them."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*self.extra, *headers]})

    async def send_body(self, data: bytes, *, more: bool) -> None:
        self.done = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(
        self, status: int, body: bytes = b"", media_type: bytes = JSON, headers: Sequence[Header] = ()
    ) -> None:
        await self.start(status, media_type, (*headers, (b"content-length", b"%d" % len(body))))
        await self.send_body(b"" if self.method == "HEAD" else body, more=False)

    def attend(self) -> "asyncio.Task[None]":
        """Cancel the current task as soon as the caller leaves. The body must have been read."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an exchange is handled inside a task")
        return asyncio.get_running_loop().create_task(self._leave(task))

    async def _leave(self, task: "asyncio.Task[Any]") -> None:
        while not self.done:
            message = await self._receive()
            if message["type"] == "http.disconnect" and not self.done:
                self.gone = True
                task.cancel()
                return
