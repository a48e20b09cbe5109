"""What a choice is made under beside load and speed: what the policy wants, and whom to ask about the targets."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from drivetrain.config.schema import Target
from drivetrain.router.roster import Roster, rank
from drivetrain.router.standing import Traits
from drivetrain.router.wish import Wish


class Work(NamedTuple):
    """What the able ones among some targets have in hand together."""

    outstanding: int
    weight: int  # of all of them; 0: nobody is able
    least: float  # outstanding work per weight of whoever has least, were it given one more


class Terms(NamedTuple):
    """For one request. Plain choices, by load and speed alone, have none."""

    wish: Wish
    roster: Roster
    traits: Callable[[Target], Traits]
    micro_usd: Callable[[Target], float]  # what this request is expected to cost there
    work: Callable[[Sequence[Target]], Work]  # may be a little old
    share: float = 0.0  # of recent requests that begin as this one

    def rank(self, target: Target) -> tuple[bool, int]:
        return rank(target, self.wish)

    def words(self, target: Target) -> str:
        """Where a target stands among the groups, for the record."""
        wish = self.wish
        if not wish.rule or (wish.tier is None and not wish.engines):
            return f"tier {target.tier}"
        return f"rule {wish.rule}, tier {target.tier}" if wish.prefers(target) else f"tier {target.tier}"


def work_of(targets: Sequence[Target], outstanding: Sequence[int]) -> Work:
    """`outstanding`: the work of each; below 0 for one that is not able."""
    total = weight = 0
    least = math.inf
    for target, work in zip(targets, outstanding, strict=True):
        if work >= 0:
            total += work
            weight += target.weight
            if (after := (work + 1) / target.weight) < least:
                least = after
    return Work(outstanding=total, weight=weight, least=least if weight else 0.0)
