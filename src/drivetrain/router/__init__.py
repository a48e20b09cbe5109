"""Which engines may answer a request, best first, and why. Pure: no clock, no logging, chance and time handed in."""

from drivetrain.router.breaker import Breaker
from drivetrain.router.case import Case, Standings
from drivetrain.router.choice import Candidate, Decision, candidates, only
from drivetrain.router.estimates import Speed, Speedometer
from drivetrain.router.heat import Heat
from drivetrain.router.record import Considered
from drivetrain.router.roster import Roster
from drivetrain.router.standing import DRAINED, ORDINARY, UNKNOWN, USUAL, Facts, Standing, State, Traits
from drivetrain.router.terms import PLAIN, Terms, Work, work_of
from drivetrain.router.wish import Wish, wish

__all__ = [
    "DRAINED",
    "ORDINARY",
    "PLAIN",
    "UNKNOWN",
    "USUAL",
    "Breaker",
    "Candidate",
    "Case",
    "Considered",
    "Decision",
    "Facts",
    "Heat",
    "Roster",
    "Speed",
    "Speedometer",
    "Standing",
    "Standings",
    "State",
    "Terms",
    "Traits",
    "Wish",
    "Work",
    "candidates",
    "only",
    "wish",
    "work_of",
]
