"""Who is let in: reserves what a request takes at every limit and budget; where all slots are taken, it waits.

Waiting is first come, first served, in one line for each limit on requests at once.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from drivetrain.config.schema import Queue
from drivetrain.errors import BudgetExceeded, Busy, DrivetrainError, RateLimited, SharedStateAway
from drivetrain.gateway import rules
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.receipt import Receipt
from drivetrain.governance import Principal, Resource, Rule
from drivetrain.quota import Demand, Hold, Quota, Refusal, Standing

POLL_S = 0.1  # how often the first in line looks whether another process has freed a slot
FULL = "server busy, please try again.  maximum pending requests exceeded"
UNKNOWN_PACE_S = 30.0
PACE_OVER = 16  # answers, about
UNITS = {"requests": "requests", "tokens": "tokens", "concurrency": "requests at once"}


class Told(Protocol):
    """Where it is told how many wait, and what was refused."""

    def enqueue(self) -> None: ...
    def dequeue(self) -> None: ...
    def refused(self, resource: Resource) -> None: ...


class Ticket:
    """What one request holds while it is inside. `spend` after each attempt, `close` in a `finally`."""

    __slots__ = ("_admission", "admitted_s", "hold", "micro_usd", "queued_s", "tokens")

    def __init__(self, admission: "Admission", hold: Hold | None, queued_s: float) -> None:
        self._admission = admission
        self.hold = hold  # None: there is nothing to count
        self.queued_s = queued_s
        self.admitted_s = time.time()
        self.tokens = 0
        self.micro_usd = 0

    @property
    def reserved_micro_usd(self) -> int:
        return self.hold.demand.micro_usd if self.hold is not None else 0

    async def cover(self, micro_usd: int) -> None:
        """Set aside as much as the next attempt may cost, on top of what was spent. Raises `BudgetExceeded`."""
        wanted = micro_usd + self.micro_usd
        if self.hold is None or wanted <= self.hold.demand.micro_usd:
            return
        answer = await self._admission.quota.extend(self.hold, wanted - self.hold.demand.micro_usd)
        if isinstance(answer, Refusal):
            raise refusal(answer)
        self.hold = answer

    def spend(self, tokens: int, micro_usd: int) -> None:
        self.tokens += tokens
        self.micro_usd += micro_usd

    def close(self) -> None:
        if self.hold is not None:
            hold, self.hold = self.hold, None
            self._admission.settle(hold, Demand(tokens=self.tokens, micro_usd=self.micro_usd))


class Admission:
    """Owns the lines of those who wait."""

    def __init__(self, quota: Quota, told: Told, *, shared: bool = False) -> None:
        """`shared`: other processes take and free the same slots."""
        self.quota = quota
        self._told = told
        self._paces: dict[str, float] = {}  # engine → seconds that an answer of it takes
        self._poll_s = POLL_S if shared else None
        self._lines: dict[str, _Line] = {}
        self._policies: dict[tuple[str, str], tuple[object, tuple[Rule, ...]]] = {}

    def rules(self, who: Principal, entry: Entry) -> Sequence[Rule]:
        """Everything that counts a request for this entry."""
        place = (entry.policy_name, entry.name)
        known = self._policies.get(place)
        if known is None or known[0] is not entry.policy:
            known = self._policies[place] = (entry.policy, rules.of_policy(*place, entry.policy))
        if not who.rules:
            return known[1]
        return (*rules.of_principal(who, entry.name), *known[1])

    def met(self) -> Mapping[str, Rule]:
        """The rules of policies under which somebody has come, by their ids."""
        return {rule.id: rule for _, bound in self._policies.values() for rule in bound}

    async def enter(self, bound: Sequence[Rule], demand: Demand, queue: Queue, receipt: Receipt) -> Ticket:
        """Let a request in; close the ticket in a `finally`.

        Raises `RateLimited` with the exact time to wait, `BudgetExceeded`, or `Busy` if the line is full or slow.
        """
        if not bound:
            return Ticket(self, None, 0.0)
        rule = next((rule for rule in bound if rule.id in self._lines), None) if self._lines else None
        if rule is None:
            answer = await self.quota.reserve(bound, demand)
            if isinstance(answer, Hold):
                return Ticket(self, answer, 0.0)
            rule = self._slot_of(answer, receipt)
        began = time.perf_counter()
        self._told.enqueue()
        try:
            async with asyncio.timeout(queue.timeout_s):
                hold = await self._wait(rule, bound, demand, queue, receipt)
        except TimeoutError:
            self._told.refused("concurrency")
            raise Busy(f"no slot of {rule.owner} within {queue.timeout_s:g} s", retry_after_s=1.0) from None
        finally:
            self._told.dequeue()
        return Ticket(self, hold, time.perf_counter() - began)

    def pace_s(self, engine: str) -> float:
        """What an answer may take at most by what was seen of this engine, to be set aside where time has a price."""
        return 2 * self._paces.get(engine, UNKNOWN_PACE_S)

    def paced(self, engine: str, total_s: float) -> None:
        known_s = self._paces.get(engine, total_s)
        self._paces[engine] = known_s + (total_s - known_s) / PACE_OVER

    async def _wait(self, rule: Rule, bound: Sequence[Rule], demand: Demand, queue: Queue, receipt: Receipt) -> Hold:
        while True:
            line = self._lines.get(rule.id)
            if line is None:
                line = self._lines[rule.id] = _Line()
            if len(line.turns) >= queue.size:
                self._tidy(rule.id)
                self._told.refused("concurrency")
                raise Busy(FULL, retry_after_s=1.0)
            with line.join() as turn:
                try:
                    elsewhere = await self._at_turn(line, turn, rule, bound, demand, receipt)
                finally:
                    line.leave(turn)
                    self._tidy(rule.id)
            if isinstance(elsewhere, Hold):
                return elsewhere
            rule = elsewhere

    async def _at_turn(
        self, line: "_Line", turn: "_Turn", rule: Rule, bound: Sequence[Rule], demand: Demand, receipt: Receipt
    ) -> Hold | Rule:
        """What was reserved when this one's turn came; or the other limit that has to be waited for first."""
        while True:
            await line.wait(turn, self._poll_s)
            answer = await self.quota.reserve(bound, demand)
            if isinstance(answer, Hold):
                return answer
            if (other := self._slot_of(answer, receipt)).id != rule.id:
                return other

    def _slot_of(self, answer: Refusal, receipt: Receipt) -> Rule:
        """The limit on requests at once that refused. Raises for what no waiting in line can help."""
        if answer.rule.resource != "concurrency" or answer.degraded:
            receipt.standings = (Standing(rule=answer.rule, remaining=0, reset_s=answer.wait_s or 0.0),)
            self._told.refused(answer.rule.resource)
            raise refusal(answer)
        return answer.rule

    def _tidy(self, rule_id: str) -> None:
        if (line := self._lines.get(rule_id)) is not None and not line.turns:
            del self._lines[rule_id]

    def settle(self, hold: Hold, spent: Demand) -> None:
        self.quota.settle(hold, spent)
        if self._lines:
            for rule in hold.rules:
                if (line := self._lines.get(rule.id)) is not None:
                    line.freed()


class _Turn(asyncio.Event):
    """Set when it makes sense to try."""

    def __enter__(self) -> "_Turn":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Line:
    """Those who wait for a slot of one limit, in the order in which they came."""

    def __init__(self) -> None:
        self.turns: deque[_Turn] = deque()

    def join(self) -> _Turn:
        turn = _Turn()
        self.turns.append(turn)
        if len(self.turns) == 1:
            turn.set()  # a slot may have come free since it was refused
        return turn

    async def wait(self, turn: _Turn, poll_s: float | None) -> None:
        """Until a slot may be free and it is this one's turn."""
        while True:
            try:
                async with asyncio.timeout(poll_s):
                    await turn.wait()
            except TimeoutError:
                if self.turns[0] is not turn:
                    continue
            turn.clear()
            return

    def freed(self) -> None:
        if self.turns:
            self.turns[0].set()

    def leave(self, turn: _Turn) -> None:
        self.turns.remove(turn)
        self.freed()


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
            f"{rule.owner} may spend ${dollars(rule.amount)} {period}, and that is used up; {left}",
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
