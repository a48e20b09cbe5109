"""The directory of the workers' sockets: private to this user, cleared of what dead servers left behind, and there only
while a server that has loaded a model runs.

Beside its socket a worker that streams has the page of its counters.
"""

import itertools
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

MAX_PATH_BYTES: Final = 103  # 107 on Linux, 103 on macOS
PAGE: Final = ".page"
_NAME_BYTES: Final = len("/4194304-999999.sock")
_numbers: Final = itertools.count(1)  # of this process: all its engines of this kind have one directory


class Sockets:
    """Paths for sockets below `state`, or below the system's temporary directory if those would be too long."""

    def __init__(self, state: Path) -> None:
        self._directory = _directory(state.absolute())

    def next(self) -> Path:
        """A path that no socket has."""
        _prepare(self._directory)
        return self._directory / f"{os.getpid()}-{next(_numbers)}.sock"

    def close(self) -> None:
        """No socket of ours is left."""
        with suppress(OSError):  # another server's are, or it was never made
            self._directory.rmdir()


def _directory(state: Path) -> Path:
    wanted = state / "workers"
    if len(os.fsencode(wanted)) + _NAME_BYTES <= MAX_PATH_BYTES:
        return wanted
    # One for each user and home: the next server there finds, and clears, what was left.
    home = sha256(os.fsencode(state)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}-{home}"


def _prepare(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)  # fails if the directory belongs to somebody else
    for left in (*directory.glob("*.sock"), *directory.glob(f"*{PAGE}")):
        if not _alive(left.name.partition("-")[0]):
            left.unlink(missing_ok=True)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True
