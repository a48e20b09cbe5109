"""The directory of the workers' sockets: private to this user, cleared of what dead servers left behind.

Beside its socket a worker that streams has the page of its counters.
"""

import itertools
import os
import tempfile
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
        self._state = state
        self._directory: Path | None = None

    def next(self) -> Path:
        """A path that no socket has."""
        if self._directory is None:
            self._directory = _directory(self._state)
        return self._directory / f"{os.getpid()}-{next(_numbers)}.sock"


def _directory(state: Path) -> Path:
    wanted = state.absolute() / "workers"
    if len(os.fsencode(wanted)) + _NAME_BYTES > MAX_PATH_BYTES:
        # One for each user and home: the next server there finds, and clears, what was left.
        home = sha256(os.fsencode(state.absolute())).hexdigest()[:12]
        wanted = Path(tempfile.gettempdir()) / f"drivetrain-{os.getuid()}-{home}"
    wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted.chmod(0o700)  # fails if the directory belongs to somebody else
    for left in (*wanted.glob("*.sock"), *wanted.glob(f"*{PAGE}")):
        if not _alive(left.name.partition("-")[0]):
            left.unlink(missing_ok=True)
    return wanted


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True
