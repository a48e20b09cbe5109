"""Policies as they are for callers with terms of their own, reckoned once for each policy and caller."""

from collections.abc import Sequence

from drivetrain.config.schema import Policy
from drivetrain.governance import Said
from drivetrain.policies.terms import Own, own

MOST = 10_000  # that are known at once

_Known = tuple[Sequence[Said], Policy, Own]


class Policies:
    """Owns what was reckoned. Callers and policies are told apart by what they are, not by what they hold: a key that
    is read again has terms anew, and so has a policy of another configuration."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}  # what it is of is kept beside it: no other has its identity

    def under(self, policy: Policy, said: Sequence[Said]) -> Own:
        place = (id(policy), id(said))
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = (said, policy, own(policy, said))
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return known[2]
