"""All that a choice is made from, in one value."""

from collections.abc import Callable
from typing import NamedTuple

from drivetrain.config.schema import Target
from drivetrain.router.roster import Roster
from drivetrain.router.standing import Facts, Standing
from drivetrain.router.terms import Terms

Standings = Callable[[Target], Standing]
Draw = Callable[[], float]


class Case(NamedTuple):
    """Of one request."""

    roster: Roster
    standings: Standings  # how a target's engine stands now
    draw: Draw  # gives uniform numbers in [0, 1)
    facts: Facts
    terms: Terms
