"""What a fake engine answers: values that a test scripts, and the shapes in which real engines fail."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

Then = Literal["keep", "close", "reset", "half_close", "stall"]  # what becomes of the connection after the last byte


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes as they are, head included, with a pause after each piece."""

    pieces: Sequence[bytes] = ()
    pause_s: float = 0.0
    then: Then = "keep"


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with a Content-Length. `body` is sent as JSON unless it is bytes."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    then: Then = "keep"


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A chunked answer, one chunk per frame. `cut_after`: so many bytes of content, then `then` without an end."""

    frames: Sequence[bytes]
    media_type: str = "text/event-stream"
    pause_s: float = 0.0
    delay_s: float = 0.0  # before the head
    cut_after: int | None = None
    then: Then = "keep"


Reply = Raw | Whole | Stream


def as_raw(reply: Reply) -> Raw:
    """The bytes of a reply and the pauses between them."""
    match reply:
        case Raw():
            return reply
        case Whole():
            return Raw(pieces=(_whole(reply),), then=reply.then)
        case Stream():
            head = f"HTTP/1.1 200 OK\r\ncontent-type: {reply.media_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
            return Raw(pieces=(head, *_chunks(reply)), pause_s=reply.pause_s, then=reply.then)


def _whole(reply: Whole) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} Fake\r\n{lines}\r\n".encode() + body


def _chunks(reply: Stream) -> list[bytes]:
    left = reply.cut_after
    chunks = []
    for frame in reply.frames:
        sent = frame if left is None else frame[:left]
        if sent:
            chunks.append(b"%x\r\n%b\r\n" % (len(sent), sent))
        if left is not None:
            left -= len(sent)
    if left is None:
        chunks.append(b"0\r\n\r\n")
    return chunks


def sse(*frames: Any) -> list[bytes]:
    """Server-sent events: a `str` as it is, all else as JSON."""
    return [
        b"data: %b\n\n" % (frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)).encode()
        for frame in frames
    ]


def ndjson(*frames: Any) -> list[bytes]:
    return [json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames]


def _openai(message: str, kind: str, code: str | int | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _llama_server(code: int, message: str, kind: str, **more: int) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind, **more}}


OVERFLOW = "the request exceeds the available context size. try increasing it"

# Engine and situation → status and body, as they come off the wire.
FAILURES: Mapping[tuple[str, str], tuple[int, Any]] = {
    ("openai", "model"): (404, _openai("The model 'x' does not exist", "invalid_request_error", "model_not_found")),
    ("openai", "key"): (401, _openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key")),
    ("openai", "rate"): (429, _openai("Rate limit reached", "rate_limit_error", "rate_limit_exceeded")),
    ("llama-server", "context"): (
        400,
        _llama_server(400, OVERFLOW, "exceed_context_size_error", n_prompt_tokens=900, n_ctx=512),
    ),
    ("llama-server", "loading"): (503, _llama_server(503, "Loading model", "unavailable_error")),
    ("llama-server", "failure"): (500, _llama_server(500, "compute failed", "server_error")),
    ("vllm", "model"): (404, _openai("The model `x` does not exist.", "NotFoundError", 404)),
    ("vllm", "tools"): (400, _openai('"auto" tool choice requires a parser to be set', "BadRequestError", 400)),
    ("vllm", "busy"): (503, _openai("The engine is currently busy.", "Service Unavailable", 503)),
    ("vllm", "failure"): (500, _openai("EngineCore encountered an issue.", "InternalServerError", 500)),
    ("sglang", "busy"): (
        503,
        {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503},
    ),
    ("tgi", "busy"): (429, {"error": "Model is overloaded", "error_type": "overloaded"}),
    ("tgi", "validation"): (422, {"error": "Input validation error: too long", "error_type": "validation"}),
    ("ollama", "model"): (404, {"error": "model 'x' not found"}),
    ("ollama", "busy"): (503, {"error": "server busy, please try again.  maximum pending requests exceeded"}),
    ("ollama", "tools"): (400, {"error": "registry.ollama.ai/library/x:latest does not support tools"}),
    ("ollama", "failure"): (500, {"error": "llama runner process has terminated: exit status 2"}),
}


def failure(engine: str, situation: str, headers: Mapping[str, str] = {}) -> Whole:
    """The answer of an engine that fails: `failure("vllm", "busy")`."""
    status, body = FAILURES[engine, situation]
    return Whole(status=status, body=body, headers=headers)
