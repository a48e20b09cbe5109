"""What the tests of the command line share: a command line that runs in this process, on a home of its own."""

import io
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drivetrain.cli import main
from tests.unit.cli.standin import Answer, StandIn

Play = Callable[[Mapping[str, Answer | Callable[[Any], Answer]]], StandIn]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """Runs `drivetrain` with its home, as in a pipe: nothing here is a terminal."""

    def __init__(self, home: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.home = home
        self._capture = capture
        self._patch = patch

    def __call__(self, *arguments: str, piped: str = "") -> Outcome:
        self._patch.setattr("sys.stdin", io.StringIO(piped))
        code = main([*arguments, "--home", str(self.home)])
        return Outcome(code, *self._capture.readouterr())

    def type(self, line: str) -> Outcome:
        """A whole command line, after `drivetrain`."""
        return self(*shlex.split(line))
