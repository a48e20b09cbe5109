"""One attempt's entry in the books: the engine works while it lasts, and what became of it, and what it cost, is on
record at its end.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from drivetrain.errors import (
    BudgetExceeded,
    CallerError,
    Cancelled,
    DrivetrainError,
    EngineError,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
    Internal,
    LoadFailed,
    ModelMissing,
    ModelNotFound,
)
from drivetrain.gateway.meter import Meter, Outcome
from drivetrain.gateway.pool import Member
from drivetrain.gateway.receipt import Receipt
from drivetrain.gateway.visit import Visit
from drivetrain.gateway.way import Leg
from drivetrain.quota import Hold, Standing
from drivetrain.types import Usage

NOTHING = Usage()
OURS = (Cancelled, BudgetExceeded)  # callers' errors that no engine raises
LOST = "hedge_lost"  # another engine, asked beside it, was the first to begin


class Account:
    """Use as a context around an attempt. It lets every exception pass but two: that the engine has no such model is
    its own failure from here on, `ModelMissing`; so is that it refused what those before a rollout are asked next,
    `EngineRefused`."""

    __slots__ = ("_leg", "_member", "_meter", "_visit")

    def __init__(self, visit: Visit, leg: Leg, meter: Meter, member: Member | None) -> None:
        self._visit = visit
        self._leg = leg
        self._meter = meter
        self._member = member  # None: the engine has gone since it was chosen

    def __enter__(self) -> None:
        if self._member is not None:
            self._member.begins(self._meter)
        self._visit.running += 1
        self._visit.receipt.attempts += 1
        tell(self._visit, self._meter)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        own = _own_fault(error, self._leg)
        self._end(own or error)
        if isinstance(own, EngineRefused) and self._meter.last:
            own = None  # of those who had it before nobody can be asked: it is the caller's, as far as we know
        self._close(own or error)
        if own is not None:
            raise own from error

    def _end(self, error: BaseException | None) -> None:
        """What its engine and the request take from it."""
        meter, visit, member = self._meter, self._visit, self._member
        if not meter.lost:  # else it is not counted any more
            visit.running -= 1
        if member is not None:
            member.ends(meter, worked=worked(error))
            if isinstance(error, EngineUnavailable):
                member.lost(error.message)
        if isinstance(error, EngineError):
            visit.weigh(error, meter, self._leg)

    def _close(self, error: BaseException | None) -> None:
        meter, visit, leg, member = self._meter, self._visit, self._leg, self._member
        if isinstance(error, DrivetrainError) and meter.first_token_s is None:
            meter.reported = NOTHING  # nothing came of it
            meter.free = True
        outcome, status, why = verdict(error, meter)
        if meter.lost:
            why = LOST
        elif outcome == "cancelled" and visit.policy.on_disconnect == "free":
            meter.free, why = True, "cancelled, not charged"
        elif outcome == "ok" and visit.receipt.left:
            outcome, status, why = "cancelled", Cancelled.status, "drained"
        if meter.cut:
            why = BudgetExceeded.code
        region = (member.config.region or "") if member is not None else ""
        visit.book(leg, meter, outcome=outcome, status=status, why=why, region=region)


def _own_fault(error: BaseException | None, leg: Leg) -> EngineError | None:
    """What the engine answers for, although it blames the caller."""
    if isinstance(error, ModelNotFound):
        return ModelMissing(error.message, param=error.param)
    if isinstance(error, CallerError) and not isinstance(error, OURS) and leg.entry.spill is not None:
        return EngineRefused(error.message, param=error.param)
    return None


def tell(visit: Visit, meter: Meter) -> None:
    """The caller is told that this attempt answers."""
    receipt, ticket, candidate = visit.receipt, visit.inside, meter.candidate
    receipt.engine, receipt.model, receipt.why = candidate.engine, candidate.model, candidate.why
    receipt.queued_s = ticket.queued_s
    receipt.overhead_s = meter.overhead_s
    if (hold := ticket.hold) is not None:
        receipt.standings, receipt.degraded = _standings(receipt, hold), hold.degraded


def _standings(receipt: Receipt, hold: Hold) -> Sequence[Standing]:
    """With those of limits that the request has been counted at before, for another engine."""
    if not receipt.standings:
        return hold.standings
    return tuple({each.rule.id: each for each in (*receipt.standings, *hold.standings)}.values())


def worked(error: BaseException | None) -> bool | None:
    """Whether the engine did its part. None: a caller's mistake, a caller who has gone, or work for which the engine
    has no room, or not the model, or that others may do, tells nothing about whether it works."""
    if error is None:
        return True
    if isinstance(error, EngineError) and not isinstance(
        error, EngineOverloaded | LoadFailed | ModelMissing | EngineRefused
    ):
        return False
    return None


def verdict(error: BaseException | None, meter: Meter) -> tuple[Outcome, int, str]:
    """What became of an attempt that ended so: its outcome, its status, and why."""
    match error:
        case None:
            return "ok", 200, meter.candidate.why
        case asyncio.CancelledError() | GeneratorExit():
            return "cancelled", Cancelled.status, Cancelled.code
        case CallerError():
            return "rejected", error.status, error.code
        case EngineError() if not meter.last:
            return "absorbed", error.status, error.code
        case DrivetrainError():
            return "error", error.status, error.code
        case _:
            return "error", Internal.status, Internal.code
