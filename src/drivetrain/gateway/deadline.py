"""When a request has to be done: the least of what its policy, its caller and the caller's client allow. Pure.

A client's own read timeout is how long it waits for bytes. Of an answer that comes whole that is all the time there is;
of a stream it is the time until the first content, for whoever reads one is shown that we are still here.
"""

import time

from drivetrain.errors import DeadlineExceeded
from drivetrain.gateway.meter import Call
from drivetrain.types import Value

TIMEOUT = "x-drivetrain-timeout-ms"
READ_TIMEOUT = "x-stainless-read-timeout"


class Deadline(Value, frozen=True, kw_only=True):
    at_s: float  # monotonic
    limit_s: float
    source: str  # what set it: a header's name; "" for the policy

    def left_s(self) -> float:
        return self.at_s - time.monotonic()

    def passed(self, during: str) -> DeadlineExceeded:
        """The error of a request that was not done in time; `during` tells what it was waiting for."""
        source = self.source or "timeouts.total_s of the policy"
        return DeadlineExceeded(f"the {self.limit_s:g} s that {source} allows are over; {during}")


class Deadlines(Value, frozen=True, kw_only=True):
    whole: Deadline  # for the whole answer
    first: Deadline  # until its first content; never later than `whole`

    def within(self, began_s: float, total_s: float) -> "Deadlines":
        """The same for an engine under another policy, whose time begins with it."""
        if began_s + total_s >= self.whole.at_s:
            return self
        own = Deadline(at_s=began_s + total_s, limit_s=total_s, source="")
        return Deadlines(whole=own, first=min(own, self.first, key=_at))


def deadlines(call: Call, began_s: float, total_s: float, *, stream: bool) -> Deadlines:
    """Of a request that began at this time of the monotonic clock; `total_s` is its policy's."""
    limit_s, source = total_s, ""
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


def _at(deadline: Deadline) -> float:
    return deadline.at_s
