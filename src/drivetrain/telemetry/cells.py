"""Numbers that processes share: each process counts in a mapped file of its own, and any process reads them all.

A file holds rows: a key (JSON text) and a fixed number of doubles. A file is locked while its process lives. One
that nobody locks was left by a process that died; the next process adopts it and goes on counting, so that no counter
falls back and there are never more files than there were processes at once. To add to a number is a write to memory.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

SUFFIX = ".cells"
FILE_BYTES = 1 << 20
_HEADER = struct.Struct("=8sQ")  # magic, bytes in use
_MAGIC = b"DTCELL01"
_ROW = struct.Struct("=II")  # bytes of the padded key, number of doubles


if TYPE_CHECKING:
    Doubles = memoryview[float]
else:
    Doubles = memoryview  # not generic at run time before Python 3.14


class Row(NamedTuple):
    """A row as a reader sees it."""

    key: str
    values: tuple[float, ...]
    live: bool  # its process lives


class Cells:
    """The rows of this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, FILE_BYTES)
        self._view = memoryview(self._map)
        magic, used = _HEADER.unpack_from(self._map)
        self._lock = threading.Lock()  # two threads may want a new row at once
        self._used = used if magic == _MAGIC else _HEADER.size
        self._rows = {key: self._doubles(start, width) for key, start, width in _layout(self._map, self._used)}
        _HEADER.pack_into(self._map, 0, _MAGIC, self._used)

    @classmethod
    def open(cls, directory: Path) -> "Cells":
        """A file left by a process that died, else a new one. Raises `OSError` if the disk has no room."""
        directory.mkdir(parents=True, exist_ok=True)
        while True:
            for path in sorted(directory.glob(f"*{SUFFIX}")):
                with contextlib.suppress(OSError):
                    return cls._take(path, os.O_RDWR)
            with contextlib.suppress(BlockingIOError):  # another process took it between its making and our lock
                path = directory / f"{os.getpid()}-{os.urandom(4).hex()}{SUFFIX}"
                return cls._take(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    @classmethod
    def _take(cls, path: Path, flags: int) -> "Cells":
        descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Written, not truncated to size: a mapped block that the disk cannot provide later kills the process.
            if os.fstat(descriptor).st_size != FILE_BYTES and os.write(descriptor, bytes(FILE_BYTES)) != FILE_BYTES:
                raise OSError(f"no room for {path}")
            return cls(path, descriptor)
        except OSError:
            os.close(descriptor)
            raise

    def row(self, key: str, width: int) -> Doubles | None:
        """The doubles of a row, to add to; made at zero if new. `None` if the file is full."""
        with self._lock:
            return self._rows.get(key) or self._new(key, width)

    def _new(self, key: str, width: int) -> Doubles | None:
        text = key.encode()
        text += b" " * (-len(text) % 8)
        start = self._used + _ROW.size + len(text)
        end = start + 8 * width
        if end > FILE_BYTES:
            return None
        _ROW.pack_into(self._map, self._used, len(text), width)
        self._map[self._used + _ROW.size : end] = text + bytes(8 * width)
        self._used = end
        _HEADER.pack_into(self._map, 0, _MAGIC, end)  # last: a reader sees whole rows only
        self._rows[key] = self._doubles(start, width)
        return self._rows[key]

    def rows(self) -> dict[str, Doubles]:
        return dict(self._rows)

    def close(self) -> None:
        """Let go of the file; its numbers stay. The rows may not be used any more."""
        for row in self._rows.values():
            row.release()
        self._rows.clear()
        self._view.release()
        self._map.close()
        os.close(self._descriptor)

    def _doubles(self, start: int, width: int) -> Doubles:
        return self._view[start : start + 8 * width].cast("d")


def read(directory: Path) -> Iterator[Row]:
    """Every row of every process, dead or alive."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            magic, used = _HEADER.unpack((file.read(_HEADER.size) + bytes(_HEADER.size))[: _HEADER.size])
            if magic != _MAGIC:
                continue  # being made
            file.seek(0)
            data = file.read(used)
            live = _is_locked(file.fileno())
            for key, start, width in _layout(data, used):
                yield Row(key, struct.unpack_from(f"={width}d", data, start), live)


def clear(directory: Path) -> None:
    """Forget what processes counted that are dead now. For a server that starts, before its workers do."""
    for path in directory.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if not _is_locked(file.fileno()):
                path.unlink()


def _layout(data: bytes | mmap.mmap, used: int) -> Iterator[tuple[str, int, int]]:
    """Key, place of the doubles and their number, of each row."""
    position = _HEADER.size
    while position < used:
        length, width = _ROW.unpack_from(data, position)
        start = position + _ROW.size + length
        yield data[position + _ROW.size : start].decode().rstrip(), start, width
        position = start + 8 * width


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
