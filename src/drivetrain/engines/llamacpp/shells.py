"""The shells of streamed models: GGUF files with all of a model but its experts, for llama.cpp to load.

A worker makes them; they stay for the next time, as long as their model does. Owns the directory that they are in.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from drivetrain.errors import DrivetrainError
from drivetrain.types import ModelSpec

_NOTE: Final = ".json"


class _Note(msgspec.Struct):
    """Whose shell it is."""

    model: str
    weights: str


class Shells:
    def __init__(self, state: Path, lookup: Callable[[str], ModelSpec]) -> None:
        """`lookup` raises a `DrivetrainError` for a model that is no more."""
        self._directory = state / "shells"
        self._lookup = lookup

    def path(self, weights: str) -> Path:
        """Where the shell of these weights is, or is to be made."""
        return self._directory / f"{sha256(os.fsencode(os.path.abspath(weights))).hexdigest()[:32]}.gguf"

    def claim(self, model: str, weights: str) -> None:
        """The shell is to stay for as long as the model has these weights."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path(weights).with_suffix(_NOTE).write_bytes(msgspec.json.encode(_Note(model, weights)))

    def unwanted(self) -> list[Path]:
        """The files of shells whose model has gone, or has other weights now."""
        stems = [path.stem for path, note in self._notes() if not self._wanted(note)]
        return [file for stem in stems for file in sorted(self._directory.glob(f"{stem}.*"), reverse=True)]

    def _notes(self) -> Iterator[tuple[Path, _Note | None]]:
        for path in sorted(self._directory.glob(f"*{_NOTE}")):
            note = None
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(path.read_bytes(), type=_Note)
            yield path, note

    def _wanted(self, note: _Note | None) -> bool:
        if note is None or not os.path.exists(note.weights):
            return False
        try:
            return self._lookup(note.model).weights == note.weights
        except DrivetrainError:
            return False
