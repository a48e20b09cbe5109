"""Traces of which experts were asked for, and how often they would have been in memory under another policy or budget.

A trace is what the engine wrote (`Stats` in native/src/stats.hpp): which experts of a layer a pass needed, layer after
layer. Replaying it tells what a budget is worth, and how far the engine's own policy is from the best there can be.
Pure, but for reading the file.
"""

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from math import log2
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from drivetrain.errors import BadRequest, NotFound

MAGIC: Final = b"DRTTRC01"
_HEADER_BYTES: Final = 16
_HALF_LIFE: Final = 32  # passes after which a use counts half: `Worth::kHalfLife` of the engine
_SLACK: Final = 4  # entries of the heap per resident expert, before those that are out of date are thrown away

Policy = Literal["lru", "lrfu", "lfu", "belady"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)

Expert = int  # layer * experts + expert
_Rank = Callable[[int, Expert], float]  # of an expert used at a time, for as long as it is not used again


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    layers: int
    experts: int  # of the layer that has most
    groups: Sequence[tuple[Expert, ...]]  # needed together, in order of time

    @property
    def accesses(self) -> int:
        return sum(map(len, self.groups))

    @property
    def distinct(self) -> int:
        """Experts that were ever asked for."""
        return len(set(chain.from_iterable(self.groups)))


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    budget: int  # experts, or bytes
    hits: int
    misses: int
    loaded: int  # experts, or bytes, that had to be brought from the drive

    @property
    def hit_rate(self) -> float:
        """0 to 1; 1 for an empty trace."""
        return self.hits / (self.hits + self.misses) if self.misses else 1.0


def read(path: Path) -> Trace:
    """The trace in a file, whose end may be missing, as after a crash. Raises `NotFound` or `BadRequest`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"cannot read the trace {path}: {error.strerror}") from error
    return decode(data, name=str(path))


def decode(data: bytes, *, name: str = "it") -> Trace:
    """The trace in these bytes."""
    if len(data) < _HEADER_BYTES or data[:8] != MAGIC:
        raise BadRequest(f"{name} is no trace of experts")
    layers, experts = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
    numbers = array("H", data[_HEADER_BYTES : len(data) - len(data) % 2])
    if sys.byteorder != "little":
        numbers.byteswap()
    groups: list[tuple[Expert, ...]] = []
    at = 0
    while at + 2 <= len(numbers) and at + 2 + numbers[at + 1] <= len(numbers):
        layer, members = numbers[at], numbers[at + 2 : at + 2 + numbers[at + 1]]
        if layer >= layers or any(expert >= experts for expert in members):
            raise BadRequest(f"{name} is damaged at byte {_HEADER_BYTES + 2 * at}: it has no such layer or expert")
        groups.append(tuple(dict.fromkeys(layer * experts + expert for expert in members)))
        at += 2 + len(members)
    return Trace(layers=layers, experts=experts, groups=groups)


def replay(trace: Trace, policy: Policy, budget: int, slot_bytes: Sequence[int] | None = None) -> Replay:
    """How often an expert would have been in memory with room for `budget` experts; or bytes, if `slot_bytes` tells
    how many an expert of each layer takes.

    As in the engine, memory is empty at first, an expert that is needed always comes in (into the place of one that is
    not needed at this moment), and of experts that are needed together those in memory are counted before any leaves.
    """
    sizes = slot_bytes or [1] * trace.layers
    if len(sizes) < trace.layers:
        raise BadRequest(f"the trace has {trace.layers} layers with experts, not {len(sizes)}: it is of another model")
    rank = _RANKS[policy](trace)
    ranks: dict[Expert, float | None] = {}  # of what is in memory; None while it is needed
    leaving: list[tuple[float, Expert]] = []  # a heap, lowest rank first; an entry with another rank than above is old
    used = hits = misses = loaded = 0
    for time, group in enumerate(trace.groups):
        missing = [expert for expert in group if expert not in ranks]
        hits, misses = hits + len(group) - len(missing), misses + len(missing)
        ranks.update((expert, None) for expert in group if expert in ranks)
        for expert in missing:
            size = sizes[expert // trace.experts]
            loaded += size
            while used + size > budget and leaving:
                used -= _leave(leaving, ranks, sizes, trace.experts)
            if used + size <= budget:
                used += size
                ranks[expert] = None
        for expert in group:
            place = rank(time, expert)
            if expert in ranks:
                ranks[expert] = place
                heappush(leaving, (place, expert))
        if len(leaving) > _SLACK * len(ranks) + 1024:
            leaving = [(place, expert) for expert, place in ranks.items() if place is not None]
            heapify(leaving)
    return Replay(policy=policy, budget=budget, hits=hits, misses=misses, loaded=loaded)


def _leave(
    leaving: list[tuple[float, Expert]], ranks: dict[Expert, float | None], sizes: Sequence[int], experts: int
) -> int:
    """What the first one frees; 0 if it is needed now, or has been used since it got that place."""
    place, expert = heappop(leaving)
    if ranks.get(expert) != place:
        return 0
    del ranks[expert]
    return sizes[expert // experts]


def _by_last_use(_: Trace) -> _Rank:
    return lambda time, _: time


def _by_last_uses(trace: Trace) -> _Rank:
    """By the last pass and the number of uses, each older one counted half for every half-life that has gone by."""
    passes = [0] * len(trace.groups)
    for time in range(1, len(trace.groups)):
        before, layer = (trace.groups[at][0] // trace.experts for at in (time - 1, time))
        passes[time] = passes[time - 1] + (layer <= before)
    uses: dict[Expert, tuple[int, float]] = {}  # the last pass, and how many as of then

    def rank(time: int, expert: Expert) -> float:
        now = passes[time]
        last, count = uses.get(expert, (now, 0.0))
        count = 1 + count * 2 ** ((last - now) / _HALF_LIFE)
        uses[expert] = (now, count)
        return now + _HALF_LIFE * log2(count) + time * 1e-9  # of equals the one used longest ago leaves

    return rank


def _by_number_of_uses(trace: Trace) -> _Rank:
    """Counted from the beginning, in memory or not; of equally many the one used longest ago leaves."""
    uses: Counter[Expert] = Counter()

    def rank(time: int, expert: Expert) -> int:
        uses[expert] += 1
        return uses[expert] * (len(trace.groups) + 1) + time

    return rank


def _by_next_use(trace: Trace) -> _Rank:
    """Belady's choice, which knows the future: what is needed latest leaves. The best for slots of one size."""
    times: defaultdict[Expert, list[int]] = defaultdict(lambda: [len(trace.groups)])
    for time in range(len(trace.groups) - 1, -1, -1):
        for expert in trace.groups[time]:
            times[expert].append(time)

    def rank(time: int, expert: Expert) -> int:
        upcoming = times[expert]
        while upcoming[-1] <= time:
            upcoming.pop()
        return -upcoming[-1]

    return rank


_RANKS: Final[dict[Policy, Callable[[Trace], _Rank]]] = {
    "lru": _by_last_use,
    "lrfu": _by_last_uses,
    "lfu": _by_number_of_uses,
    "belady": _by_next_use,
}
