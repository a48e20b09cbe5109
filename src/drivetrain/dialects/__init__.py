"""Wire formats as codecs without I/O, each both ways: it serves callers and it speaks to engines.

    caller ── decode_request ──▶ Request ──▶ encode_request ──▶ engine
    caller ◀── Encoder ◀────────  Event  ◀──────── Decoder ◀──  engine

A codec is one *surface* of a dialect: "openai.chat", "openai.completions", "ollama.chat", "ollama.generate".
Rule of fidelity: if a request came in through the surface that the engine speaks, its unknown members reach the engine
byte for byte, and the engine's frames reach the caller as they came, but for the model's name and chunks without a
choice, such as that of the usage, which nobody asked for.
"""

from collections.abc import Sequence
from typing import Protocol

from drivetrain.errors import DrivetrainError
from drivetrain.types import Event, Request, Response


class Reply(Protocol):
    """Writes one answer to a caller. Made once per request with the public model name, an id and a creation time."""

    media_type: str  # of the stream

    def encode(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" where the dialect has nothing to say. The terminal event
        (`Finished`) includes whatever closes the stream (`data: [DONE]`)."""

    def error(self, error: DrivetrainError) -> bytes:
        """An error inside a stream that has begun, with whatever closes the stream."""

    def whole(self, response: Response) -> bytes:
        """The body of an answer that is not streamed."""


class Decoder(Protocol):
    """Reads an engine's stream, cut anywhere, into events. Raises an `EngineError` for an error frame."""

    failure: DrivetrainError | None  # it came behind the events that `feed` gave last, and nothing comes after it

    @property
    def complete(self) -> bool:
        """Whether all that was asked for has come, and only accounts or the terminal frame may follow."""

    def feed(self, data: bytes) -> Sequence[Event]: ...

    def close(self) -> Sequence[Event]:
        """The stream has ended: the last events. Raises `EngineFailed` if its terminal frame never came."""


class Surface(Protocol):
    """One surface of a dialect, both ways."""

    name: str  # "openai.chat"
    path: str  # where an engine serves it, below its base URL

    def decode_request(self, body: bytes) -> Request:
        """Raises `BadRequest` with a helpful text: the member, the value, what is expected."""

    def reply(self, request: Request, *, id: str, created_s: float) -> Reply: ...

    def encode_request(self, request: Request) -> bytes:
        """The body for an engine. Always asks for a stream, with usage where the dialect has to ask for it.
        Raises `Unsupported` if the request needs what this dialect cannot say."""

    def decoder(self, request: Request) -> Decoder:
        """A decoder for the answer to this request; it keeps raw frames if `request.source` is of this surface."""

    def decode_error(self, status: int, body: bytes) -> DrivetrainError:
        """An engine's error answer (a status outside 200), classified by type and text, not by status alone."""

    def encode_error(self, error: DrivetrainError) -> bytes:
        """The body of an error answer to a caller."""
