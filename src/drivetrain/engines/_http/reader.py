"""Reads HTTP/1.1 answers out of the bytes of one connection, cut anywhere. Sans I/O; llhttp does the tokenising.

Strict where leniency could desynchronise two messages (RFC 9112 §6.3): a length beside a transfer coding, a second
length, a coding other than `chunked` are refused. One answer per request: any byte after its end spoils the connection.
"""

import httptools

MAX_HEAD_BYTES = 64 * 1024  # of bytes that bring no content: heads, interim answers, chunk heads, trailers
BODILESS = frozenset({204, 304})  # RFC 9112 §6.3


class Malformed(Exception):
    """The bytes are not an HTTP/1.1 answer that we accept."""


class AnswerReader:
    """`begin`, then `feed` until `complete`. Pieces of the body collect in `chunks`; the caller takes them out.

    `complete` and `reusable` together mean: the connection may carry another request.
    """

    __slots__ = (
        "_bodiless", "_close_delimited", "_overhead", "_parser", "_size", "buffered", "chunks", "complete", "headers",
        "keep_alive", "on_body", "ready", "reusable", "started", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.on_body = self.chunks.append  # called once per chunk by the parser: no frame of ours in between
        self._parser = httptools.HttpResponseParser(self)
        self.complete = True
        self.reusable = True
        self.begin()

    def begin(self, *, bodiless: bool = False) -> None:
        """A request goes out: the next bytes are its answer. `bodiless`: it is a HEAD request."""
        self._bodiless = bodiless
        self._close_delimited = False
        self._overhead = 0  # bytes so far that brought no content
        self._size = 0  # of the data being fed
        self.buffered = 0  # bytes in chunks, and a little more: counted with what frames them
        self.chunks.clear()
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.status = 0
        self.keep_alive: bytes | None = None  # value of the Keep-Alive header
        self.started = False  # any byte has come
        self.ready = False  # status and headers are complete
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Raises `Malformed`. Bytes past the end of the answer are dropped and make the connection unfit for reuse."""
        self.started = True
        if self.complete:
            self.reusable = False
            return
        before = len(self.chunks)
        self._size = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise Malformed(str(error.__context__ or error)) from error
            self.reusable = False
        if len(self.chunks) > before:
            self.buffered += self._size
        elif not self.complete:
            self._overhead += self._size
            if self._overhead > MAX_HEAD_BYTES:
                raise Malformed(f"more than {MAX_HEAD_BYTES} bytes of headers")

    def eof(self) -> None:
        """The peer has closed: the end of a body without length, else `Malformed` if something is missing."""
        self.reusable = False
        if self._close_delimited:
            self.complete = True
        elif not self.complete:
            raise Malformed("the connection was closed before the end of the answer")

    def take(self) -> bytes:
        """The pieces of the body that have come since the last call, joined."""
        chunks = self.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.buffered = 0
        return data

    # --- called by the parser -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            raise Malformed("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.ready:  # afterwards they are trailers, which we have no use for
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._interim(status)
            return
        self.status = status
        has_length = self._check_headers()
        self._close_delimited = not (has_length or self._bodiless or status in BODILESS)
        self.reusable = self._parser.should_keep_alive()
        self.ready = True
        if self._bodiless:
            self.complete = True
            self.reusable = False
            raise Malformed("the parser cannot know that no body follows")  # stops it; the answer is complete

    def _check_headers(self) -> bool:
        """Whether they tell where the body ends, by a length or a coding."""
        coded = sized = False
        for name, value in self.headers:
            if name == b"transfer-encoding":
                if coded or value.lower() != b"chunked":
                    raise Malformed(f"transfer coding {value!r} is not supported")
                coded = True
            elif name == b"content-length":
                sized = True
            elif name == b"content-encoding":
                if value.lower() != b"identity":
                    raise Malformed(f"content coding {value!r} was not asked for")
            elif name == b"keep-alive":
                self.keep_alive = value
        if self._overhead + self._size > MAX_HEAD_BYTES:  # else the sum cannot be more
            self._weigh()
        return coded or sized

    def _weigh(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            raise Malformed(f"more than {MAX_HEAD_BYTES} bytes of headers")

    def _interim(self, status: int) -> None:
        """An interim answer (RFC 9110 §15.2) says nothing that we need. Switching protocols was not asked for."""
        if status < 100 or status == 101:
            raise Malformed(f"status {status:03}")
        self.headers = []

    def on_message_complete(self) -> None:
        if self.ready:
            self.complete = True
