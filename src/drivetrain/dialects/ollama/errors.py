"""Errors in Ollama's words: `{"error":"text"}` both ways, and the texts that clients match on."""

import re

import msgspec

from drivetrain.dialects.ollama.names import is_valid, parse
from drivetrain.errors import (
    BadRequest,
    Busy,
    Cancelled,
    ContextOverflow,
    DrivetrainError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    LoadFailed,
    ModelNotFound,
    NotFound,
    TooLarge,
    Unsupported,
)

BUSY = "server busy, please try again.  maximum pending requests exceeded"  # two spaces, as Ollama has them
_PAGE_LIMIT = 2000  # characters quoted from an answer that is not Ollama's


def encode_error(error: DrivetrainError) -> bytes:
    """The body of an error answer; with a newline it is the last line of a stream."""
    return msgspec.json.encode({"error": text(error)})


def text(error: DrivetrainError) -> str:
    """What the error is called at Ollama. Never empty: clients take an empty text for success."""
    match error:
        case Busy():
            return BUSY
        case EngineOverloaded() if "busy" not in error.message:
            return f"server busy, please try again.  {error.message}"
        case Cancelled():
            return "request canceled"
        case ModelNotFound() if "not found" not in error.message:
            return f"{error.message} (model not found)"
    return error.message or error.code.replace("_", " ")


def model_not_found(model: str) -> ModelNotFound:
    return ModelNotFound(f"model '{model}' not found", param="model")


def model_required() -> BadRequest:
    return BadRequest("model is required", param="model")


def does_not_support(model: str, capability: str) -> Unsupported:
    """A request needs a capability (`tools`, `chat`, `generate`, `thinking`, `insert`) that the model lacks."""
    if capability == "tools" and is_valid(model):
        return Unsupported(f"{parse(model).full} does not support tools", param="tools")
    return Unsupported(f'"{model}" does not support {capability}')


def blob_not_found(digest: str) -> NotFound:
    return NotFound(f'blob "{digest}" not found')


def digest_mismatch(expected: str, got: str) -> BadRequest:
    return BadRequest(f'digest mismatch, expected "{expected}", got "{got}"')


# What an engine's text says, most telling first. Ollama answers 500 for mistakes of the caller too.
_BY_TEXT: tuple[tuple[re.Pattern[str], type[DrivetrainError]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"server busy|maximum pending|overloaded|too many (concurrent )?requests", EngineOverloaded),
        (r"exceed\w*( the)?( \w+){0,2} context|prompt (is )?too long|exceed_context", ContextOverflow),
        (r"does not support|not supported by", Unsupported),
        (r"\bmodel\b.*\bnot found\b|try pulling it first", ModelNotFound),
        (r"requires more (system )?memory|unable to load model|(failed to load|error loading) model", LoadFailed),
        (r"(runner|llama-server).*(has terminated|failed to start)|timed out waiting for", LoadFailed),
        (r"^option \"|^invalid (format|image|options|think|input|duration|model name)|unknown format", BadRequest),
        (r"illegal base64|failed to process inputs|^raw mode|^time: |is required$", BadRequest),
    )
)
_BY_STATUS: dict[int, type[DrivetrainError]] = {
    400: BadRequest,
    422: BadRequest,
    413: TooLarge,
    429: EngineOverloaded,
    503: EngineUnavailable,
    504: EngineTimeout,
}


def decode_error(status: int, body: bytes) -> DrivetrainError:
    """An Ollama server's error answer, by its text first and its status second."""
    said = _text_in(body) or f"the engine answered {status} without a reason"
    if status in (401, 403):  # its credentials are our configuration, not the caller's doing
        return EngineFailed(f"the engine refused our credentials ({status}): {said}")
    if status == 402:  # as is its credit
        return EngineOverloaded(f"the engine's account has no credit left (402): {said}")
    if status == 404 and "page not found" in said:
        return EngineFailed("the engine has no Ollama API at this address (404); check its url")
    return by_text(said) or _BY_STATUS.get(status, EngineFailed)(said)


def by_text(said: str) -> DrivetrainError | None:
    """What the text alone tells, or None."""
    return next((kind(said) for pattern, kind in _BY_TEXT if pattern.search(said)), None)


class _Nested(msgspec.Struct):
    message: str


class _Body(msgspec.Struct):
    error: str | _Nested


def _text_in(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Body).error
    except (msgspec.DecodeError, RecursionError):
        return body.decode(errors="replace").strip()[:_PAGE_LIMIT]
    return error if isinstance(error, str) else error.message
