"""Pulls that were begun and not finished: how far each is, and what to pull to go on."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from drivetrain.dialects.ollama import names
from drivetrain.library import download, files


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    source: str
    parts: Mapping[str, int] = {}  # files among the blobs, and how long they will be


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A model of which a part has arrived."""

    id: str
    source: str  # what to pull to continue
    completed: int = 0  # bytes
    total: int = 0  # bytes; 0 where nobody knows yet

    @property
    def told(self) -> str:
        return f"{100 * self.completed // self.total} %" if self.total else "just begun"


class Pulls:
    """The folder of notes, one per model that is being pulled."""

    def __init__(self, folder: Path, blobs: Path) -> None:
        self._folder, self._blobs = folder, blobs

    def note(self, id: str, source: str, parts: Mapping[str, int]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write_whole(self._path(id), msgspec.json.encode(_Note(id=id, source=source, parts=parts)))

    def forget(self, id: str) -> None:
        self._path(id).unlink(missing_ok=True)

    def discard(self, id: str) -> None:
        """Forget a pull, and what has arrived for it and for no other."""
        note = self._note(self._path(id))
        self.forget(id)
        others = {name for path in self._folder.glob("*.json") if (other := self._note(path)) for name in other.parts}
        for name in note.parts if note else ():
            if name not in others:
                download.discard(self._blobs / name)

    def find(self, id: str) -> Unfinished | None:
        return self._read(self._path(id))

    def all(self) -> Iterator[Unfinished]:
        for path in sorted(self._folder.glob("*.json")):
            found = self._read(path)
            if found is not None:
                yield found

    def _path(self, id: str) -> Path:
        """One per model, however its name is spelled."""
        return self._folder / f"{hashlib.sha256(names.key(id).encode()).hexdigest()[:32]}.json"

    def _note(self, path: Path) -> _Note | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Note)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError):
            return None

    def _read(self, path: Path) -> Unfinished | None:
        note = self._note(path)
        if note is None:
            return None
        completed = sum(self._arrived(name, size) for name, size in note.parts.items())
        return Unfinished(id=note.id, source=note.source, completed=completed, total=sum(note.parts.values()))

    def _arrived(self, name: str, size: int) -> int:
        if (self._blobs / name.removeprefix(".")).is_file() or (self._blobs / name).is_file():
            return size
        state = download.load_state(self._blobs / name)
        return state.arrived if state else 0
