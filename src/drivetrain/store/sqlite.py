"""SQLite: the store as one file, for the processes of one host. Nothing to install, and no SQLAlchemy to start with."""

import fcntl
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from drivetrain.errors import Internal, StoreAway
from drivetrain.governance import Attempt
from drivetrain.store import spending
from drivetrain.store.kept import Keepsake, statement
from drivetrain.store.migrations import NEWEST

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

SCHEME = "sqlite:///"
BUSY_S = 0.25  # how long the ledger waits for another process; it tries again for as long as it takes
PATIENCE_S = 5.0  # how long everybody else waits
STATEMENT_ROWS = (128, 32, 8, 1)  # in one statement: few sizes, for each is kept prepared, and the large ones are large
_SPENDING = spending.addition("CAST(started_s / 3600 AS INTEGER)", "?")
_COLUMNS = Attempt.__struct_fields__
_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError)


class Sqlite:
    """A file at the newest schema. One that was taken away is made anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._looking = threading.Lock()
        self._looker: tuple[sqlite3.Connection, int] | None = None

    def __str__(self) -> str:
        return str(self.path)

    def prepare(self, *, patient: bool = False) -> None:
        """Create the file, or migrate it, one process at a time. Raises `Internal` if it cannot be used; no patience
        helps against that."""
        try:
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            advice = "repair it, move it away, or set store.url"
            raise Internal(f"cannot open the store {self.path}: {error}; {advice}") from error

    def rows(self) -> "Rows":
        """The ledger's way in. Raises `StoreAway`."""
        try:
            self._prepare()
            connection = _connect(self.path, BUSY_S)
            connection.execute("PRAGMA temp_store=MEMORY")  # else each batch makes a file, to undo a statement with
            return Rows(connection)
        except (OSError, sqlite3.Error, Internal) as error:
            raise StoreAway(str(error)) from error

    def first(self, question: str) -> tuple[Any, ...] | None:
        """The first row of an answer, by a connection that stays open, without SQLAlchemy. Raises `StoreAway`."""
        try:
            with self._looking:
                found: tuple[Any, ...] | None = self._look().execute(question).fetchone()
        except (OSError, sqlite3.Error) as error:
            raise StoreAway(f"the store {self} cannot be asked: {error}; try again", retry_after_s=1.0) from error
        return found

    def engine(self) -> "Engine":
        """An engine whose transactions take the right to write at once, unless its options say `reads`."""
        from sqlalchemy import QueuePool, create_engine, event

        engine = create_engine(f"{SCHEME}{self.path}", creator=self._connected, poolclass=QueuePool, pool_size=1)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "connect", self._connect_event)
        event.listen(engine, "checkout", self._checkout_event)
        return engine

    def close(self) -> None:
        with self._looking:
            if self._looker is not None:
                self._looker[0].close()
            self._looker = None

    def _look(self) -> sqlite3.Connection:
        if self._looker is None or self._looker[1] != self._file():
            if self._looker is not None:
                self._looker[0].close()
                self._looker = None
            self._looker = self._connected(), self._file()
        return self._looker[0]

    def _file(self) -> int:
        """Tells a file from one that took its place: as long as one is open, no other gets its number. 0: no file."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return 0

    def _connect_event(self, _: "DBAPIConnection", record: "ConnectionPoolEntry") -> None:
        record.info["file"] = self._file()

    def _checkout_event(self, _: "DBAPIConnection", record: "ConnectionPoolEntry", __: object) -> None:
        """A connection to a file that is not there any more is no connection."""
        from sqlalchemy.exc import DisconnectionError

        if record.info["file"] != self._file():
            raise DisconnectionError

    def _connected(self) -> sqlite3.Connection:
        """A connection for questions: of one thread at a time, which need not be the one that made it."""
        if not self.path.exists():
            try:
                self._prepare()
            except OSError as error:  # SQLAlchemy passes it on as one of the database's
                raise sqlite3.OperationalError(str(error)) from error
        connection = _connect(self.path, PATIENCE_S)
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    def _prepare(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _one_process(self.path.with_name(f"{self.path.name}.lock")):
            _bring_to_schema(self.path)


class Rows:
    """Puts rows into `attempts`, in a transaction each time. Belongs to one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def insert(self, rows: Sequence[Attempt]) -> Sequence[tuple[Attempt, str]]:
        """Rows that the database refuses for what is in them, and why; all others are in it afterwards. One that was
        there already stays as it is. Raises `StoreAway`, and none of them is in it."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            newest = self._connection.execute(spending.NEWEST).fetchone()
            try:
                self._insert(rows)
                refused: Sequence[tuple[Attempt, str]] = ()
            except _REFUSED:
                self._connection.execute("ROLLBACK")
                self._connection.execute("BEGIN IMMEDIATE")
                newest = self._connection.execute(spending.NEWEST).fetchone()
                refused = self._insert_singly(rows)
            self._connection.execute(_SPENDING, newest)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise StoreAway(str(error)) from error
        return refused

    def keep(self, kept: Sequence[Keepsake]) -> Sequence[tuple[Keepsake, str]]:
        """Put what was said into `bodies`; of the same request, the last; and how it compared into `comparisons`.
        Those that the database refuses, and why. Raises `StoreAway`."""
        refused = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for one in kept:
                try:
                    self._connection.execute(statement(one, "?"), msgspec.structs.astuple(one))
                except (*_REFUSED, UnicodeError) as error:
                    refused.append((one, str(error)))
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise StoreAway(str(error)) from error
        return refused

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()

    def _insert(self, rows: Sequence[Attempt]) -> None:
        """Few statements: each is a moment in which the event loop's thread has to be waited for."""
        start = 0
        for size in STATEMENT_ROWS:
            while len(rows) - start >= size:
                part = map(msgspec.structs.astuple, rows[start : start + size])
                self._connection.execute(_insertion(size), list(chain.from_iterable(part)))
                start += size

    def _insert_singly(self, rows: Sequence[Attempt]) -> Sequence[tuple[Attempt, str]]:
        refused = []
        for row in rows:
            try:
                self._insert([row])
            except _REFUSED as error:
                refused.append((row, str(error)))
        return refused


@lru_cache(maxsize=len(STATEMENT_ROWS))
def _insertion(rows: int) -> str:
    columns = ", ".join(f'"{name}"' for name in _COLUMNS)
    row = f"({', '.join('?' * len(_COLUMNS))})"
    values = ", ".join([row] * rows)
    return f"INSERT INTO attempts ({columns}) VALUES {values} ON CONFLICT (id) DO NOTHING"  # noqa: S608 - no value in it


def _connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """Transactions are explicit."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=busy_s, check_same_thread=False)
    # With WAL, NORMAL survives a crash of any process; a power cut may cost the last moments, never the database.
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _begin(connection: "Connection") -> None:
    reads = connection.get_execution_options().get("reads")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


@contextmanager
def _one_process(lock: Path) -> Iterator[None]:
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _bring_to_schema(path: Path) -> None:
    """An empty database gets the newest schema at once, without Alembic's second of imports; an older one its steps."""
    with closing(_connect(path, PATIENCE_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if not tables:
            schema = Path(__file__).with_name("schema.sql").read_text()
            connection.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")
            return
        newest = "SELECT 1 FROM alembic_version WHERE version_num = ?"
        if "alembic_version" in tables and connection.execute(newest, [NEWEST]).fetchone():
            return
    _migrate(path)


def _migrate(path: Path) -> None:
    from sqlalchemy import NullPool, create_engine, event

    from drivetrain.store import migrate

    engine = create_engine(f"{SCHEME}{path}", creator=lambda: _connect(path, PATIENCE_S), poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    with engine.begin() as connection:
        migrate.upgrade(connection, str(path))
