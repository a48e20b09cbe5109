"""The tree of errors: what went wrong, whose fault it is, and what the caller may do about it.

DrivetrainError
├── CallerError                 the request is at fault: 4xx, never retried, never counted against an engine
│   ├── BadRequest 400          ├── ContextOverflow 400     ├── Unsupported 400
│   ├── Unauthorized 401        ├── Forbidden 403           ├── NotFound 404
│   ├── ModelNotFound 404       ├── MethodNotAllowed 405    ├── Conflict 409
│   ├── TooLarge 413            ├── UnsupportedMedia 415    └── RateLimited 429
│   └── Cancelled 499           the caller has gone
├── EngineError                 an engine is at fault: another one may do better
│   ├── EngineUnavailable 503   no connection, not ready, shutting down
│   ├── EngineOverloaded 503    it says it is too busy
│   ├── EngineFailed 502        it broke off, or answered nonsense
│   ├── EngineTimeout 504       it let a deadline pass
│   └── LoadFailed 500          a model could not be loaded; carries the reason
└── ServerError                 Drivetrain is at fault, or at its limits
    ├── Internal 500            ├── StorageFull 507         ├── Busy 503 (queue full)     └── Draining 503

Each dialect renders them; nothing below the server writes a status line.
"""

from typing import ClassVar


class DrivetrainError(Exception):
    """`message` tells what was wrong, with the value, and what to do. `param` names the member of the request."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class CallerError(DrivetrainError):
    status = 400
    code = "invalid_request"


class BadRequest(CallerError):
    pass


class ContextOverflow(CallerError):
    code = "context_length_exceeded"


class Unsupported(CallerError):
    code = "unsupported"


class Unauthorized(CallerError):
    status = 401
    code = "invalid_api_key"


class Forbidden(CallerError):
    status = 403
    code = "permission_denied"


class NotFound(CallerError):
    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(CallerError):
    status = 405
    code = "method_not_allowed"


class Conflict(CallerError):
    status = 409
    code = "conflict"


class TooLarge(CallerError):
    status = 413
    code = "request_too_large"


class UnsupportedMedia(CallerError):
    status = 415
    code = "unsupported_media_type"


class RateLimited(CallerError):
    status = 429
    code = "rate_limit_exceeded"


class Cancelled(CallerError):
    status = 499
    code = "cancelled"


class EngineError(DrivetrainError):
    status = 502
    code = "engine_error"
    retryable = True


class EngineUnavailable(EngineError):
    status = 503
    code = "engine_unavailable"


class EngineOverloaded(EngineError):
    status = 503
    code = "engine_overloaded"


class EngineFailed(EngineError):
    status = 502
    code = "engine_failed"


class EngineTimeout(EngineError):
    status = 504
    code = "engine_timeout"


class LoadFailed(EngineError):
    status = 500
    code = "load_failed"


class ServerError(DrivetrainError):
    pass


class Internal(ServerError):
    pass


class StorageFull(ServerError):
    status = 507
    code = "storage_full"


class Busy(ServerError):
    status = 503
    code = "busy"


class Draining(ServerError):
    status = 503
    code = "draining"
