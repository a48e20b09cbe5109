"""Which engines may answer a request, best first, and why. Pure: no clock, no logging, chance and time handed in."""

from drivetrain.router.breaker import Breaker
from drivetrain.router.choice import Candidate, Considered, Decision, Standings, candidates
from drivetrain.router.estimates import Speed, Speedometer
from drivetrain.router.standing import UNKNOWN, USUAL, Facts, Standing, State

__all__ = [
    "UNKNOWN",
    "USUAL",
    "Breaker",
    "Candidate",
    "Considered",
    "Decision",
    "Facts",
    "Speed",
    "Speedometer",
    "Standing",
    "Standings",
    "State",
    "candidates",
]
