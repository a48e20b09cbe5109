"""The tree of errors: what went wrong, whose fault it is, and what the caller may do about it.

DrivetrainError
├── CallerError                 the request is at fault: 4xx, never retried, never counted against an engine
│   ├── BadRequest 400          ├── ContextOverflow 400     ├── Unsupported 400
│   ├── Unauthorized 401        ├── BudgetExceeded 402      ├── Forbidden 403
│   ├── NotFound 404            ├── ModelNotFound 404       ├── MethodNotAllowed 405
│   ├── SlowRequest 408         ├── Conflict 409            ├── TooLarge 413
│   ├── UnsupportedMedia 415    ├── RateLimited 429         └── Cancelled 499           the caller has gone
├── EngineError                 an engine is at fault: another one may do better
│   ├── EngineUnavailable 503   no connection (`ConnectTimeout`: not in time), not ready, shutting down
│   ├── EngineOverloaded 503    it says it is too busy
│   ├── EngineFailed 502        it broke off, or answered nonsense
│   ├── EngineTimeout 504       it let a deadline pass
│   ├── LoadFailed 500          a model could not be loaded; carries the reason
│   ├── ModelMissing 404        it has no such model, although it was sent there
│   └── EngineRefused 400       new in a rollout, it refused a request that those before it are asked next
└── ServerError                 Drivetrain is at fault, or at its limits
    ├── Internal 500            ├── StorageFull 507         ├── Busy 503 (queue full)     ├── Draining 503
    ├── StoreAway 503           ├── SharedStateAway 503
    └── DeadlineExceeded 504    the request's own time is over

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
    """The request cannot be read, or a member has a value that cannot be used; `param` names it."""


class ContextOverflow(CallerError):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"
    fits: float | None = None  # the share of the prompt that there is room for, where the engine tells it


class Unsupported(CallerError):
    """The model, or the engine behind it, cannot do what was asked."""

    code = "unsupported"


class Unauthorized(CallerError):
    """The API key is missing or unknown."""

    status = 401
    code = "invalid_api_key"


class BudgetExceeded(CallerError):
    """A budget has too little left; the message tells whose, and when it has room again."""

    status = 402
    code = "insufficient_quota"


class Forbidden(CallerError):
    """Whoever asks may not do this; a registry or hub that refuses a download says so too."""

    status = 403
    code = "permission_denied"


class NotFound(CallerError):
    """There is no such path, file or blob."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No engine and no library has a model of this name."""

    code = "model_not_found"


class MethodNotAllowed(CallerError):
    """The path is right, the method is not; `Allow` tells which are."""

    status = 405
    code = "method_not_allowed"


class SlowRequest(CallerError):
    """The body stood still, or came drop by drop."""

    status = 408
    code = "request_timeout"


class Conflict(CallerError):
    """What is to be made is there already."""

    status = 409
    code = "conflict"


class TooLarge(CallerError):
    """The body has more than `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"


class UnsupportedMedia(CallerError):
    """The body is compressed, or of a kind that is not read."""

    status = 415
    code = "unsupported_media_type"


class RateLimited(CallerError):
    """A limit is reached, or no more requests of the key may wait; `Retry-After` tells how long to wait."""

    status = 429
    code = "rate_limit_exceeded"


class Cancelled(CallerError):
    """The caller has gone. Seen in logs and metrics only."""

    status = 499
    code = "cancelled"


class EngineError(DrivetrainError):
    status = 502
    code = "engine_error"
    retryable = True


class EngineUnavailable(EngineError):
    """No connection to the engine, or it does not take requests yet; or every engine of the model has failed or is set
    aside."""

    status = 503
    code = "engine_unavailable"


class ConnectTimeout(EngineUnavailable):
    within_s = 0.0  # that the engine had to take a connection


class EngineOverloaded(EngineError):
    """The engine says that it is too busy."""

    status = 503
    code = "engine_overloaded"


class EngineFailed(EngineError):
    """The engine broke off, or answered nonsense."""

    status = 502
    code = "engine_failed"


class EngineTimeout(EngineError):
    """The engine let a deadline of the policy pass."""

    status = 504
    code = "engine_timeout"


class LoadFailed(EngineError):
    """The model could not be loaded; the message carries the reason."""

    status = 500
    code = "load_failed"


class ModelMissing(EngineError):
    """The engine has no such model, although a route, or what it listed before, says so. A caller whom nobody else can
    answer is told `ModelNotFound`."""

    status = 404
    code = "model_missing"


class EngineRefused(EngineError):
    """An engine that is new in a rollout refused a request. Whose mistake that is, those tell who had it before: they
    are asked next, so no caller is told."""

    status = 400
    code = "engine_refused"


class ServerError(DrivetrainError):
    pass


class Internal(ServerError):
    """A defect of ours. The log has the details under the id of the request."""


class StorageFull(ServerError):
    """The disk has no room for what is to be written."""

    status = 507
    code = "storage_full"


class Busy(ServerError):
    """The queue of the policy is full, or a wait in it was too long; or models in use fill the memory."""

    status = 503
    code = "busy"


class Draining(ServerError):
    """The server is shutting down; running requests are finished."""

    status = 503
    code = "draining"


class StoreAway(ServerError):
    """The database cannot be asked, and what was to be asked is not known here."""

    status = 503
    code = "store_unavailable"


class SharedStateAway(ServerError):
    """Limits are counted together with other replicas, which cannot be done now, and the rule is to be closed then."""

    status = 503
    code = "shared_state_unavailable"


class DeadlineExceeded(ServerError):
    """The time that the request, its client, its key or its policy allowed is over; the message tells which it was."""

    status = 504
    code = "deadline_exceeded"
