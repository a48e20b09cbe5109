"""How common the beginnings of prompts are of late, in memory that never grows.

One that most prompts share is worth a place at every engine; a rare one at a single engine only.
"""

from array import array

CELLS = 1024  # of each row
MEMORY = 1024  # requests, after which one counts for a third
TRUST = 64  # requests that are taken to have gone before the first
_MUCH = 1e12


class Heat:
    """Counts beginnings by their 64 bits; two that share a cell in both rows count as one."""

    __slots__ = ("_one", "_rows", "_total")

    def __init__(self) -> None:
        self._rows = (array("d", bytes(8 * CELLS)), array("d", bytes(8 * CELLS)))
        self._one = 1.0  # what a request counts now: more than the ones before
        self._total = 0.0

    def met(self, key: int) -> float:
        """Count a request. Returns the share of recent ones that begin so, this one included."""
        first, second = self._rows
        one, two = key % CELLS, (key >> 32) % CELLS
        first[one] += self._one
        second[two] += self._one
        self._total += self._one
        share = self.share(key)
        self._one *= 1 + 1 / MEMORY
        if self._one > _MUCH:
            self._shrink()
        return share

    def share(self, key: int) -> float:
        first, second = self._rows
        known = min(first[key % CELLS], second[(key >> 32) % CELLS])
        return known / max(self._total, TRUST * self._one)

    def _shrink(self) -> None:
        for row in self._rows:
            for place, count in enumerate(row):
                row[place] = count / self._one
        self._total /= self._one
        self._one = 1.0
