"""What one upstream attempt did: counts its events, times them, and turns them into a row of the ledger."""

import random
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec.structs import replace

from drivetrain.gateway.receipt import Receipt
from drivetrain.governance import ANYBODY, Attempt, Price, Principal, Priority
from drivetrain.policies import demand, prices
from drivetrain.router import Candidate
from drivetrain.types import (
    EmbedRequest,
    Event,
    Finished,
    Opaque,
    Progress,
    ReasoningDelta,
    Request,
    TextDelta,
    Timings,
    ToolCallDelta,
    Usage,
    Value,
)
from drivetrain.ulid import ulid

Outcome = Literal["ok", "error", "cancelled", "absorbed", "rejected"]
UNPRICED = prices.Cost()


class Trace(Value, frozen=True, kw_only=True):
    """Where a request stands in a distributed trace (W3C Trace Context)."""

    id: str = ""  # 32 hex digits
    parent: str = ""  # 16 hex digits; the caller's span, if it told one
    sampled: bool = True


class Call(Value, frozen=True, kw_only=True):
    """One request of a caller, as the gateway knows it."""

    id: str
    dialect: str
    received_s: float  # Unix time
    who: Principal = ANYBODY
    trace: Trace = Trace()
    tags: str = ""  # JSON object of texts
    receipt: Receipt | None = None  # for whoever wants to tell the caller
    timeout_s: float | None = None  # for the whole answer, if the caller said it
    read_timeout_s: float | None = None  # how long the caller's client waits for bytes
    alone: bool = False  # no second engine is to be asked
    priority: Priority = "default"  # its class: what was asked for, and no more than the key may have
    session: str = ""  # the conversation that it belongs to, if the caller named one
    region: str = ""  # where the caller is, if he said so
    client: str = ""  # the address that it came from
    prompt: str = ""  # NAME@VERSION of the system prompt that the caller asked for
    fresh: bool = False  # an answer given before will not do


class Entrance(Protocol):
    """How an attempt's request came in: what the row says of it."""

    @property
    def queued_s(self) -> float: ...
    @property
    def admitted_s(self) -> float: ...
    @property
    def reserved_micro_usd(self) -> int: ...


class Place(NamedTuple):
    """Where an attempt was made, and as part of what."""

    region: str = ""
    rollout: str = ""
    prompt: str = ""
    version: str = ""  # of the model


NOWHERE = Place()


class Meter:
    """Counts one attempt. `see` each batch of events, then `row`."""

    __slots__ = (
        "_cost",
        "_costed",
        "began",
        "candidate",
        "cut",
        "deltas",
        "first_token_s",
        "free",
        "last",
        "lost",
        "overhead_s",
        "position",
        "price",
        "reported",
        "span_id",
        "started_s",
        "waited_s",
    )

    def __init__(self, candidate: Candidate, position: int, *, price: Price | None = None) -> None:
        self.candidate = candidate
        self.price = price  # None: nothing is charged
        self.free = False  # nothing is charged for this one
        self.cut = False  # it was ended here, for its budget was used up
        self.span_id = f"{random.getrandbits(64):016x}"
        self.position = position
        self.last = True  # no other attempt follows; known when it has ended
        self.lost = False  # another engine, asked beside it, was the first to begin
        self.overhead_s = 0.0  # spent here before the engine was asked
        self.started_s = time.time()
        self.began = time.perf_counter()
        self.first_token_s: float | None = None
        self.deltas = 0  # content events: about one token each
        self.reported: Usage | None = None
        self._costed: Usage | None = None  # whose `_cost` is known
        self._cost = UNPRICED
        self.waited_s = 0.0  # until the model was loaded

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began

    def see(self, events: Sequence[Event]) -> bool:
        """Whether any of the events is content, which commits the answer to this engine."""
        content = False
        for event in events:
            if type(event) is TextDelta:
                self.deltas += event.tokens
            elif type(event) is Finished:
                self.reported = event.usage
            elif type(event) is Progress:
                if event.stage != "prompt":
                    self.waited_s = time.perf_counter() - self.began
                continue
            elif type(event) is Opaque:
                continue
            elif type(event) is ReasoningDelta or type(event) is ToolCallDelta:
                self.deltas += 1
            content = True
        if content and self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.began
        return content

    def timed(self, finished: Finished) -> Finished:
        """The end of an answer with durations: the engine's own, or, where it tells none, those seen from here.

        Waiting for a model to load is never part of what an engine tells: it did not exist yet.
        """
        told, first_s = finished.timings, self.first_token_s or 0.0
        if told is None:
            total_s = time.perf_counter() - self.began
            timings = Timings(load_s=self.waited_s, prompt_s=first_s - self.waited_s, completion_s=total_s - first_s)
        elif self.waited_s and not told.load_s:
            timings = replace(told, load_s=self.waited_s)
        else:
            return finished
        return replace(finished, timings=timings)

    def usage(self, request: Request | EmbedRequest) -> Usage:
        """What the engine reported; else, for an answer that broke off, what we saw of it, marked as estimated."""
        told = self.reported
        if told is None:
            return Usage(prompt=demand.prompt_tokens(request), completion=self.deltas, estimated=True)
        if told.estimated and not told.prompt:  # an engine that does not count cannot have counted the prompt
            return replace(told, prompt=demand.prompt_tokens(request))
        return told

    def counted(self, finished: Finished, request: Request) -> Finished:
        """The end of an answer that its engine did not count: the caller is told what the ledger will say."""
        self.reported = self.usage(request)
        return replace(finished, usage=self.reported)

    def cost(self, usage: Usage) -> prices.Cost:
        """Of this attempt up to now, by the price that was in force when it began."""
        if self.price is None or self.free:
            return UNPRICED
        if usage is not self._costed:  # else the ledger says what the caller was told
            self._costed = usage
            self._cost = prices.cost(self.price, usage, time.perf_counter() - self.began)
        return self._cost

    def priced(self, finished: Finished, before_micro_usd: int) -> Finished:
        """The end of an answer with what the request cost, `before_micro_usd` of it earlier attempts."""
        cost = before_micro_usd + self.cost(finished.usage).micro_usd
        return replace(finished, usage=replace(finished.usage, cost_micro_usd=cost))

    def row(
        self,
        request: Request | EmbedRequest,
        call: Call,
        *,
        model: str,
        outcome: Outcome,
        status: int,
        why: str,
        place: Place = NOWHERE,
        ticket: Entrance | None = None,
    ) -> Attempt:
        """`model`: the public name under whose policy it was made; a fallback's is not the one that was asked for."""
        cost = self.cost(usage := self.usage(request))
        who, trace, received_s = call.who, call.trace, call.received_s
        queued_s, admitted_s = (ticket.queued_s, ticket.admitted_s - received_s) if ticket else (0.0, 0.0)
        return Attempt(
            id=ulid(),
            request_id=call.id,
            position=self.position,
            started_s=self.started_s,
            dialect=call.dialect,
            model=model,
            engine=self.candidate.engine,
            engine_model=self.candidate.model,
            stream=isinstance(request, Request) and request.stream,
            outcome=outcome,
            status=status,
            why=why,
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            completion_tokens=usage.completion,
            reasoning_tokens=usage.reasoning,
            usage_estimated=usage.estimated,
            first_token_s=self.first_token_s,
            total_s=time.perf_counter() - self.began,
            cost_micro_usd=cost.micro_usd,
            final=outcome != "absorbed" and not self.lost,
            key_id=who.key_id,
            user_id=who.user,
            project_id=who.project,
            team_id=who.team,
            org_id=who.org,
            region=place.region,
            model_version=place.version,
            prompt_version=place.prompt,
            cache_write_tokens=usage.cache_write,
            price_id=self.price.id if self.price is not None and not self.free else "",
            compute_micro_usd=cost.compute_micro_usd,
            received_s=received_s,
            queued_s=queued_s,
            admitted_s=max(0.0, admitted_s),
            reserved_micro_usd=ticket.reserved_micro_usd if ticket else 0,
            overhead_s=self.overhead_s,
            rollout=place.rollout,
            trace_id=trace.id,
            span_id=self.span_id,
            parent_span_id=trace.parent,
            tags=call.tags,
        )
