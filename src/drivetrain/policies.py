"""Whether a request may go ahead now. Pure arithmetic over a snapshot: no clock, no state.

Rates follow the generic cell rate algorithm: one number per limit, the *theoretical arrival time*, says everything. A
limit of N a minute lets N through at once and then one every 60/N s; a refusal knows exactly when to come back.
"""

from drivetrain.types import Value

MINUTE_S = 60.0


class Verdict(Value, frozen=True, kw_only=True):
    allowed: bool
    arrival_s: float  # the limit's new theoretical arrival time
    wait_s: float = 0.0  # if refused: how long until the same request would be allowed


def take(arrival_s: float, now_s: float, *, per_minute: int, cost: float = 1.0) -> Verdict:
    """Take `cost` units from a limit of `per_minute`, whose theoretical arrival time is `arrival_s`.

    A cost above the whole limit is let through when the limit is untouched: it could never pass otherwise.
    """
    interval_s = MINUTE_S / per_minute
    start_s = max(arrival_s, now_s)
    due_s = start_s + cost * interval_s
    ahead_s = due_s - now_s - max(MINUTE_S, cost * interval_s)
    if ahead_s > 1e-9:
        return Verdict(allowed=False, arrival_s=arrival_s, wait_s=ahead_s)
    return Verdict(allowed=True, arrival_s=due_s)


def charge(arrival_s: float, now_s: float, *, per_minute: int, cost: float) -> float:
    """The arrival time after a cost that is known only afterwards (tokens): the limit may go into debt."""
    return max(arrival_s, now_s) + cost * MINUTE_S / per_minute


def debt_s(arrival_s: float, now_s: float) -> float:
    """Seconds until a limit that was charged afterwards lets the next request through; 0 if it does now."""
    return max(0.0, arrival_s - now_s - MINUTE_S)
