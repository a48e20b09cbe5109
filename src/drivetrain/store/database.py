"""One database: that its schema is the newest, transactions in it, and questions to it.

Everything but `open` and the making of a `Store` may wait for the database: call it from a thread. What cannot be
asked because the database is away raises `StoreAway`.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from drivetrain.errors import BadRequest, StoreAway
from drivetrain.governance import Attempt, Rule
from drivetrain.store import kept, spending, usage
from drivetrain.store.kept import Body, ConfigRevision, Keepsake
from drivetrain.store.sqlite import SCHEME, Sqlite
from drivetrain.store.usage import AttemptQuery, UsageQuery, UsageRow

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from drivetrain.store.postgres import Postgres

POSTGRES = ("postgresql", "postgres")
REVISION = "SELECT revision FROM head"
REPORT_S = 300  # how long a question that goes over many rows may take


class Rows(Protocol):
    """The ledger's way in: `sqlite.Rows` or `postgres.Rows`."""

    def insert(self, rows: Sequence[Attempt]) -> Sequence[tuple[Attempt, str]]: ...
    def keep(self, kept: Sequence[Keepsake]) -> Sequence[tuple[Keepsake, str]]: ...
    def close(self) -> None: ...


class Store:
    """A database at the newest schema, of whatever kind."""

    def __init__(self, database: "Sqlite | Postgres") -> None:
        self._database = database
        self._making = threading.Lock()
        self._reports = threading.Lock()  # one at a time: they leave connections to those who are in a hurry

    @classmethod
    def open(cls, url: str, home: Path, *, patient: bool = False) -> "Store":
        """The database of `store.url`; a relative path is relative to `home`. Creates it, or migrates it, one process
        at a time. Raises `BadRequest` for a URL of another kind and `Internal` for a database that cannot be used.

        `patient`: one on another host that cannot be reached now is away, like one that goes later; whoever reaches it
        first migrates it."""
        database = _database(url, home)
        database.prepare(patient=patient)
        return cls(database)

    def __str__(self) -> str:
        """Where it is, as messages tell it: no password."""
        return str(self._database)

    def rows(self) -> Rows:
        """A way in for the ledger's thread. A database that was taken away since `open` is made anew."""
        return self._database.rows()

    def engine(self) -> "Engine":
        """SQLAlchemy's way in, made once. `reading` and `writing` are what to use of it."""
        with self._making:
            return self._engine

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """A transaction that writes nothing."""
        with asking(self), self.engine().execution_options(reads=True).begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> "Iterator[Connection]":
        """A transaction, committed at the end. In SQLite nobody else writes meanwhile; in PostgreSQL lock what you
        read before you write."""
        with asking(self), self.engine().begin() as connection:
            yield connection

    def revision(self) -> int:
        """The newest revision of `audit`: whether anything has changed. Cheap enough to be asked twice a second, and
        needs no SQLAlchemy where the rest does not."""
        return int((self._first(REVISION) or (0,))[0])

    def close(self) -> None:
        """Let go of connections."""
        with self._making:
            if "_engine" in self.__dict__:
                self._engine.dispose()
        if isinstance(self._database, Sqlite):
            self._database.close()

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def attempts(self, query: AttemptQuery) -> list[Attempt]:
        """Rows of the ledger, newest first."""
        with self._reporting() as connection:
            return usage.attempts_of(connection, query)

    def after(self, seq: int, limit: int) -> list[tuple[int, Attempt]]:
        """Rows that were committed after the one numbered `seq`, with their numbers, in their order."""
        with self.reading() as connection:
            return usage.attempts_after(connection, seq, limit)

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """What the rows come to, ordered by what they are grouped by."""
        with self._reporting() as connection:
            return usage.usage_of(connection, query)

    def spent(self, rule: Rule, from_s: float, until_s: float) -> int:
        """Micro-dollars within the scope of a rule: what a budget starts with."""
        with self.reading() as connection:
            return spending.spent_by(connection, rule, from_s, until_s)

    # --- what is kept beside it ---------------------------------------------------------------------------------------

    def body(self, request_id: str, now_s: float | None = None) -> Body | None:
        """What was said in a request, if `Ledger.keep` kept it and its time is not over, swept or not."""
        with self.reading() as connection:
            return kept.body(connection, request_id, time.time() if now_s is None else now_s)

    def sweep_bodies(self, now_s: float) -> int:
        """Delete bodies whose time is over: how many those were. Where none is kept it needs no SQLAlchemy."""
        if self._first(kept.ANY_BODY) is None:
            return 0
        with self.writing() as connection:
            return kept.sweep_bodies(connection, now_s)

    def sweep_comparisons(self, before_s: float) -> int:
        """Delete those that were made before: how many those were. Where there are none it needs no SQLAlchemy."""
        oldest_s = (self._first(kept.OLDEST_COMPARISON) or (None,))[0]
        if oldest_s is None or oldest_s >= before_s:
            return 0
        with self.writing() as connection:
            return kept.sweep_comparisons(connection, before_s)

    def keep_config(self, body: str, *, actor: str, at_s: float) -> ConfigRevision:
        """Give a configuration a number, unless it is the newest one already."""
        newest = self._first(kept.NEWEST_CONFIG)
        if newest is not None and newest[-1] == body:
            return ConfigRevision(**dict(zip(ConfigRevision.__struct_fields__, newest, strict=True)))
        with self.writing() as connection:
            return kept.keep_config(connection, body, actor=actor, at_s=at_s)

    def config(self, revision: int) -> ConfigRevision | None:
        with self.reading() as connection:
            return kept.config(connection, revision)

    def configs(self, limit: int = 100) -> list[ConfigRevision]:
        """Newest first."""
        with self.reading() as connection:
            return kept.configs(connection, limit)

    def _first(self, question: str) -> Sequence[Any] | None:
        if isinstance(self._database, Sqlite):  # what every start asks: it needs no SQLAlchemy
            return self._database.first(question)
        with self.reading() as connection:
            return connection.exec_driver_sql(question).first()

    @contextmanager
    def _reporting(self) -> "Iterator[Connection]":
        with self._reports, self.reading() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{REPORT_S}s'")
            yield connection

    @cached_property
    def _engine(self) -> "Engine":
        return self._database.engine()


def _database(url: str, home: Path) -> "Sqlite | Postgres":
    if url.startswith(SCHEME) and url != SCHEME:
        return Sqlite(home / url.removeprefix(SCHEME))
    scheme, colon, _ = url.partition("://")
    if not colon or scheme.partition("+")[0] not in POSTGRES:
        advice = "use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        raise BadRequest(f"store.url {scheme.partition(':')[0]!r} is not supported; {advice}", param="store.url")
    try:
        from drivetrain.store.postgres import Postgres
    except ModuleNotFoundError as error:
        advice = "pip install 'drivetrain[postgres]'"
        raise BadRequest(f"store.url asks for PostgreSQL, and {error.name} is missing; {advice}") from error
    return Postgres(url)


@contextmanager
def asking(store: Store) -> Iterator[None]:
    """Raises `StoreAway` for what SQLAlchemy raises inside because the database cannot be asked."""
    from sqlalchemy import exc

    reason: object
    try:
        yield
    except (exc.IntegrityError, exc.DataError, exc.ProgrammingError):
        raise  # the database is there, and what was asked is wrong
    except exc.TimeoutError as error:
        cause: Exception = error
        reason = "all connections are in use"
    except exc.DBAPIError as error:
        cause, reason = error, error.orig
    else:
        return
    told = " ".join(str(reason).split())
    raise StoreAway(f"the store {store} cannot be asked: {told}; try again", retry_after_s=1.0) from cause
