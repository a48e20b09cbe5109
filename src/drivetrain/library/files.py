"""Files as the library needs them: written whole or not at all, hashed, linked instead of copied, locked."""

import errno
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

import anyio
import anyio.to_thread
from filelock import FileLock, Timeout

from drivetrain.errors import StorageFull

CHUNK_BYTES = 2**20
_PUMPED_AT_ONCE = 64 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POLL_S = 0.2


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Tells a full disk as `StorageFull`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFull(
            f"no space left in {folder}: {size_text(free_bytes(folder))} are free; make room there and try again"
        ) from error


def need_room(folder: Path, need_bytes: int, what: str) -> None:
    """Raises `StorageFull`, with both numbers, if `folder` cannot take `need_bytes` more."""
    free = free_bytes(folder)
    if need_bytes > free:
        raise StorageFull(
            f"{what} needs {need_bytes} bytes ({size_text(need_bytes)}), but only {free} bytes ({size_text(free)}) "
            f"are free in {folder}"
        )


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def size_of(path: Path) -> int:
    return path.stat().st_size


def remove(path: Path) -> None:
    """Nothing happens if it is not there."""
    path.unlink(missing_ok=True)


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` at once: a reader, and a crash, see the old content or the new, never a mixture."""
    draft = path.with_name(f".{path.name[:40]}.{uuid4().hex[:8]}.tmp")
    try:
        with room_in(path.parent), open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def place(source: Path, target: Path) -> None:
    """Make `target` the same file as `source` without a copy: a hard link, or a symbolic one across file systems."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        target.symlink_to(source.resolve())


async def sha256(path: Path) -> str:
    """The hash of a file, 64 hex digits."""
    with open(path, "rb") as file:  # noqa: ASYNC230 - opening does not wait; reading goes to a thread
        return await _pump(file, None)


async def copy_hashed(source: Path, target: Path) -> str:
    """Copy a file and return its hash, 64 hex digits. Nothing is left at `target` if that fails."""
    need_room(target.parent, size_of(source), f"a copy of {source.name}")
    with open(source, "rb") as file:  # noqa: ASYNC230
        return await write_hashed(file, target)


async def write_hashed(file: IO[bytes], target: Path) -> str:
    """Write what `file` holds to `target` and return its hash. Nothing is left at `target` if that fails."""
    try:
        with room_in(target.parent), open(target, "wb") as out:  # noqa: ASYNC230
            digest = await _pump(file, out)
            out.flush()
            await anyio.to_thread.run_sync(os.fsync, out.fileno())
    except BaseException:
        remove(target)
        raise
    return digest


async def _pump(file: IO[bytes], out: IO[bytes] | None) -> str:
    state = hashlib.sha256()
    while await anyio.to_thread.run_sync(_pump_some, file, out, state):
        pass
    return state.hexdigest()


def _pump_some(file: IO[bytes], out: IO[bytes] | None, state: "hashlib._Hash") -> bool:
    """At most so much that a cancelled caller does not wait long. False at the end of the file."""
    for _ in range(_PUMPED_AT_ONCE // CHUNK_BYTES):
        data = file.read(CHUNK_BYTES)
        if not data:
            return False
        state.update(data)
        if out is not None:
            out.write(data)
    return True


@asynccontextmanager
async def held(path: Path, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """An exclusive lock across processes, gone with the process that holds it. `waiting` is called now and then."""
    lock = FileLock(path, thread_local=False, blocking=False)
    while True:
        try:
            lock.acquire()
            break
        except Timeout:
            if waiting:
                waiting()
            await anyio.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()
