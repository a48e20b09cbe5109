"""Settlements on their way to Redis: handed in together, kept while it is away, never twice."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold
from drivetrain.quota.fallback import Fallback
from drivetrain.quota.spots import PURSE, RATE, SLOT, Spot, encode
from drivetrain.quota.wire import Call, Wire

KEPT = 100_000  # while Redis is away; of older ones, leases end by themselves, and the ledger has the money
TOGETHER = 32  # in one call: a script has Redis for itself

Line = tuple[int, int, int, bool, float, float]  # kind, reserved, spent, whether a ledger knows it, a, b


class Live:
    """A request that is inside: what it has in Redis, and in fallbacks."""

    __slots__ = ("at_s", "costs", "counted", "growing", "held", "id", "local", "micro_usd", "rules", "spots")

    def __init__(self, name: str, rules: Sequence[Rule], spots: Sequence[Spot], demand: Demand) -> None:
        self.id = name
        self.rules = rules
        self.spots = spots
        self.costs = [spot.cost(demand) for spot in spots]
        self.at_s = 0.0
        self.counted = True  # in Redis: its request and its tokens
        self.held = 0  # reserved in Redis, micro-dollars
        self.growing = False  # it is not known just now how much is reserved
        self.micro_usd = demand.micro_usd  # reserved wherever it was
        self.local: list[tuple[Fallback, Hold]] = []

    def money(self, micro_usd: int) -> "Live":
        """The budgets of it alone, for so much."""
        part = [(rule, spot) for rule, spot in zip(self.rules, self.spots, strict=True) if spot.kind >= PURSE]
        return Live(self.id, [rule for rule, _ in part], [spot for _, spot in part], Demand(micro_usd=micro_usd))

    def leases(self) -> Iterator[tuple[Spot, int]]:
        """What Redis frees by itself unless it is renewed."""
        for spot in self.spots:
            if spot.kind == SLOT or (spot.kind >= PURSE and self.held and not self.growing):
                yield spot, self.held

    def lines(self, spent: Demand, ledger: bool) -> Iterator[tuple[Spot, Line]]:
        """What is to be changed in Redis now that it is over."""
        for spot, cost in zip(self.spots, self.costs, strict=True):
            if spot.kind >= PURSE:
                yield spot, (spot.kind, self.held, spent.micro_usd, ledger, spot.a, spot.b)
            elif spot.kind == SLOT:
                yield spot, (SLOT, 0, 0, False, 0, 0)
            elif difference := spot.cost(spent) - (cost if self.counted else 0):
                yield spot, (RATE, 0, difference, False, spot.a, 0)

    def undone(self) -> Iterator[tuple[Spot, Line]]:
        """What is to be changed if it was let in, and nobody was there any more."""
        for spot, cost in zip(self.spots, self.costs, strict=True):
            if spot.kind == RATE:
                yield spot, (RATE, 0, -cost, False, spot.a, 0)
            else:
                yield spot, (spot.kind, cost, 0, False, spot.a, spot.b)


class Return:
    __slots__ = ("at_s", "first", "id", "lines")

    def __init__(self, live: Live, lines: Iterator[tuple[Spot, Line]]) -> None:
        self.id = live.id
        self.at_s = live.at_s
        self.lines = list(lines)
        self.first = True  # it cannot have been handed in before


class Returns:
    """Owns what has not been handed in."""

    def __init__(self, wire: Wire, stamp: Callable[[], float | bool], lost: Callable[[], object]) -> None:
        self._wire = wire
        self._stamp = stamp
        self._lost = lost
        self._kept: deque[Return] = deque(maxlen=KEPT)

    def add(self, back: Return) -> None:
        if back.lines:
            self._kept.append(back)

    def calls(self) -> Iterator[Call]:
        """All that is kept, as calls that are about to be sent; what fails is kept again."""
        while self._kept:
            together = [self._kept.popleft() for _ in range(min(TOGETHER, len(self._kept)))]
            keys = [key for back in together for spot, _ in back.lines for key in spot.keys]
            told = [(back.id, back.at_s, back.first, [line for _, line in back.lines]) for back in together]
            call = Call("settle", keys, encode((self._stamp(), told)))
            call.answer.add_done_callback(partial(self._handed_in, together, call))
            yield call

    def flush(self) -> None:
        for call in self.calls():
            self._wire.send(call)

    def _handed_in(self, together: Sequence[Return], call: Call, answer: object) -> None:
        if call.answer.cancelled() or call.answer.exception() is None:
            return
        for back in reversed(together):
            back.first = back.first and not call.sent
            self._kept.appendleft(back)
        self._lost()
