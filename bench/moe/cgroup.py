"""Memory as a run is allowed to have it: control groups with a limit, and files that leave the page cache.

Version 1 and 2 of control groups. A group is made below the one this process is in, or below the root where that is
not allowed, and is gone when its run is over.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LEAST_FREE = 64 * 2**20  # pages that may stay cached of a file that was told to go: read-ahead and the like


@dataclass(frozen=True)
class Place:
    """A folder in which memory groups can be made."""

    folder: Path
    version: int


@dataclass(frozen=True)
class Files:
    """What the two versions call the same thing."""

    limit: str
    peak: str
    usage: str
    anonymous: str  # in memory.stat
    no_limit: str


FILES = {
    1: Files("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes", "total_rss", "-1"),
    2: Files("memory.max", "memory.peak", "memory.current", "anon", "max"),
}


def find() -> tuple[Place | None, str]:
    """Where groups can be made; else why not."""
    refused = []
    for place in _candidates():
        reason = _refusal(place)
        if reason is None:
            return place, ""
        refused.append(f"{place.folder}: {reason}")
    return None, "; ".join(refused) or "no memory control group is mounted"


def _candidates() -> Iterator[Place]:
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount = Path(before.split(" ")[4])
        if kind == "cgroup" and "memory" in options.split(" ")[-1].split(","):
            inside = next((path for names, path in own.items() if "memory" in names.split(",")), "/")
            yield from _upwards(mount, inside, 1)
        elif kind == "cgroup2":
            yield from _upwards(mount, own.get("", "/"), 2)


def _upwards(mount: Path, inside: str, version: int) -> Iterator[Place]:
    """Below our own group, then below its parent, then below the root."""
    own = mount / inside.lstrip("/")
    yield from (Place(folder, version) for folder in dict.fromkeys((own, own.parent, mount)) if folder.is_dir())


def _refusal(place: Place) -> str | None:
    """Why no group with a limit can be made here; None if one can."""
    probe = place.folder / f"bench-moe-probe-{os.getpid()}"
    try:
        if place.version == 2 and "memory" not in _words(place.folder / "cgroup.subtree_control"):
            (place.folder / "cgroup.subtree_control").write_text("+memory")
        probe.mkdir()
    except OSError as error:
        return error.strerror or str(error)
    try:
        (probe / FILES[place.version].limit).write_text(str(2**30))
    except OSError as error:
        return f"a limit cannot be set: {error.strerror}"
    finally:
        probe.rmdir()
    return None


def _words(path: Path) -> list[str]:
    return path.read_text().split()


@dataclass(frozen=True)
class Group:
    folder: Path
    version: int

    def enter(self) -> None:
        """Moves the calling process in; for a child between fork and exec."""
        with open(self.folder / "cgroup.procs", "w") as file:
            file.write("0")

    def peak(self) -> int | None:
        """The most that was charged, page cache included. None where the kernel does not say."""
        try:
            return int((self.folder / FILES[self.version].peak).read_text())
        except OSError:
            return None

    def anonymous(self) -> int:
        """Memory that is no page of a file, now."""
        wanted = FILES[self.version].anonymous
        for line in (self.folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == wanted:
                return int(value)
        return 0

    def stalled_us(self) -> int | None:
        """Microseconds in which everything that could run waited for memory (PSI full), so far."""
        file = self.folder / "memory.pressure" if self.version == 2 else Path("/proc/pressure/memory")
        try:
            full = next(line for line in file.read_text().splitlines() if line.startswith("full"))
        except (OSError, StopIteration):
            return None
        return int(full.rpartition("total=")[2])


@contextmanager
def group(place: Place, limit: int | None) -> Iterator[Group]:
    """A fresh group; `limit` in bytes, None for none."""
    folder = place.folder / f"bench-moe-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    try:
        names = FILES[place.version]
        (folder / names.limit).write_text(names.no_limit if limit is None else str(limit))
        if place.version == 2 and limit is not None:
            (folder / "memory.swap.max").write_text("0")
        yield Group(folder, place.version)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """The kernel takes a moment to let the last process go."""
    until = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


# --- the page cache ---------------------------------------------------------------------------------------------------


def evict(path: Path) -> int:
    """Takes a file out of the page cache; how many bytes of it remain."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return cached(path)


def cached(path: Path) -> int:
    """Bytes of a file that are in the page cache."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    if not pages:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    with open(path, "rb") as file:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    seen = ctypes.create_string_buffer(pages)
    try:
        if libc.mincore(address, size, seen):
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(address, size)
    return sum(byte & 1 for byte in seen.raw[:pages]) * mmap.PAGESIZE
