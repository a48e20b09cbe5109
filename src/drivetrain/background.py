"""What goes on beside the requests, and outlasts its own mistakes: an error that nobody foresaw is logged with the name
of what met it, and takes nothing else down."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from drivetrain.errors import DrivetrainError

PAUSES_S = (1.0, 60.0)  # before something that broke begins anew: at first, and at most
Work = Callable[[], Awaitable[None]]
Item = TypeVar("Item")
BROKE = "%s: an error that nobody foresaw; the rest goes on"

log = logging.getLogger("drivetrain.background")


async def lasting(
    name: str,
    work: Work,
    *,
    pauses_s: tuple[float, float] = PAUSES_S,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ended: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Until `work` returns, this is cancelled, or it has broken and `ended` tells that it is not to go on. Each time
    that it breaks it begins anew, after a pause that doubles unless it went well for longer than the longest one. What
    `work` had begun must have ended by the time it breaks. Who pauses when the end comes has one last try.
    """
    least_s, most_s = pauses_s
    pause_s = least_s
    while True:
        began_s = clock()
        if await survived(name, work):
            return
        if clock() - began_s > most_s:
            pause_s = least_s
        if ended():
            return
        await sleep(pause_s)
        pause_s = min(2 * pause_s, most_s)


async def survived(name: str, work: Work) -> bool:
    """Whether it went well: something that is done once, and is not worth the rest."""
    try:
        await work()
    except Exception:
        log.exception(BROKE, name)
        return False
    return True


def sound(name: str, work: Callable[[], Item]) -> Item | None:
    """As `survived`, in a thread: what came of it; None if it broke."""
    try:
        return work()
    except Exception:
        log.exception(BROKE, name)
        return None


def each(items: Iterable[Item], work: Callable[[Item], None]) -> None:
    """The work for every one, whatever becomes of another's; then what nobody foresaw is raised, all together. What was
    foreseen, a `DrivetrainError`, concerns them all and is raised at once."""
    broken: list[Exception] = []
    for item in items:
        try:
            work(item)
        except DrivetrainError:
            raise
        except Exception as error:
            broken.append(error)
    if broken:
        raise ExceptionGroup(f"{len(broken)} broke", broken)
