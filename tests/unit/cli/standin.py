"""A server on loopback that plays Drivetrain for the command line: answers as told, remembers what it was asked."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

Frames = list[dict[str, Any]]
Answer = tuple[int, Any]  # a status, and a JSON value, `Frames` for NDJSON, an iterator of them, or bytes as they are


class Asked(NamedTuple):
    route: str  # "POST /api/chat"
    body: Any
    headers: Mapping[str, str]


class StandIn:
    """Answers by route; a function is asked each time, with the body. Announces itself in a home as a server does."""

    def __init__(self, home: Path, routes: Mapping[str, Answer | Callable[[Any], Answer]]) -> None:
        self._routes: dict[str, Answer | Callable[[Any], Answer]] = {
            "GET /healthz": (200, {"status": "ok", "version": "0"}),
            **routes,
        }
        self._home = home
        self.all: list[Asked] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def play(self, route: str, answer: Answer | Callable[[Any], Answer]) -> None:
        """From now on, another answer."""
        self._routes[route] = answer

    @property
    def asked(self) -> list[tuple[str, Any]]:
        """What it was asked, but for probes of its health."""
        return [(asked.route, asked.body) for asked in self.all if asked.route != "GET /healthz"]

    def __enter__(self) -> Self:
        self._thread.start()
        self.announce(os.getpid())
        return self

    def announce(self, pid: int) -> None:
        (self._home / "state").mkdir(parents=True, exist_ok=True)
        (self._home / "state" / "server.json").write_text(json.dumps({"pid": pid, "url": self.url}))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: Asked) -> Answer:
        self.all.append(asked)
        found = self._routes.get(asked.route, (404, {"error": f"{asked.route} is not played"}))
        return found(asked.body) if callable(found) else found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        standin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self._body()
                route = f"{self.command} {self.path}"
                status, value = standin.answer(Asked(route, _decoded(body), dict(self.headers)))
                if isinstance(value, Iterator):
                    self._stream(status, value)
                    return
                sent = b"" if self.command == "HEAD" else _encoded(value)
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_DELETE = do_HEAD = _serve

            def _stream(self, status: int, frames: Iterator[Any]) -> None:
                """One frame after another, to the end of the connection; the caller may leave before."""
                self.close_connection = True
                self.send_response(status)
                self.send_header("Connection", "close")
                self.end_headers()
                with contextlib.suppress(OSError):
                    for frame in frames:
                        self.wfile.write(json.dumps(frame).encode() + b"\n")

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        return Handler


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body


def _encoded(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return b"".join(json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in value)
    return json.dumps(value).encode()
