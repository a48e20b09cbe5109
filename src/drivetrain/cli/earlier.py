"""The way back to an earlier configuration: its text stands in `drivetrain.yaml` again, and the audit tells of it.

For the command, and for a server that is asked by HTTP. Blocks.
"""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from drivetrain import config as configuration
from drivetrain.config import ConfigError
from drivetrain.config.problems import Problem
from drivetrain.errors import Conflict, NotFound
from drivetrain.store import ConfigRevision, Store

PRIVATE = 0o600  # of a file that was not there: it may hold secrets


def wanted(store: Store, revision: int, newest: int | None = None) -> ConfigRevision:
    """Raises `NotFound`, and `Conflict` where there is a later revision than the `newest` that somebody knows."""
    last = next((one.revision for one in store.configs(1)), 0)
    if newest is not None and newest != last:
        message = f"the newest revision of the configuration is {last}, not {newest}"
        raise Conflict(f"{message}: somebody else has changed it; look at it, and repeat what you meant")
    found = store.config(revision)
    if found is None:
        known = f"the newest is {last}" if last else "none was kept yet: a server does so when it starts"
        raise NotFound(f"there is no revision {revision} of the configuration; {known}")
    return found


def present(home: Path) -> str | None:
    """What stands in the file, if there is one."""
    path = configuration.find(home)
    return path.read_text("utf-8") if path else None


def write(
    store: Store, home: Path, earlier: ConfigRevision, *, check: Callable[[Path], object], actor: str
) -> ConfigRevision | None:
    """Put it into the file if `check` finds nothing wrong with it, and what stood there among the revisions. Returns
    that. Raises what `check` does, and leaves the file as it was."""
    path = home / configuration.FILE
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    text, before = present(home), None
    try:
        _write(fresh, earlier.body, _mode(path))
        _check(fresh, check, earlier)
        if text is not None:
            before = store.keep_config(text, actor=actor, at_s=time.time())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return before


def restore(home: Path, before: ConfigRevision | None) -> None:
    """What `write` returned, once it turned out that the server cannot take what was written."""
    path = home / configuration.FILE
    if before is None:
        path.unlink(missing_ok=True)
    else:
        path.write_text(before.body, "utf-8")


def sign(
    store: Store, earlier: ConfigRevision, before: ConfigRevision | None, *, actor: str, request_id: str = ""
) -> ConfigRevision:
    """The revision that it is now, with a line in the audit."""
    from drivetrain.store import audit  # brings SQLAlchemy

    at_s, like = time.time(), earlier.revision
    made = store.keep_config(earlier.body, actor=f"{actor}, back to {like}", at_s=at_s)
    with audit.writing(store, at_s=at_s, actor=actor, request_id=request_id) as transaction:
        was = {"revision": before.revision, "hash": before.hash} if before is not None else None
        after = {"revision": made.revision, "hash": made.hash, "like": like}
        transaction.write("apply", "config", str(made.revision), was, after)
    return made


def _check(path: Path, check: Callable[[Path], object], earlier: ConfigRevision) -> None:
    """Problems are in the revision; the file that they are found in will be gone."""
    try:
        check(path)
    except ConfigError as error:
        source = f"revision {earlier.revision}"
        raise ConfigError([_placed(problem, str(path), source) for problem in error.problems]) from error


def _placed(problem: Problem, path: str, source: str) -> Problem:
    if problem.place.source != path:
        return problem
    return replace(problem, place=replace(problem.place, source=source))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else PRIVATE


def _write(path: Path, text: str, mode: int) -> None:
    """Nobody else reads it before it has the mode that it is to have."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "w", encoding="utf-8") as file:
        file.write(text)
    path.chmod(mode)
