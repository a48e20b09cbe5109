"""The engines that are left to a request: which one is asked next, and which are left alone until they said."""

import time
from collections.abc import Callable, Sequence

from drivetrain.errors import EngineError, EngineOverloaded, EngineUnavailable
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.pool import Member
from drivetrain.router import Candidate
from drivetrain.types import Value


class Leg(Value, frozen=True, kw_only=True):
    """One engine that may be tried."""

    entry: Entry  # whose policy holds
    candidate: Candidate


Members = Callable[[str], Member | None]  # by their names


def _any(leg: Leg) -> bool:
    return True


class Way:
    """Owns the legs that have not been tried, best first."""

    def __init__(self, members: Members, legs: Sequence[Leg], *, lone: bool) -> None:
        """`lone`: there is nobody but the first, and there never was."""
        self._members = members
        self._legs = list(legs)
        self.lone = lone

    @property
    def open(self) -> bool:
        """Whether one is left that could well be asked now."""
        return any(held_s(self._members, leg) <= 0 and able(self._members, leg) for leg in self._legs)

    def best(self, fit: Callable[[Leg], bool] = _any) -> Leg | None:
        """That may be asked now, of those that are `fit`: an engine that is able, if there is one, else one that may be
        away. `take` it then."""
        asked = [leg for leg in self._legs if held_s(self._members, leg) <= 0 and fit(leg)]
        return next((leg for leg in asked if able(self._members, leg)), asked[0] if asked else None)

    def beside(self, first: Leg) -> Leg | None:
        """One that may be asked as well as this one: another engine of the same entry, that is able. `take` it then."""
        return next((leg for leg in self._legs if self._goes_beside(leg, first)), None)

    def take(self, leg: Leg) -> None:
        """It is being tried."""
        self._legs.remove(leg)

    def _goes_beside(self, leg: Leg, first: Leg) -> bool:
        other = leg.entry is first.entry and leg.candidate.engine != first.candidate.engine
        return other and held_s(self._members, leg) <= 0 and able(self._members, leg)

    def soonest(self) -> tuple[Leg, float]:
        """Of engines that all want to be left alone, the one that may be asked first, and for how long it still may
        not."""
        wait_s, place = min((held_s(self._members, leg), place) for place, leg in enumerate(self._legs))
        return self._legs.pop(place), wait_s


def held_s(members: Members, leg: Leg) -> float:
    """For how long its engine still wants to be left alone; 0 or less: it may be asked."""
    member = members(leg.candidate.engine)
    return member.not_before_s - time.monotonic() if member is not None and member.not_before_s else 0.0


def able(members: Members, leg: Leg) -> bool:
    """Whether nothing is known against asking it."""
    member = members(leg.candidate.engine)
    return member is not None and member.standing(leg.candidate.model).able


def heed(members: Members, leg: Leg, error: EngineError) -> None:
    """Who is busy or away and says when to come back is left alone until then. Not so an engine of our own: it starts
    again by itself, and what one of its models asks is not for the others."""
    member = members(leg.candidate.engine)
    busy = isinstance(error, EngineOverloaded | EngineUnavailable)
    if busy and error.retry_after_s and member is not None and not member.embedded:
        member.rest(error.retry_after_s)
