"""Who is let in: reserves what a request takes at every limit and budget; where all slots are taken, it waits.

There is one line for each limit on requests at once, `lines` tells in which order. What lower classes leave free of a
limit is a limit of its own, which only they are under; they wait for it in the line of the limit that it belongs to.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from drivetrain.config.schema import Queue
from drivetrain.errors import BudgetExceeded, Busy, DrivetrainError, RateLimited, SharedStateAway
from drivetrain.gateway import rules
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.lines import Line, Seat
from drivetrain.gateway.meter import Call
from drivetrain.gateway.receipt import Receipt
from drivetrain.governance import Principal, Priority, Resource, Rule, Said
from drivetrain.policies import classes
from drivetrain.policies.classes import CLASSES, RANKS
from drivetrain.quota import Demand, Hold, Quota, Refusal, Standing

POLL_S = 0.1  # how often the first in line looks whether another process has freed a slot
FULL = "server busy, please try again.  maximum pending requests exceeded"
UNKNOWN_PACE_S = 30.0
JOINS = 1024  # are remembered
PACE_OVER = 16  # answers, about
UNITS = {"requests": "requests", "tokens": "tokens", "concurrency": "requests at once"}


class Told(Protocol):
    """Where it is told how many wait, and what was refused."""

    def enqueue(self) -> None: ...
    def dequeue(self) -> None: ...
    def refused(self, resource: Resource) -> None: ...


Paid = tuple[Line, float]  # the line that somebody came out of, and the tokens that the tenant was charged for there


class Ticket:
    """What one request holds while it is inside. `spend` after each attempt, `close` in a `finally`."""

    __slots__ = ("_admission", "admitted_s", "call", "hold", "micro_usd", "paid", "queued_s", "tokens")

    def __init__(
        self, admission: "Admission", hold: Hold | None, call: Call, *, queued_s: float = 0.0, paid: Paid | None = None
    ) -> None:
        self._admission = admission
        self.hold = hold  # None: there is nothing to count
        self.call = call
        self.queued_s = queued_s
        self.paid = paid  # None: it did not wait
        self.admitted_s = time.time()
        self.tokens = 0
        self.micro_usd = 0

    @property
    def reserved_micro_usd(self) -> int:
        return self.hold.demand.micro_usd if self.hold is not None else 0

    async def cover(self, micro_usd: int) -> None:
        """Set aside as much as the next attempt may cost, on top of what was spent. Raises `BudgetExceeded`."""
        if (refusal := await self._extend(micro_usd)) is not None:
            raise self._admission.refused(refusal)

    async def affords(self, micro_usd: int) -> bool:
        """As `cover`, for an attempt that is under way: whether so much is set aside now."""
        return await self._extend(micro_usd) is None

    async def _extend(self, micro_usd: int) -> Refusal | None:
        wanted = micro_usd + self.micro_usd
        if self.hold is None or wanted <= self.hold.demand.micro_usd:
            return None
        answer = await self._admission.quota.extend(self.hold, wanted - self.hold.demand.micro_usd)
        if isinstance(answer, Refusal):
            return answer
        self.hold = answer
        return None

    def uncounted(self, rules: Sequence[Rule]) -> Sequence[Rule]:
        """Those that do not count this request yet: it stays one, however many engines it goes to."""
        counted = {rule.id for rule in self.hold.rules if rule.resource == "requests"} if self.hold is not None else ()
        return [rule for rule in rules if rule.id not in counted]

    def spend(self, tokens: int, micro_usd: int) -> None:
        self.tokens += tokens
        self.micro_usd += micro_usd

    def close(self) -> None:
        if self.hold is not None:
            hold, self.hold = self.hold, None
            self._admission.settle(hold, self)


class Admission:
    """Owns the lines of those who wait."""

    def __init__(self, quota: Quota, told: Told, *, shared: bool = False) -> None:
        """`shared`: other processes take and free the same slots."""
        self.quota = quota
        self._told = told
        self._paces: dict[str, float] = {}  # engine → seconds that an answer of it takes
        self._poll_s = POLL_S if shared else None
        self._lines: dict[str, Line] = {}
        self._numbers = itertools.count()
        self._policies: dict[tuple[str, str], tuple[object, Mapping[Priority, tuple[Rule, ...]]]] = {}
        self._joins: dict[tuple[int, int, str], _Join] = {}  # by the identities of what they keep, and the model
        self._ceilings: dict[str, _Ceiling] = {}  # by the ids of their rules

    def rules(self, who: Principal, entry: Entry, priority: Priority = "default") -> Sequence[Rule]:
        """Everything that counts a request of this class for this entry."""
        place = (entry.policy_name, entry.name)
        known = self._policies.get(place)
        if known is None or known[0] is not entry.policy:
            known = self._policies[place] = (entry.policy, self._by_class(place, entry))
        bound = known[1][priority]
        return self._joined(who, entry.name, bound) if who.rules else bound

    def _joined(self, who: Principal, model: str, bound: tuple[Rule, ...]) -> Sequence[Rule]:
        """Those of the caller, then those of the policy: the same tuple each time, so that who counts them knows it."""
        place = (id(who.rules), id(bound), model)
        known = self._joins.get(place)
        if known is None:
            if len(self._joins) >= JOINS:
                self._joins.clear()
            known = self._joins[place] = _Join(who.rules, bound, (*rules.of_principal(who, model), *bound))
        return known.rules

    def met(self) -> Mapping[str, Rule]:
        """The rules of policies under which somebody has come, by their ids."""
        return {rule.id: rule for _, bound in self._policies.values() for rule in bound["system"]}

    def _by_class(self, place: tuple[str, str], entry: Entry) -> Mapping[Priority, tuple[Rule, ...]]:
        """The rules of a policy, with what each class leaves free for higher ones."""
        bound = rules.of_policy(*place, entry.policy)
        found = dict.fromkeys(RANKS, bound)
        for rule in bound:
            if rule.resource == "concurrency":
                for above, ceiling in classes.ceilings(rule, entry.policy.queue.reserved):
                    self._ceilings[ceiling.id] = _Ceiling(rule.id, RANKS[above], ceiling.amount)
                    for name in CLASSES[: RANKS[above]]:
                        found[name] = (*found[name], ceiling)
        return found

    async def enter(
        self, bound: Sequence[Rule], demand: Demand, queue: Queue, receipt: Receipt, *, call: Call
    ) -> Ticket:
        """Let a request in; close the ticket in a `finally`.

        Raises `RateLimited` with the exact time to wait, or where the caller's own terms have it wait no more,
        `BudgetExceeded`, or `Busy` if the line is full or slow.
        """
        if not bound:
            return Ticket(self, None, call)
        rule = self._behind(bound, RANKS[call.priority]) if self._lines else None
        if rule is None:
            answer = await self.quota.reserve(bound, demand)
            if isinstance(answer, Hold):
                if self._lines:
                    self._went_ahead(bound, RANKS[call.priority])
                return Ticket(self, answer, call)
            rule = self._slot_of(answer, receipt)
        rooms = [said for said in call.who.terms if said.terms.queue_size is not None]
        seat = Seat(next(self._numbers), call.priority, tenant_of(call.who), [said.id for said in rooms])
        wish = _Wish(bound, demand, queue, receipt, seat, rooms)
        began = time.perf_counter()
        self._told.enqueue()
        try:
            hold, paid = await self._wait(rule, wish)
        finally:
            self._told.dequeue()
        return Ticket(self, hold, call, queued_s=time.perf_counter() - began, paid=paid)

    def pace_s(self, engine: str) -> float:
        """What an answer may take at most by what was seen of this engine, to be set aside where time has a price."""
        return 2 * self._paces.get(engine, UNKNOWN_PACE_S)

    def paced(self, engine: str, total_s: float) -> None:
        known_s = self._paces.get(engine, total_s)
        self._paces[engine] = known_s + (total_s - known_s) / PACE_OVER

    def _behind(self, bound: Sequence[Rule], rank: int) -> Rule | None:
        """The first limit where somebody waits whose turn it is rather than that of one more of this rank."""
        for rule in bound:
            if (line := self._lines.get(rule.id)) is not None and not line.goes_ahead(rank):
                return rule
        return None

    def _went_ahead(self, bound: Sequence[Rule], rank: int) -> None:
        for rule in bound:
            if (line := self._lines.get(rule.id)) is not None:
                line.passed(rank)

    async def _wait(self, rule: Rule, wish: "_Wish") -> tuple[Hold, Paid]:
        try:
            async with asyncio.timeout(wish.queue.timeout_s):
                while True:
                    rule = self._home(rule, wish)
                    answer = await self._in_line(rule, wish)
                    if not isinstance(answer, Rule):
                        return answer
                    rule = answer
        except TimeoutError:
            waited_s = wish.queue.timeout_s
            raise self._busy(f"no slot of {rule.owner} within {waited_s:g} s", rule, wish.seat.rank) from None

    async def _in_line(self, rule: Rule, wish: "_Wish") -> tuple[Hold, Paid] | Rule:
        """What was reserved when this one's turn came; or the other limit that has to be waited for first."""
        line = self._lines.get(rule.id)
        if line is None:
            line = self._lines[rule.id] = Line()
        for said in wish.rooms:
            if line.waiting_of(said.id) >= (said.terms.queue_size or 0):
                self._tidy(rule.id)
                raise self._outside(said, rule, wish.seat.rank)
        if line.size >= wish.queue.size:
            self._make_room(line, rule, wish)
        turn = line.join(wish.seat)
        try:
            while True:
                await line.wait(turn, self._poll_s)
                answer = await self.quota.reserve(wish.bound, wish.demand)
                if isinstance(answer, Hold):
                    return answer, (line, line.served(turn))
                refused = self._slot_of(answer, wish.receipt)
                if self._home(refused, wish).id != rule.id:
                    return refused
                if refused.id != rule.id:
                    line.reached(refused.id, self._ceilings[refused.id].rank)
        finally:
            line.leave(turn)
            self._tidy(rule.id)

    def _make_room(self, line: Line, rule: Rule, wish: "_Wish") -> None:
        """Somebody who waits in a full line has to go, or the one who would join. Raises `Busy` in that case."""
        crowded_out = line.crowded_out(wish.seat)
        if crowded_out is None:
            self._tidy(rule.id)
            raise self._busy(FULL, rule, wish.seat.rank)
        line.shed(crowded_out, self._busy(FULL, rule, crowded_out.rank))

    def _busy(self, message: str, rule: Rule, rank: int) -> Busy:
        self._told.refused("concurrency")
        return Busy(message, retry_after_s=self._wait_s(rule, rank))

    def _outside(self, said: Said, rule: Rule, rank: int) -> RateLimited:
        """As many as may wait of this owner's requests do."""
        self._told.refused("concurrency")
        wait_s = self._wait_s(rule, rank)
        most = f"{said.owner} lets {said.terms.queue_size or 'none'} of its requests wait for one"
        message = f"no slot of {rule.owner} is free, and {most}; try again in {wait_s:.1f} s"
        return RateLimited(message, retry_after_s=wait_s)

    def _wait_s(self, rule: Rule, rank: int) -> float:
        """After how long one more of this rank could expect a slot, by how long answers take."""
        line = self._lines.get(rule.id) or Line()
        kept = [each.amount for each in self._ceilings.values() if each.limit == rule.id and rank < each.rank]
        usual_s = sum(self._paces.values()) / len(self._paces) if self._paces else 1.0
        return line.wait_s(rank, min(kept, default=rule.amount), usual_s)

    def _slot_of(self, answer: Refusal, receipt: Receipt) -> Rule:
        """The limit on requests at once that refused. Raises for what no waiting in line can help."""
        if answer.rule.resource != "concurrency" or answer.degraded:
            receipt.standings = (Standing(rule=answer.rule, remaining=0, reset_s=answer.wait_s or 0.0),)
            raise self.refused(answer)
        return answer.rule

    def refused(self, answer: Refusal) -> DrivetrainError:
        """Tells of it. The error for the caller."""
        self._told.refused(answer.rule.resource)
        return refusal(answer)

    def _home(self, rule: Rule, wish: "_Wish") -> Rule:
        """The limit in whose line a slot of this one is waited for."""
        if (found := self._ceilings.get(rule.id)) is None:
            return rule
        return next((other for other in wish.bound if other.id == found.limit), rule)

    def _tidy(self, rule_id: str) -> None:
        if (line := self._lines.get(rule_id)) is not None and not line.size:
            del self._lines[rule_id]

    def settle(self, hold: Hold, ticket: Ticket) -> None:
        self.quota.settle(hold, Demand(tokens=ticket.tokens, micro_usd=ticket.micro_usd))
        if self._lines:
            self._freed(hold, ticket)

    def _freed(self, hold: Hold, ticket: Ticket) -> None:
        seat = Seat(0, ticket.call.priority, tenant_of(ticket.call.who))
        service_s = max(0.0, time.time() - ticket.admitted_s)
        for rule in hold.rules:
            if (ceiling := self._ceilings.get(rule.id)) is not None:
                if (line := self._lines.get(ceiling.limit)) is not None:
                    line.freed(rule.id)
            elif (line := self._lines.get(rule.id)) is not None:
                charged = ticket.paid[1] if ticket.paid is not None and ticket.paid[0] is line else 0.0
                line.learn(seat, ticket.tokens - charged, tokens=ticket.tokens, service_s=service_s)
                line.freed(rule.id)


class _Ceiling(NamedTuple):
    """How much of a limit lower classes may have together."""

    limit: str  # id of its rule
    rank: int  # the lowest that is not under it
    amount: int


class _Join(NamedTuple):
    """The rules of a caller and of a policy together."""

    of_caller: Sequence[Rule]
    of_policy: Sequence[Rule]
    rules: tuple[Rule, ...]


class _Wish(NamedTuple):
    """What somebody who waits wants."""

    bound: Sequence[Rule]
    demand: Demand
    queue: Queue
    receipt: Receipt
    seat: Seat
    rooms: Sequence[Said]  # how many may wait in one line of those that it belongs to


def tenant_of(who: Principal) -> str:
    """Between whom turns are fair."""
    return who.team or who.key_id


def refusal(answer: Refusal) -> DrivetrainError:
    """The error that tells a caller which limit it met, and when to come back."""
    rule, wait_s = answer.rule, answer.wait_s
    if answer.degraded and rule.on_loss == "closed":
        return SharedStateAway(
            f"{rule.owner} cannot be counted: the shared state is away, and this limit is to be closed then",
            retry_after_s=wait_s or 1.0,
        )
    if rule.resource == "money":
        period = "in all" if rule.per == "total" else f"per {rule.per}"
        left = f"it has room again in {wait_s:.0f} s" if wait_s else "raise the budget to go on"
        return BudgetExceeded(
            f"{rule.owner} may spend ${dollars(rule.amount)} {period}: too little is left for this request; {left}",
            retry_after_s=wait_s,
        )
    per = f" per {rule.per}" if rule.per else ""
    wait_s = wait_s or 1.0
    return RateLimited(
        f"{rule.owner} allows {rule.amount} {UNITS[rule.resource]}{per}; try again in {wait_s:.1f} s",
        retry_after_s=wait_s,
    )


def dollars(micro_usd: int) -> str:
    """`50`, `0.015`: exact, without zeros that say nothing."""
    return f"{micro_usd / rules.MICRO:.6f}".rstrip("0").rstrip(".")
