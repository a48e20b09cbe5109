"""Which models stay in memory. A pure decision over what is resident.

The least recently used goes first, and idle ones before those with requests. A model that has just come stays for a
while, so that two of them, asked for in turn, do not push each other out with every request. One that is always busy
cannot keep another out for ever: after some patience it takes no more requests, ends those that run, and goes.
"""

import math
from collections.abc import Callable, Collection, Sequence

from drivetrain.errors import Busy, LoadFailed
from drivetrain.types import Resident, Value

MIB = 2**20


class Terms(Value, frozen=True, kw_only=True):
    """Under which models may be made to leave."""

    max_loaded: int = 0  # 0: as many as fit
    least_resident_s: float = 0.0  # nobody has to leave sooner after it came
    patience_s: float = math.inf  # so long a model is waited for, until busy ones have to make room for it


ANY_TERMS = Terms()


def evictions(
    resident: Sequence[Resident],
    *,
    need_bytes: int,
    budget_bytes: int,
    terms: Terms = ANY_TERMS,
    pinned: Callable[[str], bool] = lambda _: False,
    now_s: float = 0.0,
    waited_s: float = 0.0,
) -> Sequence[str]:
    """The models to unload, in order, before one of `need_bytes` more is loaded, which has been waited for `waited_s`.

    A model with requests in flight, which may be among them, leaves when those are done. Raises `Busy` if there is no
    room yet, and says what stands in the way and for how long; `LoadFailed` if there will not be any. A model larger
    than the whole budget is let in alone: the budget is a guide, the operating system the judge.
    """
    free_bytes = budget_bytes - sum(model.size_bytes for model in resident)
    slots = (terms.max_loaded or len(resident) + 1) - len(resident)
    leaving: list[str] = []
    for model in sorted(resident, key=lambda model: (model.active > 0, model.last_used_s)):
        if free_bytes >= need_bytes and slots > 0:
            return leaving
        if not pinned(model.id) and _wait_s(model, terms, now_s, waited_s) <= 0:
            leaving.append(model.id)
            free_bytes += model.size_bytes
            slots += 1
    if slots > 0 and (free_bytes >= need_bytes or len(leaving) == len(resident)):
        return leaving
    staying = [model for model in resident if model.id not in leaving]
    movable = [model for model in staying if not pinned(model.id)]
    if not movable:
        raise LoadFailed(_no_room(need_bytes, f"{_names(staying)} are pinned (`residency.pin`)"))
    raise _busy(movable, need_bytes, min(_wait_s(model, terms, now_s, waited_s) for model in movable))


def _wait_s(model: Resident, terms: Terms, now_s: float, waited_s: float) -> float:
    """Until it may be made to leave; infinite if that is up to its requests."""
    young_s = model.since_s + terms.least_resident_s - now_s
    return max(young_s, terms.patience_s - waited_s) if model.active else young_s


def _busy(staying: Collection[Resident], need_bytes: int, wait_s: float) -> Busy:
    busy = [model for model in staying if model.active]
    young = [model for model in staying if not model.active]
    reasons = [f"{_names(busy)} have running requests"] if busy else []
    reasons += [f"{_names(young)} have only just been loaded"] if young else []
    message = f"{_no_room(need_bytes, ' and '.join(reasons))}; try again later"
    return Busy(message, retry_after_s=None if math.isinf(wait_s) else wait_s)


def _no_room(need_bytes: int, why: str) -> str:
    return f"no room to load a model of {need_bytes / MIB:.0f} MiB: {why}"


def _names(models: Collection[Resident]) -> str:
    return ", ".join(repr(model.id) for model in models)
