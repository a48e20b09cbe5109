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
    return work_of([(0, target.weight) for target in targets])


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


def work_of(able: Sequence[tuple[int, int]]) -> Work:
    """`able`: of each who is, the outstanding work and the weight."""
    works, weights = [each[0] for each in able], [each[1] for each in able]
    least = min([(work + 1) / weight for work, weight in able], default=0.0)
    return Work(outstanding=sum(works), weight=sum(weights), least=least)


PLAIN = Terms()  # by load and speed alone
