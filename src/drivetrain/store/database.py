"""One database: where it is, that its schema is the newest, and questions to it."""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio.to_thread
import msgspec

from drivetrain.errors import BadRequest, Internal
from drivetrain.types import Attempt

SCHEMA = "0001"  # the newest revision of `migrations`; `schema.sql` makes it
SQLITE = "sqlite:///"
BUSY_MS = 250  # how long one statement waits for another process; the ledger retries for as long as it takes


class AttemptQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of the ledger, newest first. `None` does not restrict."""

    request_id: str | None = None
    model: str | None = None
    engine: str | None = None
    outcome: str | None = None
    since_s: float | None = None  # Unix time, inclusive
    until_s: float | None = None  # Unix time, exclusive
    limit: int = 100


class Store:
    """A database at the newest schema."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, url: str, home: Path) -> "Store":
        """The database of `store.url`; a relative path is relative to `home`. Creates it, or migrates it, one process
        at a time. Raises `BadRequest` for a URL of another kind and `Internal` for a database that cannot be used."""
        if not url.startswith(SQLITE) or url == SQLITE:
            raise BadRequest(f"store.url {url!r} is not supported; use sqlite:///PATH", param="store.url")
        path = home / url.removeprefix(SQLITE)
        try:
            _prepare(path)
        except (OSError, sqlite3.Error) as error:
            advice = "repair it, move it away, or set store.url"
            raise Internal(f"cannot open the store {path}: {error}; {advice}") from error
        return cls(path)

    def connect(self) -> sqlite3.Connection:
        """A connection of the calling thread, for the ledger's hot insert. Transactions are explicit. A database that
        was taken away since `open` is made anew."""
        _prepare(self.path)
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1000)
        # With WAL, NORMAL survives a crash of any process; a power cut may cost the last moments, never the database.
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    async def attempts(self, query: AttemptQuery) -> list[Attempt]:
        """Rows of the ledger, newest first."""
        return await anyio.to_thread.run_sync(self._attempts, query)

    def _attempts(self, query: AttemptQuery) -> list[Attempt]:
        from sqlalchemy import NullPool, create_engine, select

        from drivetrain.store.tables import attempts

        column = attempts.c
        exact = {column[name]: getattr(query, name) for name in ("request_id", "model", "engine", "outcome")}
        asked = select(attempts).order_by(column.id.desc()).limit(query.limit)
        asked = asked.where(*[column == value for column, value in exact.items() if value is not None])
        if query.since_s is not None:
            asked = asked.where(column.started_s >= query.since_s)
        if query.until_s is not None:
            asked = asked.where(column.started_s < query.until_s)
        with create_engine(f"sqlite:///{self.path}", poolclass=NullPool).connect() as connection:
            return [Attempt(**row) for row in connection.execute(asked).mappings()]


def _prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _one_process(path.with_name(f"{path.name}.lock")):
        _bring_to_schema(path)


@contextmanager
def _one_process(lock: Path) -> Iterator[None]:
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _bring_to_schema(path: Path) -> None:
    """An empty database gets the newest schema at once, without Alembic's second of imports; an older one its steps."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5.0)) as connection:
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA journal_mode=WAL")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if not tables:
            schema = Path(__file__).with_name("schema.sql").read_text()
            connection.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")
            return
        newest = "SELECT 1 FROM alembic_version WHERE version_num = ?"
        if "alembic_version" in tables and connection.execute(newest, [SCHEMA]).fetchone():
            return
    from drivetrain.store import migrate

    migrate.upgrade(f"sqlite:///{path}")
