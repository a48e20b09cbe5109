"""What sinks ask of the store: the ledger in the order of its commits, checkpoints that nobody overwrites unseen, and
which of several processes is the one that exports, or that moves rollouts on.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drivetrain.governance import Attempt
from drivetrain.store.database import Store, asking

if TYPE_CHECKING:
    from sqlalchemy import Connection

Task = Literal["sinks", "rollouts"]
LOCKS: Mapping[Task, int] = {"sinks": 0x64726976_65000002, "rollouts": 0x64726976_65000003}  # advisory, of who does it


class Rows:
    """The ledger and the checkpoints. Everything may wait for the database: call it from a thread."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def after(self, seq: int, limit: int) -> list[tuple[int, Attempt]]:
        """Rows behind `seq`, in the order of their commits."""
        return self._store.after(seq, limit)

    def newest(self) -> int:
        """The seq of the newest row, 0 if there is none."""
        from sqlalchemy import func, select

        from drivetrain.store.tables import attempts

        with self._store.reading() as connection:
            return int(connection.execute(select(func.coalesce(func.max(attempts.c.seq), 0))).scalar_one())

    def checkpoint(self, name: str) -> str | None:
        """The state that was kept last, None if none was."""
        from sqlalchemy import select

        from drivetrain.store.tables import sinks

        with self._store.reading() as connection:
            return connection.execute(select(sinks.c.state).where(sinks.c.name == name)).scalar_one_or_none()

    def check(self, name: str, seq: int, state: str, *, was: str | None) -> bool:
        """Keep how far a sink is, if `was` is the state that is kept now (None: if none is). False, and nothing is
        changed, if somebody else has kept another since."""
        from sqlalchemy import insert, update
        from sqlalchemy.exc import IntegrityError

        from drivetrain.store.tables import sinks

        values = {"seq": seq, "state": state, "updated_s": self._clock()}
        if was is not None:
            changed = update(sinks).where(sinks.c.name == name, sinks.c.state == was).values(values)
            with self._store.writing() as connection:
                return bool(connection.execute(changed).rowcount)
        try:
            with self._store.writing() as connection:
                connection.execute(insert(sinks).values(name=name, **values))
        except IntegrityError:
            return False
        return True


class Lead:
    """The right to do what one process does at a time: a lock of the database, or of a file beside it.

    It ends with its process, or with its connection. Who still believes to have it does no harm: see `Rows.check`.
    """

    def __init__(self, store: Store, task: Task = "sinks") -> None:
        self._store = store
        self._task = task
        self._file: int | None = None
        self._connection: Connection | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises `StoreAway`."""
        engine = self._store.engine()
        if engine.dialect.name == "sqlite":
            return self._take_file(Path(f"{engine.url.database}.{self._task}.lock"))
        with asking(self._store), ExitStack() as unless_taken:
            connection = unless_taken.enter_context(engine.connect())
            connection.execution_options(isolation_level="AUTOCOMMIT")
            taken = connection.exec_driver_sql("SELECT pg_try_advisory_lock(%s)", (LOCKS[self._task],)).scalar_one()
            if taken:
                unless_taken.pop_all()
                self._connection = connection
        return bool(taken)

    def held(self) -> bool:
        """Whether it is ours still."""
        from sqlalchemy.exc import DBAPIError

        if self._connection is None:
            return self._file is not None
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            self._connection.invalidate()  # the lock ends with it
            self._connection.close()
            self._connection = None

    def _take_file(self, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._file = descriptor
        return True
