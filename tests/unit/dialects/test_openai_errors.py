"""Errors: four members for callers, always; any engine's form understood and put to whose fault it is."""

import json
from typing import Any

import pytest

from drivetrain import errors as e
from drivetrain.dialects.openai import decode_error, encode_error
from drivetrain.errors import DrivetrainError


@pytest.mark.parametrize(
    ("error", "kind", "param", "code"),
    [
        (e.BadRequest("m", param="seed"), "invalid_request_error", "seed", "invalid_request"),
        (e.ContextOverflow("m"), "invalid_request_error", "messages", "context_length_exceeded"),
        (e.Unauthorized("m"), "invalid_request_error", None, "invalid_api_key"),
        (e.BudgetExceeded("m"), "insufficient_quota", None, "insufficient_quota"),
        (e.Forbidden("m"), "permission_error", None, "permission_denied"),
        (e.Forbidden("m", param="model"), "permission_error", "model", "permission_denied"),
        (e.ModelNotFound("m"), "invalid_request_error", "model", "model_not_found"),
        (e.TooLarge("m"), "invalid_request_error", None, "request_too_large"),
        (e.RateLimited("m"), "rate_limit_error", None, "rate_limit_exceeded"),
        (e.EngineFailed("m"), "server_error", None, "engine_failed"),
        (e.Busy("m"), "server_error", None, "busy"),
        (e.StoreAway("m"), "server_error", None, "store_unavailable"),
        (e.SharedStateAway("m"), "server_error", None, "shared_state_unavailable"),
    ],
)
def test_an_error_has_all_four_members_and_a_textual_code(
    error: DrivetrainError, kind: str, param: str | None, code: str
) -> None:
    assert json.loads(encode_error(error)) == {"error": {"message": "m", "type": kind, "param": param, "code": code}}


def nested(message: str, type: str = "", code: object = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": type, "param": None, "code": code}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # context
        (400, nested("exceeds the available context size", "exceed_context_size_error", 400), e.ContextOverflow),
        (400, nested("maximum context length is 512 tokens", "BadRequestError", 400), e.ContextOverflow),
        (400, nested("too many", code="context_length_exceeded"), e.ContextOverflow),
        (400, b'{"object":"error","message":"longer than the model\'s context length","code":400}', e.ContextOverflow),
        (422, b'{"error":"`max_new_tokens` must be <= 512","error_type":"validation"}', e.ContextOverflow),
        (500, nested("input is too large to process", "server_error", 500), e.ContextOverflow),
        # unknown model
        (404, nested("The model `x` does not exist.", "NotFoundError", 404), e.ModelNotFound),
        (400, nested("model 'x' not found", "invalid_request_error", 400), e.ModelNotFound),
        (404, b'{"error":"model \\"x\\" not found, try pulling it first"}', e.ModelNotFound),
        # overload, not ready
        (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', e.EngineOverloaded),
        (429, nested("Rate limit reached; prompt too long for this minute", "rate_limit_error"), e.EngineOverloaded),
        (503, nested("The engine is currently busy", "Service Unavailable", 503), e.EngineOverloaded),
        (503, b'{"object":"error","message":"The request queue is full.","code":503}', e.EngineOverloaded),
        (503, b'{"error":"server busy, please try again.  maximum pending requests exceeded"}', e.EngineOverloaded),
        (503, nested("Loading model", "unavailable_error", 503), e.EngineUnavailable),
        (503, b"", e.EngineUnavailable),
        # our account there has no money left: another engine may do
        (402, nested("Insufficient Balance", "unknown_error", "invalid_request_error"), e.EngineOverloaded),
        (402, nested("Requires more credits; the model does not exist for free", code=402), e.EngineOverloaded),
        (402, nested("m", "insufficient_quota", "insufficient_quota"), e.EngineOverloaded),
        (429, nested("You exceeded your current quota", "insufficient_quota"), e.EngineOverloaded),
        # the caller's fault behind a 500
        (500, nested("[json.exception.parse_error.101] parse error", "server_error", 500), e.BadRequest),
        (500, nested("Failed to parse grammar", "server_error", 500), e.BadRequest),
        (500, nested("image input is not supported", "server_error", 500), e.Unsupported),
        (400, b'{"error":"x:latest does not support tools"}', e.Unsupported),
        (501, nested("This server does not support embeddings", "not_supported_error", 501), e.Unsupported),
        (400, nested("temperature must be non-negative", "BadRequestError", 400), e.BadRequest),
        (422, b'{"error":"Template error","error_type":"template_error"}', e.BadRequest),
        (413, b"<html><h1>413 Request Entity Too Large</h1></html>", e.TooLarge),
        # ours, or the engine's
        (401, nested("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), e.EngineFailed),
        (403, b"{}", e.EngineFailed),
        (404, b'{"detail":"Not Found"}', e.EngineFailed),
        (404, b"404 page not found", e.EngineFailed),
        (424, b'{"error":"Request failed during generation","error_type":"generation"}', e.EngineFailed),
        (500, nested("CUDA error: out of memory", "InternalServerError", 500), e.EngineFailed),
        (502, b"<html>Bad Gateway</html>", e.EngineFailed),
        (504, b"", e.EngineTimeout),
        (500, b'{"error":{"message":null,"code":10000000000000000000000000000}}', e.EngineFailed),
        (500, b"[" * 100_000, e.EngineFailed),
        (500, b"\xff\xfe", e.EngineFailed),
        (500, b"null", e.EngineFailed),
    ],
)  # fmt: skip
def test_an_engines_error_is_put_to_whose_fault_it_is(status: int, body: bytes, kind: type[DrivetrainError]) -> None:
    error = decode_error(status, body)
    assert type(error) is kind
    assert error.message


@pytest.mark.parametrize(
    ("told", "fits"),
    [
        ({"n_prompt_tokens": 1024, "n_ctx": 512}, 0.5),
        ({"n_prompt_tokens": 512, "n_ctx": 512}, None),
        ({"n_prompt_tokens": 0, "n_ctx": 0}, None),
        ({"n_prompt_tokens": "many", "n_ctx": 512}, None),
        ({"n_ctx": 512}, None),
        ({}, None),
    ],
)
def test_how_much_of_a_prompt_has_room_is_told(told: dict[str, Any], fits: float | None) -> None:
    fault = {"code": 400, "message": "too much", "type": "exceed_context_size_error", **told}
    for body in ({"error": fault}, fault):
        error = decode_error(400, json.dumps(body).encode())
        assert isinstance(error, e.ContextOverflow)
        assert error.fits == fits


def test_the_engines_own_words_reach_the_caller() -> None:
    assert decode_error(400, nested("temperature must be non-negative")).message == "temperature must be non-negative"
    assert decode_error(502, b"<html><body>Bad\n Gateway</body></html>").message == "Bad Gateway"
    assert decode_error(401, nested("no key")).message == "the engine refused Drivetrain's API key for it: no key"
    assert len(decode_error(500, b"x" * 1_000_000).message) <= 2000


@pytest.mark.parametrize(
    "kind",
    [
        e.BadRequest,
        e.ContextOverflow,
        e.Unsupported,
        e.ModelNotFound,
        e.TooLarge,
        e.EngineUnavailable,
        e.EngineOverloaded,
        e.EngineFailed,
        e.EngineTimeout,
        e.LoadFailed,
    ],
)
def test_a_drivetrain_behind_a_drivetrain_tells_the_same(kind: type[DrivetrainError]) -> None:
    error = decode_error(kind.status, encode_error(kind("what was wrong", param="p")))
    assert (type(error), error.message, error.param) == (kind, "what was wrong", "p")
