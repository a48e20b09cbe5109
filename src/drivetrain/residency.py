"""Which models stay in memory. A pure decision over what is resident: the least recently used goes first."""

from collections.abc import Sequence

from drivetrain.errors import Busy
from drivetrain.types import Resident


def evictions(
    resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, max_loaded: int = 0
) -> Sequence[str]:
    """The models to unload, in order, before one of `need_bytes` more is loaded. `max_loaded` 0: as many as fit.

    A model with requests in flight stays. Raises `Busy` if the rest cannot make room, and says what stands in the way.
    A model larger than the whole budget is let in alone: the budget is a guide, the operating system the judge.
    """
    free_bytes = budget_bytes - sum(model.size_bytes for model in resident)
    slots = (max_loaded or len(resident) + 1) - len(resident)
    leaving: list[str] = []
    for model in sorted(resident, key=lambda model: model.last_used_s):
        if free_bytes >= need_bytes and slots > 0:
            break
        if not model.active:
            leaving.append(model.id)
            free_bytes += model.size_bytes
            slots += 1
    if slots <= 0 or (free_bytes < need_bytes and len(leaving) < len(resident)):
        busy = ", ".join(repr(model.id) for model in resident if model.active)
        raise Busy(
            f"no room to load a model of {need_bytes / 2**20:.0f} MiB: {busy} have running requests; try again later"
        )
    return leaving
