"""What has been used of every limit and budget: reserve before the work, settle after it, refund what was too much.

Three implementations of one protocol: `memory`, for one process, `redis`, for any number of them, and `leased`, for
those that are far from what they share.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from drivetrain.governance import Rule
from drivetrain.types import Value

__all__ = ["Demand", "Hold", "Quota", "Refusal", "Standing"]


class Demand(Value, frozen=True, kw_only=True):
    """What a request takes; or several together, of which each takes one slot."""

    requests: int = 1
    tokens: int = 0
    micro_usd: int = 0


class Standing(Value, frozen=True, kw_only=True):
    """How a rule stood after a reservation: what callers are told in `x-ratelimit-*`."""

    rule: Rule
    remaining: int
    reset_s: float  # until all of it is free again, seconds


class Hold(Value, frozen=True, kw_only=True):
    """What is set aside for one request. `settle` it, whatever happens; if nobody does, its lease ends."""

    id: str
    rules: Sequence[Rule]
    demand: Demand
    at_s: float  # by the quota's clock; a refund goes where the reservation was
    standings: Sequence[Standing] = ()
    degraded: bool = False  # the shared state was away: this is a local reservation

    def with_more(self, micro_usd: int, *, degraded: bool = False) -> "Hold":
        """The same, once more money is set aside."""
        demand = replace(self.demand, micro_usd=self.demand.micro_usd + micro_usd)
        return replace(self, demand=demand, degraded=self.degraded or degraded)


class Refusal(Value, frozen=True, kw_only=True):
    """Nothing was set aside."""

    rule: Rule  # the one that has to be waited for longest
    wait_s: float | None  # until the same request would be let in; None: no time would help, or none is known
    degraded: bool = False


class Quota(Protocol):
    @property
    def away(self) -> bool:
        """Whether the shared state cannot be asked now."""

    async def reserve(self, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        """Set aside one request and its demand at every rule, or nothing at all. Waits for the shared state no longer
        than its deadline. A soft rule never refuses."""

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        """Set aside more money: the next attempt is dearer. On a refusal the hold stays as it was."""

    def settle(self, hold: Hold, spent: Demand) -> None:
        """The request is over and this is what it took; the slot is free, what was too much goes back, what was too
        little is taken. Never waits, never raises. A second time does nothing."""

    async def spent(self, rules: Sequence[Rule]) -> Mapping[str, int]:
        """By the rule's id, what is used and reserved of it now: for `/admin/v1` and the command line."""

    async def run(self) -> None:
        """Keep leases alive, hand in what was settled, notice when the shared state is back. Until cancelled."""
