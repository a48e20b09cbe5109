"""Installs and starts one gateway, with a fresh mock behind it and everything ended afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

from processes import Failed, Tree, free_port, printed
from subjects import Subject

HERE = Path(__file__).parent
BIN = HERE / "bin"
PEERS = HERE.parent / ".peers"
ROOT = HERE.parent.parent
INSTALLED = "installed.json"  # in a peer's folder: the steps that were carried out
MOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Running:
    """A gateway that answers, and the mock it forwards to (for `direct` they are one)."""

    subject: Subject
    tree: Tree
    port: int
    mock_port: int
    headers: tuple[str, ...]
    cold_start_s: float

    def pace(self, ms: int, first_ms: int = 0) -> None:
        """From now on the mock waits `ms` before each chunk, and `first_ms` before any answer."""
        self._mock(f"/pace?ms={ms}&first_ms={first_ms}")

    def mock_stats(self) -> dict[str, int]:
        stats: dict[str, int] = json.loads(self._mock("/stats"))
        return stats

    def _mock(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.mock_port}{path}", timeout=MOCK_TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body


def build_tools() -> None:
    """Compiles mock and ttft when their sources are newer."""
    BIN.mkdir(exist_ok=True)
    for name in ("mock", "ttft"):
        source, binary = HERE / f"{name}.c", BIN / name
        if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", binary, source], check=True)


def install(subject: Subject, drivetrain: Path) -> None:
    """Installs a peer unless these very steps have been carried out; raises `Failed` with the installer's words."""
    if "${drivetrain}" in subject.start and not drivetrain.exists():
        raise Failed(f"{drivetrain.name} is not installed: make a virtual environment, or pass --drivetrain")
    peer = PEERS / subject.name
    steps = json.dumps([subject.install, dict(subject.install_files)])
    done = peer / INSTALLED
    if not subject.install or (done.exists() and done.read_text() == steps):
        return
    print(f"installing {subject.name} {subject.version}", file=sys.stderr)
    peer.mkdir(parents=True, exist_ok=True)
    values = {"peer": str(peer), "python": sys.executable}
    write_files(subject.install_files, peer, values)
    for step in subject.install:
        printed(filled(step, values), cwd=peer)
    done.write_text(steps)


@contextmanager
def running(subject: Subject, drivetrain: Path) -> Iterator[Running]:
    """Starts mock and gateway, and yields when the gateway's ready path answers 200."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"bench-{subject.name}-")))
        mock_port, port = free_port(), free_port()
        mock = stack.enter_context(Tree([str(BIN / "mock"), str(mock_port)], log=home / "mock.log"))
        mock_cold_s = mock.wait_ready(mock_port, "/health", MOCK_TIMEOUT_S)
        if not subject.start:
            yield Running(subject, mock, mock_port, mock_port, (), mock_cold_s)
            return
        values = {
            "drivetrain": str(drivetrain),
            "home": str(home),
            "peer": str(PEERS / subject.name),
            "port": str(port),
            "spare": str(free_port()),
            "upstream": f"http://127.0.0.1:{mock_port}",
        }
        write_files(subject.files, home, values)
        values["key"] = prepared(subject, home, values)
        argv = filled(subject.start, values)
        tree = stack.enter_context(Tree(argv, log=home / "gateway.log", env=subject.env, cwd=home))
        cold_s = tree.wait_ready(port, subject.ready, subject.start_timeout_s)
        yield Running(subject, tree, port, mock_port, tuple(filled(subject.headers, values)), cold_s)


def prepared(subject: Subject, home: Path, values: dict[str, str]) -> str:
    """What the first of the commands before a start prints; raises `Failed` with the words of one that fails."""
    said = [printed(filled(step, values), cwd=home) for step in subject.prepare]
    return said[0] if said else ""


def filled(parts: tuple[str, ...], values: dict[str, str]) -> list[str]:
    return [Template(part).substitute(values) for part in parts]


def write_files(files: Mapping[str, str], folder: Path, values: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(Template(text).substitute(values))
