"""A terminal that a program runs in, and a pair of hands: what it shows is read, keys are pressed."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LIMIT_S = 60.0  # for anything to happen
CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"

# A process of its own opens the terminal: its child gets it as the controlling one, so that Ctrl-C is a signal.
_SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


class Screen:
    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SPAWN, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environ, "TERM": "dumb"},
        )
        self.shown = ""
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def press(self, keys: str) -> None:
        """Once the program waits: a Ctrl-C between its prompt and its wait is only seen with the next key."""
        deadline = time.monotonic() + LIMIT_S
        while not self._waits():
            assert time.monotonic() < deadline, f"it never waits for a key; shown: {self.shown[self._read :]!r}"
            self._hear(0.001)
        assert self._process.stdin
        self._process.stdin.write(keys.encode())
        self._process.stdin.flush()

    def enter(self, line: str) -> None:
        self.press(line + "\r")

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> str:
        """What was shown since the last wait, up to and with `text`."""
        deadline = time.monotonic() + limit_s
        while (found := self.shown.find(text, self._read)) < 0:
            self._more(deadline, text)
        start, self._read = self._read, found + len(text)
        return self.shown[start : self._read]

    def _more(self, deadline: float, text: str) -> None:
        heard = self._hear(max(0.0, deadline - time.monotonic()))
        assert heard, f"{text!r} never came; shown: {self.shown[self._read :]!r}"

    def _hear(self, limit_s: float) -> bool:
        """Whether anything more is shown in time."""
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], limit_s)
        data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def _waits(self) -> bool:
        parent = Path(f"/proc/{self._process.pid}")
        (program,) = (parent / f"task/{parent.name}/children").read_text().split()
        return Path(f"/proc/{program}/stat").read_text().rpartition(") ")[2].startswith("S")

    def exit_code(self, limit_s: float = LIMIT_S) -> int:
        return self._process.wait(limit_s)
