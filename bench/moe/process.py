"""A subject's process, as the one who measures it sees it: ready once, then a turn whenever one is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cgroup
from subject import Orders

PROGRAM = Path(__file__).with_name("subject.py")
KILLED = -9


class Died(Exception):
    """Why a process ended before it had answered."""


class Running:
    """One process, with what it told when it was ready."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path, group: cgroup.Group, orders: Orders) -> None:
        self._child, self._log, self.group = child, log, group
        self.told = self.ask(**asdict(orders))

    def ask(self, **order: Any) -> dict[str, Any]:
        """The answer to one line; raises `Died`."""
        assert self._child.stdin
        assert self._child.stdout
        try:
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass
        answer: dict[str, Any] = json.loads(self._child.stdout.readline() or "{}")
        if not answer or "error" in answer:
            raise Died(answer.get("error") or self._reason())
        return answer

    def turn(self, tokens: int, limit_s: float) -> tuple[int, float]:
        """Tokens that were decoded, and the seconds that they took."""
        answer = self.ask(tokens=tokens, limit_s=limit_s)
        return answer["tokens"], answer["seconds"]

    def _reason(self) -> str:
        code = self._child.wait()
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "killed: out of memory" if code == KILLED else f"exit {code}: {' / '.join(lines[-2:])[-300:]}"


@contextmanager
def running(orders: Orders, group: cgroup.Group, log: Path) -> Iterator[Running]:
    """The process in its group, ready; it is gone at the end. Raises `Died`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "wb") as errors,
        subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=group.enter,  # a write to a file, and no other thread runs
        ) as child,
    ):
        try:
            yield Running(child, log, group, orders)
        finally:
            child.kill()
