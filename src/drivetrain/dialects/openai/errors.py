"""Errors in OpenAI's form, both ways.

Engines that speak this dialect disagree about errors: nested or flat, codes that are numbers, 500 for what the caller
got wrong, 400 for an unknown model, 200 with an error inside the stream. `decode` classifies by code, type and text
first and by status last.
"""

import re
from typing import Any

import msgspec

from drivetrain import errors as e
from drivetrain.errors import DrivetrainError
from drivetrain.excerpts import bounded

MAX_MESSAGE_CHARS = 2000

_TYPES = {402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}

# Our own codes, for a Drivetrain behind a Drivetrain, and OpenAI's.
_BY_CODE: dict[str, type[DrivetrainError]] = {
    "context_length_exceeded": e.ContextOverflow,
    "unsupported": e.Unsupported,
    "model_not_found": e.ModelNotFound,
    "engine_unavailable": e.EngineUnavailable,
    "engine_overloaded": e.EngineOverloaded,
    "engine_failed": e.EngineFailed,
    "engine_timeout": e.EngineTimeout,
    "load_failed": e.LoadFailed,
    "busy": e.EngineOverloaded,
    "draining": e.EngineUnavailable,
    "store_unavailable": e.EngineOverloaded,
    "shared_state_unavailable": e.EngineOverloaded,
}
_BY_TYPE: dict[str, type[DrivetrainError]] = {
    "exceed_context_size_error": e.ContextOverflow,
    "not_supported_error": e.Unsupported,
    "overloaded": e.EngineOverloaded,
    "overloaded_error": e.EngineOverloaded,
    "rate_limit_error": e.EngineOverloaded,
    "insufficient_quota": e.EngineOverloaded,
    "notfounderror": e.ModelNotFound,
}
# The status that a type stands for, where an error comes inside a stream without a number.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "bad request": 400,
    "validation": 422,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "unavailable_error": 503,
    "service unavailable": 503,
    "timeout_error": 504,
}
_BY_TEXT: tuple[tuple[re.Pattern[str], type[DrivetrainError]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), error)
    for pattern, error in (
        (r"exceed\w* .{0,60}context|context .{0,60}exceed", e.ContextOverflow),
        (r"maximum context|(longer|larger) than .{0,40}context", e.ContextOverflow),
        (r"(prompt|input|request)\b.{0,40}(too long|too many tokens|too large to process)", e.ContextOverflow),
        (r"max_new_tokens. must be|max_seq_len|max_num_tokens", e.ContextOverflow),
        (r"loading model", e.EngineUnavailable),
        (r"\bbusy\b|overloaded|queue is full|too many (pending )?requests|maximum pending", e.EngineOverloaded),
        (r"\bmodel\b.{0,200}(not found|does not exist)|no such model|unknown model", e.ModelNotFound),
        (r"mmproj|(image|audio|video|tools?|thinking|embeddings?)\b.{0,40} not support", e.Unsupported),
        (r"(does not|doesn't) support", e.Unsupported),
        (r"json\.exception|(failed|unable) to parse (the )?(grammar|json|request|body|message)", e.BadRequest),
        (r"failed to load image|invalid (grammar|image|json|request)|conversation roles must", e.BadRequest),
    )
)
_BY_STATUS: dict[int, type[DrivetrainError]] = {
    401: e.EngineFailed,  # our key, not the caller's
    402: e.EngineOverloaded,  # our account has no money left there; another engine may do
    403: e.EngineFailed,
    404: e.EngineFailed,  # no such route: the address is wrong
    405: e.EngineFailed,
    408: e.EngineTimeout,
    413: e.TooLarge,
    424: e.EngineFailed,
    429: e.EngineOverloaded,
    501: e.Unsupported,
    503: e.EngineUnavailable,
    504: e.EngineTimeout,
    529: e.EngineOverloaded,
}
_CREDENTIALS = frozenset({401, 403})
_USED_UP = frozenset({402, 429})
_NO_ROUTE = frozenset({404, 405})


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What an error says, whatever its form."""

    message: str
    type: str = ""
    code: str = ""
    param: str | None = None
    status: int | None = None  # where the body itself holds one
    fits: float | None = None  # the share of a prompt that the context has room for


# --- to callers -------------------------------------------------------------------------------------------------------


def encode(error: DrivetrainError, *, content: str = "messages") -> bytes:
    """The body of an error answer: always all four members, `code` always a string. `content`: the member of the
    request that holds what the model reads, which is what a context that is too small is about."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = error.param or {"context_length_exceeded": content, "model_not_found": "model"}.get(error.code)
    return msgspec.json.encode({"error": {"message": error.message, "type": kind, "param": param, "code": error.code}})


# --- from engines -----------------------------------------------------------------------------------------------------


def decode(status: int, body: bytes) -> DrivetrainError:
    """An engine's error answer, classified."""
    return classify(status, _fault(body))


def decode_frame(data: bytes) -> DrivetrainError | None:
    """The error that a frame inside a stream holds, if it is one."""
    fault = _parse(data)
    return None if fault is None else classify(None, fault)


def classify(status: int | None, fault: Fault) -> DrivetrainError:
    kind = fault.type.lower()
    effective = status or fault.status or _STATUS_OF_TYPE.get(kind, 500)
    error = _BY_CODE.get(fault.code) or _BY_TYPE.get(kind) or _by_text(fault.message, effective)
    if error is e.ContextOverflow:
        return _overflow(fault)
    if error is not None:
        return error(fault.message, param=fault.param)
    error = _BY_STATUS.get(effective, e.BadRequest if 400 <= effective < 500 else e.EngineFailed)
    return error(_hint(effective) + fault.message, param=fault.param)


def _overflow(fault: Fault) -> e.ContextOverflow:
    error = e.ContextOverflow(fault.message, param=fault.param)
    error.fits = fault.fits
    return error


def _by_text(message: str, status: int) -> type[DrivetrainError] | None:
    """A credential's or a quota's error is what its status says, whatever its words."""
    if status in _CREDENTIALS or status in _USED_UP:
        return None
    return next((error for pattern, error in _BY_TEXT if pattern.search(message)), None)


def _hint(status: int) -> str:
    if status in _CREDENTIALS:
        return "the engine refused Drivetrain's API key for it: "
    return "the engine does not serve this route; check its url: " if status in _NO_ROUTE else ""


def _fault(body: bytes) -> Fault:
    fault = _parse(body)
    if fault is not None:
        return fault
    text = re.sub(r"<[^>]*>|\s+", " ", body[: 2 * MAX_MESSAGE_CHARS].decode(errors="replace")).strip()
    return Fault(message=bounded(text, MAX_MESSAGE_CHARS) or "the engine answered with an error and no text")


def _parse(body: bytes) -> Fault | None:
    """The fault in a body of any known form; None if it has none of them."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return _from_object(value) if isinstance(value, dict) else None


def _from_object(value: dict[str, Any]) -> Fault | None:
    error = value.get("error")
    if isinstance(error, dict):  # OpenAI, llama.cpp, vLLM
        return _from_members(error) or Fault(message=bounded(_text(error), MAX_MESSAGE_CHARS))
    if error:  # Ollama `{"error"}`, TGI `{"error", "error_type"}`
        return Fault(message=bounded(_text(error), MAX_MESSAGE_CHARS), type=_text(value.get("error_type", "")))
    if "detail" in value:  # FastAPI's own
        return Fault(message=bounded(_text(value["detail"]), MAX_MESSAGE_CHARS))
    return _from_members(value) if value.get("choices") is None else None  # SGLang, TensorRT-LLM: flat


def _from_members(value: dict[str, Any]) -> Fault | None:
    message = value.get("message")
    if not isinstance(message, str):
        return None
    code = value.get("code")
    param = value.get("param")
    return Fault(
        message=bounded(message, MAX_MESSAGE_CHARS),
        type=_text(value.get("type") or ""),
        code="" if code is None else _text(code),
        param=param if isinstance(param, str) else None,
        status=_status(code) or _status(value.get("http_status_code")),
        fits=_share(value.get("n_ctx"), value.get("n_prompt_tokens")),
    )


def _share(context: object, prompt: object) -> float | None:
    """llama.cpp tells how many tokens a prompt has that is too long, and how many have room."""
    return context / prompt if isinstance(context, int) and isinstance(prompt, int) and 0 < context < prompt else None


def _status(code: object) -> int | None:
    if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code):
        return int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:  # an integer beyond 64 bits
        return repr(value)
