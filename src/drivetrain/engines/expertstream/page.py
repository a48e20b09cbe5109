"""The page of counters that a worker's streaming engine keeps in a file: what it did, read while it works.

The layout is `Page` in native/src/stats.hpp; native/tests/stats_test.cpp and tests/native/test_page.py hold both sides
to it. All but text are 8-byte numbers. A page is read with one system call instead of being kept mapped, for a file
that somebody cuts short would kill a process that has it mapped.
"""

import os
import struct
from pathlib import Path
from typing import Final

import msgspec

MAGIC: Final = b"DRTPXE01"
MAX_LAYERS: Final = 512
_NUMBERS: Final = (
    "pid", "started_ns", "experts", "expert_bytes", "budget", "resident", "least", "most", "hits", "misses", "reads",
    "read_bytes", "read_ns", "wait_ns", "compute_ns", "tokens", "passes", "evictions", "failures", "retries",
    "crc_errors", "abort_below", "error_seq",
)  # fmt: skip
_LAYOUT: Final = struct.Struct(f"=8s{len(_NUMBERS)}Q512s64s64s{MAX_LAYERS}Q{MAX_LAYERS}Q")
_U64: Final = struct.Struct("=Q")
PAGE_BYTES: Final = _LAYOUT.size
ABORT_BELOW_AT: Final = 8 + 8 * _NUMBERS.index("abort_below")
_ERROR_SEQ_AT: Final = 8 + 8 * _NUMBERS.index("error_seq")
_TRIES: Final = 8  # to read while no error is being written


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has counted since it began. Names as in stats.hpp; `_ns` are nanoseconds."""

    pid: int
    started_ns: int  # since 1970
    experts: int  # of the model, over all layers
    expert_bytes: int  # of all of them, on disk
    budget: int  # bytes that experts may take in memory, now
    resident: int  # bytes that they take
    least: int  # bytes: the budget is never less
    most: int  # bytes: nor more
    hits: int  # experts that were asked for, and in memory
    misses: int  # and not
    reads: int  # of the drive
    read_bytes: int  # with what alignment adds
    read_ns: int  # during which at least one read was in flight
    wait_ns: int  # the calculation waited for the drive
    compute_ns: int  # it ran, experts only
    tokens: int  # through the first layer
    passes: int  # through the model, begun
    evictions: int
    failures: int
    retries: int
    crc_errors: int
    abort_below: int  # passes begun before this count fail: they were given up
    error: str  # what failed last; empty if nothing did
    reader: str  # how the drive is read: "threads direct"
    kernel: str  # who multiplies what, by ggml's numbers of the experts' types: "12:own 14:host dense:own"
    layer_hits: tuple[int, ...]  # by position among the layers with experts, as far as any was asked for
    layer_misses: tuple[int, ...]

    @property
    def hit_rate(self) -> float:
        """0 to 1; 1 where no expert was asked for."""
        return self.hits / (self.hits + self.misses) if self.misses else 1.0

    @property
    def wait_share(self) -> float:
        """Of the time that experts took, that spent waiting for the drive: 0 to 1."""
        return self.wait_ns / (self.wait_ns + self.compute_ns) if self.wait_ns else 0.0


def read(path: Path) -> Page | None:
    """The page as it is now. None if there is no such file, or it is no page (yet)."""
    try:
        with path.open("rb", buffering=0) as file:
            return decode(_calm(file.fileno()))
    except OSError:
        return None


def decode(data: bytes) -> Page | None:
    """The same, of the bytes of a page."""
    if len(data) < PAGE_BYTES:
        return None
    magic, *fields = _LAYOUT.unpack_from(data)
    if magic != MAGIC:
        return None
    numbers = dict(zip(_NUMBERS, fields, strict=False))
    numbers.pop("error_seq")
    error, reader, kernel = map(_text, fields[len(_NUMBERS) :][:3])
    layers = fields[len(_NUMBERS) + 3 :]
    hits, misses = layers[:MAX_LAYERS], layers[MAX_LAYERS:]
    used = max((i + 1 for i in range(MAX_LAYERS) if hits[i] or misses[i]), default=0)
    return Page(
        **numbers,
        error=error,
        reader=reader,
        kernel=kernel,
        layer_hits=tuple(hits[:used]),
        layer_misses=tuple(misses[:used]),
    )


def abort_below(path: Path, passes: int) -> bool:
    """Make the engine fail every pass that began before its count of `passes` was reached. False: there is no page.

    All requests of those passes fail. With `Page.passes`, that is every pass which has begun.
    """
    try:
        with path.open("r+b", buffering=0) as file:
            if os.pread(file.fileno(), len(MAGIC), 0) != MAGIC:
                return False
            return os.pwrite(file.fileno(), _U64.pack(passes), ABORT_BELOW_AT) == _U64.size
    except OSError:
        return False


def _calm(fd: int) -> bytes:
    """The bytes of a page in which no error was being written; after some tries, of any."""
    data = b""
    for _ in range(_TRIES):
        data = os.pread(fd, PAGE_BYTES, 0)
        before = data[_ERROR_SEQ_AT : _ERROR_SEQ_AT + _U64.size]
        if before == os.pread(fd, _U64.size, _ERROR_SEQ_AT) and before[:1] and not before[0] % 2:
            break
    return data


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")
