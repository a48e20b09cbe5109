"""One request's way through the gateway: where it may go, what it holds while it is inside, what it has spent."""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from msgspec.structs import replace

from drivetrain.config.schema import Policy
from drivetrain.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    DrivetrainError,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
    ModelMissing,
    ModelNotFound,
)
from drivetrain.gateway.admission import Ticket
from drivetrain.gateway.cache import given_again
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.deadline import Deadlines, deadlines
from drivetrain.gateway.house import House
from drivetrain.gateway.meter import Call, Meter, Outcome, Place
from drivetrain.gateway.receipt import Receipt
from drivetrain.gateway.resume import Thread
from drivetrain.gateway.retries import MOST_PAUSE_S, pause_s, retried
from drivetrain.gateway.way import Leg, Way, able, heed, held_s
from drivetrain.governance import Attempt, Price, Rule
from drivetrain.policies import demand, prices
from drivetrain.policies.terms import Own
from drivetrain.quota import Demand
from drivetrain.router import Candidate
from drivetrain.types import EmbedRequest, Event, Finished, Request, Usage

NOBODY = Candidate(engine="", model="", why="")  # of a request that was refused before an engine was chosen
ONE = Demand()
COME_BACK_S = 1.0  # what a caller is told to wait for an engine that is away, which is looked for so often


class Visit:
    """Use as a context while the request is inside: `begin`, `reach` an engine, and `go_on` after each that failed."""

    __slots__ = (
        "_admission",
        "_before",
        "_began_s",
        "_dead",
        "_elsewhere_s",
        "_entry",
        "_house",
        "_model",
        "_others",
        "_over",
        "_pause_s",
        "_record",
        "_repeated",
        "_request",
        "_spent",
        "_streams",
        "_table",
        "_way",
        "answered",
        "attempts",
        "call",
        "deadlines",
        "failed",
        "inside",
        "leg",
        "own",
        "policy",
        "receipt",
        "running",
        "thread",
    )

    deadlines: Deadlines  # known from `begin` on
    leg: Leg  # the one that is tried
    policy: Policy  # that of its entry, as it is for this caller
    own: Own | None  # what in it is so for this caller alone; None: nothing
    inside: Ticket  # what is held under the policy of `_entry`
    _others: Callable[[], list[Leg]]
    _model: str  # whose budget of retries it is

    def __init__(self, house: House, request: Request | EmbedRequest, call: Call) -> None:
        self.call = call
        self.receipt = call.receipt or Receipt()
        self.failed: EngineError | None = None  # the last attempt's
        self.attempts = 0
        self.running = 0  # attempts under way
        self.answered: Attempt | None = None  # the row of the one that answered
        self.thread: Thread | None = None  # what the caller has of an answer that may be resumed
        self._over = False  # no other attempt follows
        self._house = house
        self._admission = house.admission
        self._record = house.record
        self._table = house.prices()
        self._request = request
        self._streams = isinstance(request, Request) and request.stream  # else the answer is given whole
        self._began_s = time.monotonic()
        self._entry: Entry | None = None  # under whose policy the request is inside; None: it is not
        self._before = 0  # micro-dollars spent under earlier tickets
        self._elsewhere_s = 0.0  # spent in lines, in pauses, and at engines
        self._way: Way | None = None  # None: there was no need to look who else there is
        self._pause_s = 0.0  # before the next attempt
        self._dead = False  # nobody is left who could well be asked
        self._spent = False  # the budget of retries is used up
        self._repeated = False  # the last engine left was given a second chance

    def begin(self, first: Leg, others: Callable[[], list[Leg]]) -> None:
        """Where the request may go: first there, then to the `others`, who are looked for when they are needed.

        Raises `EngineOverloaded` if every engine asked to be left alone.
        """
        self.leg = first
        entry, alone, members = first.entry, self.call.alone, self._house.member
        self._comes_under(entry.policy)
        total_s = self.policy.timeouts.total_s
        self.deadlines = deadlines(self.call, self._began_s, total_s, stream=self._streams, whose=self._whose_total)
        self._model = entry.name
        self._others = _nobody if alone else others
        self._house.retries.asked(entry.name)
        elsewhere = (entry.fallbacks or entry.spill is not None) and not alone
        if held_s(members, first) > 0 or (elsewhere and not able(members, first)):
            legs = [leg for leg in (first, *others()) if not alone or leg.entry is entry]
            way = Way(members, legs, lone=len(legs) == 1)
            if (best := way.best()) is not None:
                way.take(best)
            self.leg = best or self._soonest(way)
            self._way = Way(members, (), lone=True) if alone else way

    def _comes_under(self, policy: Policy) -> None:
        self.policy, self.own = policy, None
        if self.call.who.terms:
            self.own = self._house.policies.under(policy, self.call.who.terms)
            self.policy = self.own.policy

    @property
    def _whose_total(self) -> str:
        return self.own.whose("total_s") if self.own is not None else ""

    def _soonest(self, way: Way) -> Leg:
        """All engines asked to be left alone: the one that may be asked first, if that is soon."""
        leg, held_s = way.soonest()
        if held_s > min(MOST_PAUSE_S, self.deadlines.first.left_s()):
            name = leg.candidate.engine
            message = f"engine {name!r} asked to be left alone for {held_s:.0f} s more, and there is no other"
            raise EngineOverloaded(message, retry_after_s=held_s)
        self._pause_s = held_s * (1 + self._house.retries.draw() / 4)  # not all at the same moment
        return leg

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._entry is not None:
            self.inside.close()
            self._record.leave()

    @property
    def spent_micro_usd(self) -> int:
        return self._before + self.inside.micro_usd

    async def reach(self) -> Meter:
        """Let in under the policy of the engine whose turn it is, its cost set aside. A fallback that refuses leaves
        the error of the engine that failed before it; any refusal is on record."""
        leg = self.leg
        try:
            if self._pause_s:
                self._elsewhere_s += self._pause_s
                await asyncio.sleep(self._pause_s)
            price = self._price(leg)
            if self._entry is not leg.entry:
                await self._admit(leg, price)
            elif price is not None:
                await self.inside.cover(self._estimate(leg, price).micro_usd)
            if self.deadlines.first.left_s() <= 0:
                raise self.deadlines.first.passed(f"engine {leg.candidate.engine!r} was not asked any more")
        except asyncio.CancelledError:
            self.refuse(Cancelled("the caller left before an engine was asked"), "cancelled")
            raise
        except DrivetrainError as error:
            self.refuse(error)
            if (failed := self.failed) is None or isinstance(error, DeadlineExceeded) or type(failed) is EngineRefused:
                raise
            words = f"{failed.message}; the next engine was not tried: {error.message}"
            raise type(failed)(words, retry_after_s=failed.retry_after_s) from error
        self.attempts += 1
        meter = Meter(leg.candidate, self.attempts, price=price)
        meter.overhead_s = max(0.0, meter.started_s - self.call.received_s - self._elsewhere_s)
        return meter

    def _price(self, leg: Leg) -> Price | None:
        return self._table.find(leg.candidate.engine, leg.candidate.model, leg.entry.name, time.time())

    def _others_now(self) -> Way:
        """The engines that are left, looked for when they are first needed."""
        if self._way is None:
            others = self._others()
            self._way = Way(self._house.member, others, lone=not others)
        return self._way

    async def beside(self) -> Leg | None:
        """An able engine to be asked as well as the one that is being asked, what both cost set aside: `join` it, if it
        is still wanted then. None: there is no such engine, or not the money."""
        first = self.leg
        leg = self._others_now().beside(first)
        if leg is None:
            return None
        price = self._price(leg)
        if price is not None:
            own = self._estimate(first, self._price(first))
            if not await self.inside.affords(self._estimate(leg, price).micro_usd + own.micro_usd):
                return None
        return leg

    def join(self, leg: Leg) -> Meter:
        """This engine is asked beside the first."""
        self._others_now().take(leg)
        self.attempts += 1
        return Meter(leg.candidate, self.attempts, price=self._price(leg))

    def go_on(self, error: EngineError) -> None:
        """After this failure, which was weighed, another engine is to be reached, or this one once more. Raises what
        the caller is told if it is the end."""
        self.failed = error
        if self._over:
            raise self._told(error)

    def _told(self, error: EngineError) -> DrivetrainError:
        """With why nobody else was asked, and when to come back, where there is something to say."""
        if isinstance(error, ModelMissing):
            return ModelNotFound(error.message, param=error.param)
        if self._dead and isinstance(error, EngineFailed):
            words = f"{error.message}; every engine of model {self._model!r} has failed or is set aside"
            return EngineUnavailable(words, retry_after_s=error.retry_after_s or COME_BACK_S)
        away = error.status == EngineUnavailable.status
        if not self._spent and (error.retry_after_s is not None or not away):
            return error
        words = "; no other attempt was made, for too many of this model's requests fail" if self._spent else ""
        return type(error)(f"{error.message}{words}", retry_after_s=error.retry_after_s or COME_BACK_S)

    def weigh(self, error: EngineError, meter: Meter, leg: Leg) -> None:
        """An attempt has failed: decide whether another follows, which `meter.last` tells from now on. An engine that
        said when to come back is left alone until then."""
        heed(self._house.member, leg, error)
        if self.running:  # the one beside it goes on
            meter.last = False
            return
        meter.last = self._over = self.receipt.left or not self._followed(error, leg, meter)

    def _followed(self, error: EngineError, failed: Leg, meter: Meter) -> bool:
        """By an attempt at the rest of what was said, or at all of it as long as the caller has nothing: of an answer
        that is given whole he has nothing before its end."""
        self._dead = self._spent = False
        thread, refused = self.thread, isinstance(error, EngineRefused)
        begun = thread.begun if thread is not None else meter.first_token_s is not None
        if begun and not refused and thread is not None and thread.sound and self._again(error, failed, begun=True):
            return True
        if begun and self._streams:
            return False
        if thread is not None:
            thread.begin()
        if refused:
            return self._goes_home(failed)
        way = self._others_now()
        self._dead = not way.open and not (way.lone and able(self._house.member, failed))
        return self._again(error, failed, begun=False)

    def _goes_home(self, failed: Leg) -> bool:
        """Whose mistake it is that a request was refused, those tell who had it before."""
        way = self._others_now()
        home = way.best(lambda leg: leg.entry is failed.entry.spill)
        if home is None or self.deadlines.first.left_s() <= 0:
            return False
        way.take(home)
        self.leg, self._pause_s = home, 0.0
        return True

    def _again(self, error: EngineError, failed: Leg, *, begun: bool) -> bool:
        """`begun`: the answer is to be resumed, for some of it is there. Changes nothing if nothing follows."""
        policy, deadlines = failed.entry.policy, self.deadlines
        found = self._chance(error, failed, begun=begun) if retried(error, policy.retries, self.attempts) else None
        if begun:  # who reads a stream is shown that we are still here
            deadlines = Deadlines(whole=deadlines.whole, first=deadlines.whole)
        if found is None or deadlines.first.left_s() <= found[1]:
            return False
        leg, wait_s = found
        home = leg.entry is failed.entry.spill  # what had these requests before a rollout is not buried under them
        if not home and not self._house.retries.take(self._model, policy.retries):
            self._spent = True
            return False
        if leg is failed:
            self._repeated = True
        else:
            self._others_now().take(leg)
        self.deadlines, self.leg, self._pause_s = deadlines, leg, wait_s
        return True

    def _chance(self, error: EngineError, failed: Leg, *, begun: bool) -> tuple[Leg, float] | None:
        """The engine that could follow, and after which pause: where nobody else is left, the same one, once."""
        way = self._others_now()
        fits = way.best(lambda leg: leg.entry is failed.entry and self._resumes(leg)) if begun else way.best()
        if fits is not None:
            return fits, 0.0
        again_s = (
            None
            if self._repeated or (begun and not self._resumes(failed))
            else pause_s(error, self._house.retries.draw)
        )
        return (failed, again_s) if again_s is not None else None

    def _resumes(self, leg: Leg) -> bool:
        """Whether its engine goes on with an answer that another one began."""
        member = self._house.member(leg.candidate.engine)
        return member is not None and self.thread is not None and self.thread.taken_up_by(member)

    def book(self, leg: Leg, meter: Meter, *, outcome: Outcome, status: int, why: str, region: str) -> None:
        """An attempt is over: its row, and what it took of what was set aside."""
        ticket, entry = self.inside, leg.entry
        row = meter.row(
            self._request,
            self.call,
            model=entry.name,
            outcome=outcome,
            status=status,
            why=why,
            place=Place(region, entry.rollout, entry.prompt_version, self._house.version(meter.candidate)),
            ticket=ticket,
        )
        self._elsewhere_s += row.total_s
        if outcome == "ok":
            self.answered = row
            self._admission.paced(row.engine, row.total_s)
        ticket.spend(row.prompt_tokens + row.completion_tokens, row.cost_micro_usd)
        if meter.price is not None:
            self.receipt.cost_micro_usd = self.spent_micro_usd
        self._record.attempt(row)

    @property
    def broke_off(self) -> EngineError | None:
        """Why the answer, of which some is there, is to be resumed. None: the next attempt is at all of it."""
        return self.failed if self.thread is not None and self.thread.begun else None

    def given(self, events: Sequence[Event]) -> Sequence[Event]:
        """An answer that was given before is given again: it is on record, and costs nothing."""
        meter, entry, receipt = Meter(NOBODY, self.attempts + 1), self.leg.entry, self.receipt
        priced = self._price(self.leg) is not None
        events = given_again(events, priced=priced)
        meter.see(events)
        if self.call.dialect.startswith("ollama.") and isinstance(end := events[-1], Finished):
            events = [*events[:-1], meter.timed(end)]
        receipt.cached, receipt.cost_micro_usd = True, 0 if priced else None
        place = Place(prompt=entry.prompt_version)
        row = meter.row(self._request, self.call, model=entry.name, outcome="ok", status=200, why="cache", place=place)
        self._record.attempt(row)
        return events

    def refuse(self, error: DrivetrainError, outcome: Outcome = "rejected") -> None:
        """A request that went no further is on record too."""
        meter, model = Meter(NOBODY, self.attempts + 1), self._request.model
        meter.reported = Usage()
        row = meter.row(self._request, self.call, model=model, outcome=outcome, status=error.status, why=error.code)
        self._record.attempt(row)

    async def _admit(self, leg: Leg, price: Price | None) -> None:
        bound = self._admission.rules(self.call.who, leg.entry, self.call.priority)
        before = self.inside if self._entry is not None else None
        self._comes_under(leg.entry.policy)
        if before is not None:
            self.deadlines = self.deadlines.within(time.monotonic(), self.policy.timeouts.total_s, self._whose_total)
            bound = before.uncounted(bound)
            before.close()  # first: it must not wait for a slot that it has itself
        ticket = await self._enter(bound, self._demand(leg, price, bound))
        if before is None:
            self._record.enter()
        else:
            self._before += before.micro_usd
        self._elsewhere_s += ticket.queued_s
        self._entry, self.inside = leg.entry, ticket

    async def _enter(self, bound: Sequence[Rule], wanted: Demand) -> Ticket:
        """Wait in line for no longer than there is time."""
        queue, first = self.policy.queue, self.deadlines.first
        if bound and (left_s := first.left_s()) < queue.timeout_s:
            queue = replace(queue, timeout_s=max(left_s, 0.001))
        try:
            return await self._admission.enter(bound, wanted, queue, self.receipt, call=self.call)
        except Busy as error:
            if first.left_s() > 0:
                raise
            raise first.passed("it waited for its turn") from error

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


def _nobody() -> list[Leg]:
    return []
