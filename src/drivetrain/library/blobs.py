"""Content by its digest: `blobs/sha256-<64 hex>`. A blob is complete and verified, or it is not there."""

import hashlib
import os
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from uuid import uuid4

import anyio.to_thread

from drivetrain.dialects.ollama import names
from drivetrain.errors import BadRequest, NotFound
from drivetrain.library import files


class Blobs:
    """The folder of blobs. Models are links into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        return self.folder / f"sha256-{names.digest(digest)}"

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def require(self, digest: str) -> Path:
        path = self.path(digest)
        if not path.is_file():
            raise NotFound(f'blob "{digest}" not found')
        return path

    def draft(self) -> Path:
        """A name for a file that is still being written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f".draft-{uuid4().hex}"

    async def put(self, digest: str, data: AsyncIterable[bytes]) -> bool:
        """Keep what `data` yields under its digest. False if it was there already.

        Raises `BadRequest` if the content has another digest, `StorageFull` if the disk is full.
        """
        if self.has(digest):
            return False
        draft = self.draft()
        try:
            found = await self._receive(draft, data)
            if found != names.digest(digest):
                raise BadRequest(f'digest mismatch, expected "sha256:{names.digest(digest)}", got "sha256:{found}"')
            self.adopt(draft, digest)
        finally:
            draft.unlink(missing_ok=True)
        return True

    async def _receive(self, draft: Path, data: AsyncIterable[bytes]) -> str:
        state = hashlib.sha256()
        with files.room_in(self.folder), open(draft, "wb", buffering=files.CHUNK_BYTES) as out:  # noqa: ASYNC230
            async for piece in data:
                state.update(piece)
                await anyio.to_thread.run_sync(out.write, piece)
            out.flush()
            await anyio.to_thread.run_sync(os.fsync, out.fileno())
        return state.hexdigest()

    def adopt(self, file: Path, digest: str) -> Path:
        """Make a verified file, on the same file system, the blob of this digest."""
        target = self.path(digest)
        os.replace(file, target)
        files.sync_folder(self.folder)
        return target

    def prune(self, digests: Iterable[str], used: Iterable[Path]) -> None:
        """Remove those of the blobs that none of the files `used` is, by whatever kind of link."""
        kept = {_identity(path) for path in used}
        for digest in digests:
            path = self.path(digest)
            if path.is_file() and _identity(path) not in kept:
                path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:  # a link whose target is gone
        return None
    return status.st_dev, status.st_ino
