"""A consistent ring: which of several targets a key falls on, and who comes next.

The same in every process and replica. When a target comes or goes, only its own keys move.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain

from drivetrain.config.schema import Target

POINTS = 64  # of a target of mean weight
MOST_POINTS = 16_384  # of all targets
_A_HASH = 8  # points in one


class Ring:
    """Of targets that never change."""

    __slots__ = ("_many", "_places", "_points")

    def __init__(self, targets: Sequence[Target]) -> None:
        self._many = len(targets)
        total = sum(target.weight for target in targets) or 1
        each = min(POINTS, MOST_POINTS // max(1, self._many))
        found = sorted(
            (point, place)
            for place, target in enumerate(targets)
            for point in points(f"{target.engine}\n{target.model}", each * self._many * target.weight // total)
        )
        self._points = array("Q", [point for point, _ in found])
        self._places = [place for _, place in found]

    def walk(self, key: int, home: int | None = None) -> Iterator[int]:
        """The place of each target once, beginning where the key falls; before them `home`, if there is one."""
        begin, many = bisect_right(self._points, key), len(self._points)
        met: set[int] = set()
        if home is not None:
            met.add(home)
            yield home
        for at in chain(range(begin, many), range(begin)):
            place = self._places[at]
            if place not in met:
                met.add(place)
                yield place
                if len(met) == self._many:
                    return


def points(name: str, many: int) -> Iterator[int]:
    """At least one, of 64 bits each."""
    for number in range(0, max(1, many), _A_HASH):
        digest = blake2b(f"{name}\n{number}".encode(), digest_size=64).digest()
        for at in range(min(_A_HASH, max(1, many) - number)):
            yield int.from_bytes(digest[8 * at : 8 * at + 8])


def jump(key: int, many: int) -> int:
    """One of `many` places; when there is one more, a key stays where it is or moves to that one.

    Lamping and Veach, "A fast, minimal memory, consistent hash algorithm", 2014.
    """
    place, following = 0, 0
    while following < many:
        place = following
        key = (key * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        following = int((place + 1) * (2**31 / ((key >> 33) + 1)))
    return place
