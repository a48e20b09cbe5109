"""What this machine has to give: processor cores and memory, as far as this process may use them."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def cores() -> int:
    """Physical cores: a second thread on a core only slows matrix products down."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in mine}
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    allowed = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(siblings)
    return max(1, min(len(siblings), allowed))


def memory_bytes() -> int:
    """RAM, or the part of it that the control groups of this process allow."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([ram, *memory_limits(_read(_MEMBERSHIP), _CGROUP)])


def memory_limits(membership: str, root: Path) -> Iterator[int]:
    """The limits, in bytes, of the memory control groups that `membership` (`/proc/self/cgroup`) names, and of those
    around them, in both versions of control groups. In a container, the paths that it names may not be there: then what
    is at `root` is its own."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mounts, name = ([root, root / "unified"], "memory.max")
        if controllers:
            mounts, name = [root / "memory", root / controllers], "memory.limit_in_bytes"
        own = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            found = (_read(mount / group / name) for group in (own, *own.parents))
            yield from (int(limit) for limit in found if limit.isdigit())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
