"""The pepper: what hashes of keys are made with, beside the database, so that who reads the one cannot try the other.

From the setting `keys.pepper`, the same for every replica, or from the file `state/pepper` that the first start makes.
"""

import hashlib
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from drivetrain.errors import BadRequest, Internal
from drivetrain.types import Value

LEAST_CHARACTERS = 16
ID_CHARACTERS = 16
log = logging.getLogger("drivetrain.store")


class Pepper(Value, frozen=True, kw_only=True):
    secret: bytes
    id: str  # the first digits of its SHA-256: rows say which pepper they need

    def __repr__(self) -> str:
        return f"Pepper(id={self.id!r})"


def of(secret: bytes) -> Pepper:
    return Pepper(secret=secret, id=hashlib.sha256(secret).hexdigest()[:ID_CHARACTERS])


def read(setting: str | None, state: Path) -> Pepper:
    """The pepper of this installation; `state` is the folder of its file, which is made where there is none. Raises
    `BadRequest` for a setting that is too short, and `Internal` for a file that cannot be used."""
    if setting is not None:
        if len(setting) < LEAST_CHARACTERS:
            message = f"keys.pepper has {len(setting)} characters; use at least {LEAST_CHARACTERS}, by chance"
            raise BadRequest(message, param="keys.pepper")
        return of(setting.encode())
    path = state / "pepper"
    try:
        if not path.exists():
            _make(path)
        return of(_content(path))
    except OSError as error:
        raise Internal(f"cannot use {path}: {error}; make it readable, or set keys.pepper") from error


def _make(path: Path) -> None:
    """Whole or not at all, and of several processes that start together one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode())
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()


def _content(path: Path) -> bytes:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("%s can be read by others than its owner; chmod 600 it", path)
    content = path.read_bytes().strip()
    if len(content) < LEAST_CHARACTERS:
        advice = "restore it from a backup: keys that were made with it are lost without it"
        raise Internal(f"{path} has {len(content)} bytes instead of 64; {advice}")
    return content
