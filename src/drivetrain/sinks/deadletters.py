"""Rows that a target will never take, with its reasons: `state/sinks/NAME.dead.jsonl`, one JSON object a line."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from drivetrain.governance import Attempt
from drivetrain.sinks.batches import Row
from drivetrain.types import Value


class Letter(Value, frozen=True, kw_only=True):
    seq: int
    reason: str
    row: Attempt


class DeadLetters:
    """The file of one sink, which only the exporting process writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[int] = set()

    def open(self, after: int) -> None:
        """Before anything is added. Letters up to `after` belong to batches that are done, and will not come again."""
        if self.path.exists():
            _mend(self.path)
            self._known = {letter.seq for letter in read(self.path) if letter.seq > after}

    def add(self, rows: Sequence[Row], reasons: Mapping[int, str]) -> None:
        """Keep the rows that `reasons` names, on the disk when this returns; a row that is there already only once."""
        letters = [
            Letter(seq=seq, reason=reasons[seq], row=row)
            for seq, row in rows
            if seq in reasons and seq not in self._known
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(letter) + b"\n" for letter in letters))
            file.flush()
            os.fsync(file.fileno())
        self._known.update(letter.seq for letter in letters)


def read(path: Path) -> list[Letter]:
    with path.open("rb") as file:
        return [msgspec.json.decode(line, type=Letter) for line in file]


def _mend(path: Path) -> None:
    """Cut off a line that its writer did not live to finish."""
    with path.open("r+b") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
