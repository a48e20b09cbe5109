"""One request's way through the gateway: where it may go, what it holds while it is inside, what it has spent."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from drivetrain.errors import DrivetrainError, EngineError
from drivetrain.gateway.admission import Admission, Ticket
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.meter import Call, Meter, Outcome
from drivetrain.gateway.receipt import Receipt
from drivetrain.governance import Attempt, Price, Rule
from drivetrain.policies import demand, prices
from drivetrain.policies.prices import Table
from drivetrain.quota import Demand
from drivetrain.router import Candidate
from drivetrain.types import EmbedRequest, Request, Usage, Value

NOBODY = Candidate(engine="", model="", why="")  # of a request that was refused before an engine was chosen
ONE = Demand()


class Record(Protocol):
    def attempt(self, attempt: Attempt) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Leg(Value, frozen=True, kw_only=True):
    """One engine that may be tried."""

    entry: Entry  # whose policy holds
    candidate: Candidate
    position: int  # 1 for the first
    last: bool  # there is nobody left after it


class Visit:
    """Use as a context while the request is inside; `reach` each leg before it is tried."""

    __slots__ = (
        "_admission",
        "_before",
        "_entered",
        "_entry",
        "_record",
        "_request",
        "_table",
        "_ticket",
        "call",
        "failed",
        "legs",
        "receipt",
    )

    def __init__(
        self, admission: Admission, record: Record, table: Table, request: Request | EmbedRequest, call: Call
    ) -> None:
        self.call = call
        self.receipt = call.receipt or Receipt()
        self.legs: Sequence[Leg] = ()
        self.failed: EngineError | None = None  # the last attempt's
        self._admission = admission
        self._record = record
        self._table = table
        self._request = request
        self._entry: Entry | None = None  # the one that `_ticket` is for
        self._ticket: Ticket | None = None
        self._before = 0  # micro-dollars spent under earlier tickets
        self._entered = False

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._ticket is not None:
            self._ticket.close()
        if self._entered:
            self._record.leave()

    @property
    def inside(self) -> Ticket:
        if self._ticket is None:
            raise RuntimeError("no leg has been reached")
        return self._ticket

    @property
    def spent_micro_usd(self) -> int:
        return self._before + self.inside.micro_usd

    async def reach(self, leg: Leg) -> Meter:
        """Let in under this leg's policy, its cost set aside. A fallback that refuses leaves the error of the engine
        that failed before it; any refusal is on record."""
        price = self._table.find(leg.candidate.engine, leg.candidate.model, leg.entry.name, time.time())
        try:
            if self._entry is not leg.entry:
                await self._admit(leg, price)
            elif price is not None and self._ticket is not None:
                await self._ticket.cover(self._estimate(leg, price).micro_usd)
        except DrivetrainError as error:
            self.refuse(error, leg)
            if (failed := self.failed) is None:
                raise
            words = f"{failed.message}; the next engine was not tried: {error.message}"
            raise type(failed)(words, retry_after_s=failed.retry_after_s) from error
        return Meter(leg.candidate, leg.position, last=leg.last, price=price)

    def book(self, meter: Meter, *, outcome: Outcome, status: int, why: str, region: str) -> None:
        """An attempt is over: its row, and what it took of what was set aside."""
        ticket = self.inside
        row = meter.row(self._request, self.call, outcome=outcome, status=status, why=why, region=region, ticket=ticket)
        self._admission.paced(row.engine, row.total_s)
        ticket.spend(row.prompt_tokens + row.completion_tokens, row.cost_micro_usd)
        if meter.price is not None:
            self.receipt.cost_micro_usd = self.spent_micro_usd
        self._record.attempt(row)

    def refuse(self, error: DrivetrainError, leg: Leg | None = None) -> None:
        """A request that went no further is on record too."""
        meter = Meter(NOBODY, leg.position if leg else 1, last=True)
        meter.reported = Usage()
        self._record.attempt(
            meter.row(self._request, self.call, outcome="rejected", status=error.status, why=error.code)
        )

    async def _admit(self, leg: Leg, price: Price | None) -> None:
        bound = self._admission.rules(self.call.who, leg.entry)
        wanted = self._demand(leg, price, bound)
        ticket = await self._admission.enter(bound, wanted, leg.entry.policy.queue, self.receipt)
        if self._ticket is not None:
            self._before += self._ticket.micro_usd
            self._ticket.close()
        self._entry, self._ticket = leg.entry, ticket
        if not self._entered:
            self._record.enter()
            self._entered = True

    def _demand(self, leg: Leg, price: Price | None, bound: Sequence[Rule]) -> Demand:
        if any(rule.resource in ("tokens", "money") for rule in bound):
            return self._estimate(leg, price)
        return ONE

    def _estimate(self, leg: Leg, price: Price | None) -> Demand:
        usage = demand.estimate(self._request, output_tokens=leg.entry.policy.reserve_output_tokens)
        seconds = self._admission.pace_s(leg.candidate.engine)
        money = prices.cost(price, usage, seconds).micro_usd if price is not None else 0
        return Demand(tokens=usage.prompt + usage.completion, micro_usd=money)

    def traceparent(self, meter: Meter) -> str | None:
        """For the engine, so that its spans hang below this attempt's."""
        trace = self.call.trace
        return f"00-{trace.id}-{meter.span_id}-{'01' if trace.sampled else '00'}" if trace.id else None
