"""When a request has to be done: the least of what its policy, its key, its caller and the caller's client allow. Pure.

A client's own read timeout is how long it waits for bytes. Of an answer that comes whole that is all the time there is;
of a stream it is the time until the first content, for whoever reads one is shown that we are still here.
"""

import time

from drivetrain.errors import ConnectTimeout, DeadlineExceeded
from drivetrain.gateway.meter import Call
from drivetrain.policies.terms import Own
from drivetrain.types import Value

TIMEOUT = "x-drivetrain-timeout-ms"
READ_TIMEOUT = "x-stainless-read-timeout"


class Deadline(Value, frozen=True, kw_only=True):
    at_s: float  # monotonic
    limit_s: float
    source: str  # what set it: a header's name, or "total_s of key 'ci'"; "" for the policy

    def left_s(self) -> float:
        return self.at_s - time.monotonic()

    def passed(self, during: str) -> DeadlineExceeded:
        """The error of a request that was not done in time; `during` tells what it was waiting for."""
        source = self.source or "timeouts.total_s of the policy"
        return DeadlineExceeded(f"the {self.limit_s:g} s that {source} allows are over; {during}")


class Deadlines(Value, frozen=True, kw_only=True):
    whole: Deadline  # for the whole answer
    first: Deadline  # until its first content; never later than `whole`

    def within(self, began_s: float, total_s: float, whose: str = "") -> "Deadlines":
        """The same for an engine under another policy, whose time begins with it."""
        if began_s + total_s >= self.whole.at_s:
            return self
        own = Deadline(at_s=began_s + total_s, limit_s=total_s, source=whose)
        return Deadlines(whole=own, first=min(own, self.first, key=_at))


def deadlines(call: Call, began_s: float, total_s: float, *, stream: bool, whose: str = "") -> Deadlines:
    """Of a request that began at this time of the monotonic clock. `whose` word `total_s` is: "" for its policy's."""
    limit_s, source = total_s, whose
    if call.timeout_s is not None and call.timeout_s < limit_s:
        limit_s, source = call.timeout_s, TIMEOUT
    read_s = call.read_timeout_s
    if read_s is None or read_s >= limit_s:
        whole = Deadline(at_s=began_s + limit_s, limit_s=limit_s, source=source)
        return Deadlines(whole=whole, first=whole)
    first = Deadline(at_s=began_s + read_s, limit_s=read_s, source=READ_TIMEOUT)
    if not stream:
        return Deadlines(whole=first, first=first)
    return Deadlines(whole=Deadline(at_s=began_s + limit_s, limit_s=limit_s, source=source), first=first)


def overdue(own: Own | None, timeout: str, during: str) -> DeadlineExceeded | None:
    """The error of a caller whose own word this timeout was. None where it was the policy's: the engine is to blame."""
    whose = own.whose(timeout) if own is not None else ""
    if own is None or not whose:
        return None
    limit_s: float = getattr(own.policy.timeouts, timeout)
    return Deadline(at_s=time.monotonic(), limit_s=limit_s, source=whose).passed(during)


def unconnected(own: Own | None, error: ConnectTimeout, engine: str) -> DeadlineExceeded | None:
    """As `overdue`, of a connection. An engine whose entry leaves less time than the caller is to blame as well."""
    if own is None or error.within_s < own.policy.timeouts.connect_s:
        return None
    return overdue(own, "connect_s", f"engine {engine!r} was asked and had not taken a connection")


def _at(deadline: Deadline) -> float:
    return deadline.at_s
