"""What a choice is made under beside load and speed: what the policy wants, and whom to ask about the targets."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from drivetrain.config.schema import Target
from drivetrain.router.roster import rank
from drivetrain.router.wish import NOTHING, Wish


class Work(NamedTuple):
    """What the able ones among some targets have in hand together."""

    outstanding: int
    weight: int  # of all of them; 0: nobody is able
    least: float  # outstanding work per weight of whoever has least, were it given one more


def _unpriced(target: Target) -> float | None:
    return None


def _idle(targets: Sequence[Target]) -> Work:
    return work_of([0] * len(targets), [target.weight for target in targets])


class Terms(NamedTuple):
    """For one request."""

    wish: Wish = NOTHING
    micro_usd: Callable[[Target], float | None] = _unpriced  # what it is expected to cost there; None: not looked at
    work: Callable[[Sequence[Target]], Work] = _idle  # may be a little old
    share: float = 0.0  # of recent requests that begin as this one

    def rank(self, target: Target) -> tuple[bool, int]:
        return rank(target, self.wish)

    def words(self, target: Target) -> str:
        """Where a target stands among the groups, for the record."""
        wish = self.wish
        if not wish.rule or (wish.tier is None and not wish.engines):
            return f"tier {target.tier}"
        return f"rule {wish.rule}, tier {target.tier}" if wish.prefers(target) else f"tier {target.tier}"


def work_of(works: Sequence[int], weights: Sequence[int]) -> Work:
    """Of each who is able, the outstanding work and the weight."""
    if not works:
        return Work(outstanding=0, weight=0, least=0.0)
    if min(weights) == max(weights):
        least = (min(works) + 1) / weights[0]
    else:
        least = min([(work + 1) / weight for work, weight in zip(works, weights, strict=True)])
    return Work(outstanding=sum(works), weight=sum(weights), least=least)


PLAIN = Terms()  # by load and speed alone
