"""One started program with all its children: its CPU time, its memory, and its end. Reads /proc (Linux)."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOG_TAIL_CHARS = 1500


class Failed(Exception):
    """A program did not start, or did not do what it was started for."""


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that we need (proc_pid_stat(5))."""

    pid: int
    state: str
    session: int
    cpu_ticks: int  # user + system, with children that were waited for
    rss_pages: int


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get_status(port: int, path: str, timeout_s: float = 5.0) -> int:
    """HTTP status of a GET on loopback; 0 when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def printed(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command prints; raises `Failed` with the last words of one that fails."""
    result = subprocess.run(
        argv, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if result.returncode:
        last_words = (result.stderr or result.stdout)[-LOG_TAIL_CHARS:]
        raise Failed(f"`{os.path.basename(argv[0])}` ended with {result.returncode}: {last_words}")
    return result.stdout.strip()


class Tree:
    """A process and its descendants: they share a session, which is how re-parented ones are found, too."""

    def __init__(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.log = log
        self.started_s = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def wait_ready(self, port: int, path: str, timeout_s: float) -> float:
        """Seconds from the start to the first 200 on `path`."""
        while get_status(port, path) != 200:
            if self._process.poll() is not None:
                raise Failed(f"ended with status {self._process.returncode} before it was ready:\n{self.log_tail()}")
            if time.monotonic() - self.started_s > timeout_s:
                raise Failed(f"not ready on {path} after {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.01)
        return time.monotonic() - self.started_s

    def cpu_s(self) -> float:
        """User and system time of the whole tree so far."""
        return sum(stat.cpu_ticks for stat in self._stats()) / TICKS_PER_S

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        """Returns when the tree has used no CPU time for a moment, such as after requests that were given up."""
        deadline, before = time.monotonic() + timeout_s, -1.0
        while (now := self.cpu_s()) - before >= 2 / TICKS_PER_S and time.monotonic() < deadline:
            before = now
            time.sleep(0.1)

    def rss_bytes(self) -> int:
        """Resident memory of the whole tree; shared pages count once per process."""
        return sum(stat.rss_pages for stat in self._stats()) * PAGE_BYTES

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def stop(self, grace_s: float = 10.0) -> None:
        """Ends the whole tree: politely, then by force. Returns when nothing of it is left."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        while self._alive():
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait()

    def _alive(self) -> bool:
        self._process.poll()
        return any(stat.state not in "ZX" for stat in self._stats())

    def _signal(self, number: signal.Signals) -> None:
        for stat in self._stats():
            try:
                os.kill(stat.pid, number)
            except ProcessLookupError:
                continue

    def _stats(self) -> list[Stat]:
        stats = (read_stat(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [stat for stat in stats if stat is not None and stat.session == self._process.pid]


def busy_fraction(seconds: float = 1.0) -> float:
    """How busy the machine's cores are over that time (proc_stat(5)): what others do while we do nothing."""
    before = cpu_ticks()
    time.sleep(seconds)
    busy, total = (after - earlier for after, earlier in zip(cpu_ticks(), before, strict=True))
    return busy / total if total else 0.0


def cpu_ticks() -> tuple[int, int]:
    """Busy and all CPU time of the machine so far."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # all but idle and iowait


def read_stat(entry: Path) -> Stat | None:
    """None when the process has gone meanwhile."""
    try:
        text = (entry / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
    ticks = sum(int(field) for field in fields[11:15])
    return Stat(int(entry.name), fields[0], int(fields[3]), ticks, int(fields[21]))
