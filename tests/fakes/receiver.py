"""An HTTP server that takes what is posted to it, or answers as it was told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Posted(NamedTuple):
    path: str
    headers: dict[str, str]  # by their names in lower case
    body: bytes


class Receiver:
    """`answers`: status and body of the next ones, in turn; then 200."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.taken: list[Posted] = []  # those that were answered with 2xx
        self.answers: list[tuple[int, bytes]] = []
        self.headers: dict[str, str] = {}  # of every answer
        self.url = ""
        self.came = threading.Event()  # set whenever something was taken

    def answer(self, posted: Posted) -> tuple[int, bytes]:
        self.posted.append(posted)
        return self.answers.pop(0) if self.answers else (200, b"")


@contextmanager
def receiving(port: int = 0, receiver: Receiver | None = None) -> Iterator[Receiver]:
    """A server on a free port, or on one that another had."""
    one = receiver or Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            posted = Posted(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            status, answer = one.answer(posted)
            self.send_response(status)
            for name, value in ({"content-length": str(len(answer))} | one.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)
            if 200 <= status < 300:
                one.taken.append(posted)
                one.came.set()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        one.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield one
        finally:
            server.shutdown()
            thread.join()
