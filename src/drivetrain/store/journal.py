"""Rows on their way to the database, as lines in mapped files: they outlive the process, and a database that is away.

Each process writes its own segments: files of fixed size, one JSON line after another, the rest zeros. An append is
a copy in memory: it does not wait for the disk. A segment is locked while its process lives; one that nobody locks
was left by a process that died, and whoever opens the journal next adopts it.
"""

import fcntl
import itertools
import mmap
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

SEGMENT_BYTES = 1 << 20
SUFFIX = ".journal"


class Segment:
    """One file of lines, held by one process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.last = 0  # number of the last row in it
        self.end = 0  # where the next line goes
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, SEGMENT_BYTES)

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """A new segment. Raises `OSError` if the disk has no room: a block missing from a mapping kills."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Without its name it was taken for a dead process's, and deleted, between our two calls.
                if os.fstat(descriptor).st_nlink:
                    if os.write(descriptor, bytes(SEGMENT_BYTES)) != SEGMENT_BYTES:
                        raise OSError(f"no room for {path}")
                    return cls(path, descriptor)
            except OSError:
                os.close(descriptor)
                path.unlink(missing_ok=True)
                raise
            os.close(descriptor)

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """The segment of a dead process; `None` if its process lives, or another has taken it. Deletes one that its
        process did not live to make."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without its name it was replayed and deleted between our two calls.
            found = os.fstat(descriptor)
            if found.st_nlink and found.st_size == SEGMENT_BYTES:
                return cls(path, descriptor)
            if found.st_nlink and found.st_size < SEGMENT_BYTES and not os.read(descriptor, SEGMENT_BYTES).strip(b"\0"):
                path.unlink()
        except BlockingIOError:
            pass
        os.close(descriptor)
        return None

    def append(self, line: bytes) -> bool:
        """Whether the line fitted."""
        end = self.end + len(line)
        if end > SEGMENT_BYTES:
            return False
        self._map[self.end : end] = line
        self.end = end
        return True

    def lines(self) -> Iterator[bytes]:
        """Every whole line; one that its writer did not live to finish has no end, and is left out."""
        start = 0
        while (stop := self._map.find(b"\n", start)) >= 0:
            yield self._map[start:stop]
            start = stop + 1

    def clear(self) -> None:
        self._map[: self.end] = bytes(self.end)
        self.end = 0

    def close(self) -> None:
        """Let go of the file; it stays, for whoever opens the journal next."""
        self._map.close()
        os.close(self._descriptor)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)  # before the lock goes: nobody adopts it
        self.close()


class Journal:
    """The segments of this process. The owner of the ledger serialises all calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._current: Segment | None = None
        self._spares: deque[Segment] = deque()  # `append` takes from it while `prepare` and `reuse` add to it
        self._full: list[Segment] = []

    def append(self, line: bytes, number: int) -> bool:
        """Keep the line of row `number`. False if there is no room on the disk."""
        if self._current is None or not self._current.append(line):
            self.rotate()
            if self._current is None or not self._current.append(line):
                return False
        self._current.last = number
        return True

    def rotate(self) -> None:
        """Go on in a fresh segment, or in none if none can be had."""
        try:
            fresh: Segment | None = self._spares.popleft()
        except IndexError:
            fresh = self._create()
        if self._current is not None:
            self._full.append(self._current)
        self._current = fresh

    def prepare(self) -> None:
        """Have a spare ready, so that no append pays for making one. Slow, and safe beside `append`."""
        if not self._spares and (spare := self._create()):
            self._spares.append(spare)

    def full(self) -> list[Segment]:
        return list(self._full)

    def forget(self, number: int) -> list[Segment]:
        """Rows up to `number` are in the database: segments that are free now, for `reuse`."""
        if self._current is not None and self._current.last <= number:
            self._current.clear()
        free = [segment for segment in self._full if segment.last <= number]
        self._full = [segment for segment in self._full if segment.last > number]
        return free

    def reuse(self, segments: list[Segment]) -> None:
        """Keep one as a spare, delete the rest. Slow, and safe beside `append`."""
        for segment in segments:
            if self._spares:
                segment.delete()
            else:
                segment.clear()
                self._spares.append(segment)

    def orphans(self) -> Iterator[Segment]:
        """Segments of processes that died, now ours to replay and delete."""
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            segment = Segment.adopt(path)
            if segment is not None:
                yield segment

    def close(self, number: int) -> None:
        """Delete what is in the database, up to row `number`, and leave the rest to the next start."""
        segments = [segment for segment in (*self._full, self._current, *self._spares) if segment is not None]
        for segment in segments:
            if segment.last <= number:
                segment.delete()
            else:
                segment.close()
        self._full, self._current = [], None
        self._spares.clear()

    def _create(self) -> Segment | None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return Segment.create(self._directory / f"{os.getpid()}-{id(self):x}-{next(self._numbers)}{SUFFIX}")
        except OSError:  # told by the ledger, which counts what it cannot keep here
            return None
