"""Those who wait for a slot of one limit on requests at once: whose turn it is, who has to go when the line is full,
and how long the wait is going to be.

Highest class first, within a class fair between tenants, among equals in the order in which they came.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from drivetrain.errors import Busy
from drivetrain.governance import Priority
from drivetrain.policies import classes
from drivetrain.policies.classes import RANKS
from drivetrain.policies.fairness import Fair

SEEN_OVER = 16  # answers, about


class Seat:
    """A place in a line: it goes along when a request has to wait for another limit first."""

    __slots__ = ("number", "owners", "rank", "tenant")

    def __init__(self, number: int, priority: Priority, tenant: str, owners: Sequence[str] = ()) -> None:
        self.number = number  # lower for who came earlier
        self.rank = RANKS[priority]
        self.tenant = tenant  # "" where nobody has to say who asks
        self.owners = owners  # ids of those whose requests that wait are counted


class Turn(asyncio.Event):
    """Set when it makes sense to try."""

    def __init__(self, seat: Seat) -> None:
        super().__init__()
        self.number, self.rank, self.tenant, self.owners = seat.number, seat.rank, seat.tenant, seat.owners
        self.shed: Busy | None = None  # had to make room


class Line:
    """Owns the order of those who wait, and what is known of the answers that free their slots.

    Whoever's turn it is may take any slot that somebody else here could take; so it is enough to wake one.
    """

    __slots__ = ("_classes", "_full", "_lowest", "_owners", "_passed", "_service_s", "_tokens", "size")

    def __init__(self) -> None:
        self.size = 0
        self._owners: Counter[str] = Counter()  # how many wait of whom they are counted for
        self._classes: tuple[Fair[Turn], ...] = tuple(Fair() for _ in RANKS)
        self._passed = [0] * len(RANKS)  # by rank: turns of higher classes in a row that those who wait have seen
        self._full: dict[str, int] = {}  # ceilings without room, and the lowest rank that they do not bind
        self._lowest = 0  # the lowest rank that none of them binds
        self._service_s: float | None = None  # how long an answer has its slot
        self._tokens = 1.0  # that it takes

    def join(self, seat: Seat) -> Turn:
        turn = Turn(seat)
        self._classes[turn.rank].add(turn)
        self.size += 1
        self._owners.update(turn.owners)
        if self.head() is turn:
            turn.set()  # a slot may have come free since it was refused, or be one that only its class may have
        return turn

    def leave(self, turn: Turn) -> None:
        if self._classes[turn.rank].remove(turn):
            self._left(turn)
        self.wake()

    def head(self) -> Turn | None:
        """Whose turn it is; None if all who wait are of classes that have what they may have."""
        rank = classes.turn(self._waiting(), self._passed, self._lowest)
        return None if rank is None else self._classes[rank].first()

    def wake(self) -> None:
        if self.size and (head := self.head()) is not None:
            head.set()

    async def wait(self, turn: Turn, poll_s: float | None) -> None:
        """Until a slot may be free and it is this one's turn. Raises `Busy` if it had to make room."""
        while True:
            try:
                async with asyncio.timeout(poll_s):
                    await turn.wait()
            except TimeoutError:
                self._forget()  # another process may have made room
                if self.head() is not turn:
                    continue
            if turn.shed is not None:
                raise turn.shed
            turn.clear()
            return

    def goes_ahead(self, rank: int) -> bool:
        """Whether one more of this rank would have the turn at once."""
        waiting = self._waiting()
        if waiting[rank]:
            return False
        waiting[rank] = 1
        return classes.turn(waiting, self._passed, self._lowest) == rank

    def passed(self, rank: int) -> None:
        """One of this rank has got a slot before those who wait."""
        self._passed = classes.passing(self._waiting(), self._passed, rank, self._lowest)

    def served(self, turn: Turn) -> float:
        """This one has got a slot. Returns for how many tokens its tenant is charged by now."""
        self.passed(turn.rank)
        self._classes[turn.rank].serve(turn.tenant, self._tokens)
        return self._tokens

    def freed(self, rule_id: str) -> None:
        """There is room in this limit, or below this ceiling of it."""
        if rule_id in self._full:
            del self._full[rule_id]
            self._lowest = max(self._full.values(), default=0)
        self.wake()

    def reached(self, rule_id: str, rank: int) -> None:
        """All below this rank have what they may have together; the turn goes to somebody else."""
        self._full[rule_id] = rank
        self._lowest = max(self._lowest, rank)
        self.wake()

    def learn(self, seat: Seat, owed: float, *, tokens: int, service_s: float) -> None:
        """An answer is over, and this is what it took; the tenant is charged what it still owes."""
        self._classes[seat.rank].charge(seat.tenant, owed)
        known_s = service_s if self._service_s is None else self._service_s
        self._service_s = known_s + (service_s - known_s) / SEEN_OVER
        self._tokens += (tokens - self._tokens) / SEEN_OVER

    def crowded_out(self, seat: Seat) -> Turn | None:
        """Who has to go if this one is to join: the newest of the lowest class, of the tenant with most waiting there.
        None if that is the one who would join."""
        for rank, waiting in enumerate(self._classes):
            if rank == seat.rank:
                return waiting.last(joining=seat.tenant)
            if waiting.size:
                return waiting.last()
        return None

    def shed(self, turn: Turn, reason: Busy) -> None:
        """It makes room for another."""
        turn.shed = reason
        self._classes[turn.rank].remove(turn)
        self._left(turn)
        turn.set()

    def waiting_of(self, owner: str) -> int:
        """How many requests wait here of somebody for whom they are counted."""
        return self._owners[owner]

    def _left(self, turn: Turn) -> None:
        self.size -= 1
        for owner in turn.owners:
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]

    def wait_s(self, rank: int, slots: int, usual_s: float) -> float:
        """How long one more of this rank is going to wait. `usual_s`: for an answer, if none has been seen here."""
        ahead = sum(waiting.size for waiting in self._classes[rank:])
        return classes.wait_s(ahead, slots, usual_s if self._service_s is None else self._service_s)

    def _waiting(self) -> list[int]:
        return [waiting.size for waiting in self._classes]

    def _forget(self) -> None:
        self._full.clear()
        self._lowest = 0
