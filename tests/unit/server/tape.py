"""A request without a connection, and what was written for it."""

from collections.abc import Mapping

from drivetrain.server.exchange import Exchange


class Tape:
    """A connection that only remembers."""

    default_head = b""
    peer = ""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    slow = None

    def hold(self, *, hold: bool) -> None: ...

    def ended(self, *, keep_alive: bool) -> None: ...

    @property
    def status(self) -> int:
        return int(self.written.split(b" ", 2)[1])

    @property
    def headers(self) -> Mapping[str, str]:
        lines = self.written.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def body(self) -> bytes:
        return self.written.partition(b"\r\n\r\n")[2]


def asking(
    method: str, path: str, headers: Mapping[bytes, bytes] = {}, *, query: bytes = b"", body: bytes = b""
) -> tuple[Exchange, Tape]:
    """A request that has come whole."""
    tape = Tape()
    exchange = Exchange(tape, method, path, query, dict(headers), keep_alive=True)
    if body:
        exchange.feed(body)
    exchange.complete()
    return exchange, tape
