"""Who is next among those of one class: turns go round between tenants by the tokens that each has been served.

Start-time fair queuing (Goyal, Vin, Cheng: SIGCOMM 1996) with tokens for bytes: each tenant has a counter, the lowest
has the next turn, and one that comes anew begins where the others are, so that nobody saves up turns by staying away.
Who came first is first among the requests of a tenant, and among tenants that were served the same.
"""

import heapq
from bisect import insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

SPARE_HEADS = 64  # outdated places of a heap, beside as many as there are others
MOST_TENANTS = 1024  # counters that are kept of tenants that have nobody waiting


class Numbered(Protocol):
    @property
    def number(self) -> int:
        """Lower for who came earlier."""

    @property
    def tenant(self) -> str: ...


Waiter = TypeVar("Waiter", bound=Numbered)

_number = attrgetter("number")


class Fair(Generic[Waiter]):
    """Owns the order of those who wait in one class."""

    __slots__ = ("_heads", "_level", "_served", "_waiting", "size")

    def __init__(self) -> None:
        self.size = 0
        self._waiting: dict[str, list[Waiter]] = {}  # by tenant, in the order of numbers; no list is empty
        self._served: dict[str, float] = {}  # tokens, by tenant
        self._heads: list[tuple[float, int, str]] = []  # heap: served, number of the first, tenant
        self._level = 0.0  # what the tenant of the last turn had been served before it

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for waiters in self._waiting.values() for waiter in waiters)

    def add(self, waiter: Waiter) -> None:
        tenant = waiter.tenant
        waiting = self._waiting.get(tenant)
        if waiting is None:
            self._waiting[tenant] = [waiter]
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._level)
            self._put(tenant)
        else:
            insort(waiting, waiter, key=_number)
            if waiting[0] is waiter:
                self._put(tenant)
        self.size += 1

    def remove(self, waiter: Waiter) -> bool:
        """Whether it was here."""
        waiting = self._waiting.get(waiter.tenant)
        if waiting is None or waiter not in waiting:
            return False
        was_first = waiting[0] is waiter
        waiting.remove(waiter)
        self.size -= 1
        if not waiting:
            del self._waiting[waiter.tenant]
            self._tidy()
        elif was_first:
            self._put(waiter.tenant)
        return True

    def first(self) -> Waiter | None:
        """Whose turn it is."""
        heads = self._heads
        while heads:
            served, number, tenant = heads[0]
            waiting = self._waiting.get(tenant)
            if waiting is not None and waiting[0].number == number and self._served[tenant] == served:
                return waiting[0]
            heapq.heappop(heads)
        return None

    def last(self, joining: str | None = None) -> Waiter | None:
        """Who goes if one has to: the newest of the tenant with most waiting. None if nobody waits, or if that is the
        tenant `joining`, one more of whom is about to join."""
        if not self.size:
            return None
        most = max(self._waiting.values(), key=lambda waiting: (len(waiting), waiting[-1].number))
        if joining is not None and len(self._waiting.get(joining, ())) + 1 >= len(most):
            return None
        return most[-1]

    def serve(self, tenant: str, tokens: float) -> None:
        """It has had a turn, for so many tokens as far as is known."""
        self._level = max(self._level, self._served.get(tenant, 0.0))
        self.charge(tenant, tokens)

    def charge(self, tenant: str, tokens: float) -> None:
        """So many more have been served, or fewer than was thought."""
        self._served[tenant] = self._served.get(tenant, self._level) + tokens
        if tokens and tenant in self._waiting:
            self._put(tenant)

    def _put(self, tenant: str) -> None:
        """Its counter or its first has changed."""
        if len(self._heads) > 2 * len(self._waiting) + SPARE_HEADS:
            self._heads = [(self._served[each], waiting[0].number, each) for each, waiting in self._waiting.items()]
            heapq.heapify(self._heads)
        else:
            heapq.heappush(self._heads, (self._served[tenant], self._waiting[tenant][0].number, tenant))

    def _tidy(self) -> None:
        if len(self._served) > MOST_TENANTS + len(self._waiting):
            self._served = {tenant: self._served[tenant] for tenant in self._waiting}
