"""One attempt's entry in the books: the engine works while it lasts, and what became of it is on record at its end."""

import asyncio
from types import TracebackType
from typing import Protocol

from drivetrain.errors import CallerError, Cancelled, DrivetrainError, EngineError, EngineUnavailable, Internal
from drivetrain.gateway.meter import Call, Meter, Outcome
from drivetrain.gateway.pool import Member
from drivetrain.types import Attempt, EmbedRequest, Request, Usage


class Books(Protocol):
    def attempt(self, attempt: Attempt) -> None: ...


class Account:
    """Use as a context around an attempt. It lets every exception pass."""

    __slots__ = ("_books", "_call", "_member", "_meter", "_request")

    def __init__(self, books: Books, member: Member, meter: Meter, request: Request | EmbedRequest, call: Call) -> None:
        self._books = books
        self._member = member
        self._meter = meter
        self._request = request
        self._call = call

    def __enter__(self) -> None:
        self._member.outstanding += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._member.done()
        if isinstance(error, EngineUnavailable):
            self._member.lost(error.message)
        if isinstance(error, DrivetrainError) and self._meter.first_token_s is None:
            self._meter.reported = Usage()  # nothing came of it
        outcome, status, why = verdict(error, self._meter)
        self._books.attempt(self._meter.row(self._request, self._call, outcome=outcome, status=status, why=why))


def verdict(error: BaseException | None, meter: Meter) -> tuple[Outcome, int, str]:
    """What became of an attempt that ended so: its outcome, its status, and why."""
    match error:
        case None:
            return "ok", 200, meter.candidate.why
        case asyncio.CancelledError() | GeneratorExit():
            return "cancelled", Cancelled.status, Cancelled.code
        case CallerError():
            return "rejected", error.status, error.code
        case EngineError() if may_fail_over(error, meter):
            return "absorbed", error.status, error.code
        case DrivetrainError():
            return "error", error.status, error.code
        case _:
            return "error", Internal.status, Internal.code


def may_fail_over(error: EngineError, meter: Meter) -> bool:
    """Only as long as nothing of the answer has gone to the caller, and to an engine that has not been tried."""
    return error.retryable and meter.first_token_s is None and not meter.last
