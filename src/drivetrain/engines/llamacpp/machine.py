"""What this machine has to give: processor cores and memory, as far as this process may use them."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def cores() -> int:
    """Physical cores: a second thread on a core only slows matrix products down."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_read(_CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in mine}
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    allowed = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(siblings)
    return max(1, min(len(siblings), allowed))


def memory_bytes() -> int:
    """RAM, or the part of it that the control group allows."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP / "memory.max")
    return min(ram, int(limit)) if limit.isdigit() else ram


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
