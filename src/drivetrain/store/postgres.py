"""PostgreSQL: the store of several hosts. Needs the extra `postgres`.

A process holds one connection for its ledger and one for its questions, and opens up to two more for moments: N
processes rest at 2 N connections, and never have more than 4 N.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url

from drivetrain.errors import BadRequest, Internal, StoreAway
from drivetrain.governance import Attempt
from drivetrain.store import spending
from drivetrain.store.kept import Keepsake, statement
from drivetrain.store.migrations import NEWEST

if TYPE_CHECKING:
    from psycopg import Connection

POOL = (1, 2)  # connections for questions: kept, and more for moments
CONNECT_S = 2  # for a connection, or for one of the pool
STATEMENT_S = 10  # for one statement, and for a transaction that does nothing
ORDER = 0x64726976_65000001  # the advisory lock under which rows get their numbers: they appear in their order
_DEFAULTS: Mapping[str, str | int] = {
    "application_name": "drivetrain",
    "connect_timeout": CONNECT_S,
    "options": f"-c statement_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout={STATEMENT_S}s",
    "tcp_user_timeout": STATEMENT_S * 1000,  # a host that vanished is noticed
    "keepalives_idle": STATEMENT_S,
}
Kept = TypeVar("Kept", bound=Attempt | Keepsake)
_REFUSED = (psycopg.DataError, psycopg.IntegrityError)
# Words of a refusal that does not last.
LATER = ("starting up", "shutting down", "recovery", "not yet accepting", "too many", "connection slots")
_SPENDING = spending.addition("CAST(floor(started_s / 3600) AS INTEGER)", "%s").encode()
log = logging.getLogger("drivetrain.store")
_encode = msgspec.json.Encoder().encode
_TYPES = {str: "text", int: "bigint", float: "float8", bool: "bool", float | None: "float8"}


class Postgres:
    """A database at the newest schema."""

    def __init__(self, url: str) -> None:
        """Raises `BadRequest` for a URL that cannot be read."""
        plain = "postgresql" + url[url.index("://") :]
        try:
            known = conninfo_to_dict(plain)
        except psycopg.Error:  # whose message may hold what is secret
            advice = "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            raise BadRequest(f"store.url is no URL that PostgreSQL can read; {advice}", param="store.url") from None
        defaults = {name: value for name, value in _DEFAULTS.items() if name not in known}
        self._conninfo = make_conninfo(plain, **defaults)
        self._place = make_url(plain).render_as_string(hide_password=True)

    def __str__(self) -> str:
        return self._place

    def prepare(self, *, patient: bool = False) -> None:
        """Create the tables, or migrate them, one process at a time. Raises `Internal` if that cannot be done; where it
        is `patient`, only if a server is there and says no."""
        try:
            self._connect().close()
        except psycopg.Error as error:
            if patient and _is_out_of_reach(error):
                log.warning("the store %s cannot be reached, going on without it: %s", self, _told(error))
                return
            advice = "see that it runs and lets us in, or set store.url"
            raise Internal(f"cannot open the store {self}: {_told(error)}; {advice}") from error

    def rows(self) -> "Rows":
        """The ledger's way in. Raises `StoreAway`."""
        try:
            connection = self._connect()
            connection.autocommit = True
        except (psycopg.Error, Internal) as error:
            raise StoreAway(_told(error)) from error
        return Rows(connection)

    def engine(self) -> Engine:
        size, more = POOL
        return create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_size=size,
            max_overflow=more,
            pool_timeout=CONNECT_S,
            pool_pre_ping=True,  # the server may have been restarted since
        )

    def _connect(self) -> "Connection[tuple[object, ...]]":
        """A connection to the newest schema."""
        # Nothing is prepared in the server: a pooler between us may give every transaction another session.
        connection = psycopg.connect(self._conninfo, prepare_threshold=None)
        try:
            if not _is_newest(connection):
                self._migrate()
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self) -> None:
        from sqlalchemy import NullPool

        from drivetrain.store import migrate

        raw = create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(self._conninfo), poolclass=NullPool
        )
        with raw.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # there may be many rows to move
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (ORDER,))
            migrate.upgrade(connection, str(self))


class Rows:
    """Puts rows into `attempts`, in a transaction each time. Belongs to one thread."""

    def __init__(self, connection: "Connection[tuple[object, ...]]") -> None:
        self._connection = connection

    def insert(self, rows: Sequence[Attempt]) -> Sequence[tuple[Attempt, str]]:
        """Rows that the database refuses for what is in them, and why; all others are in it afterwards. One that was
        there already stays as it is. Raises `StoreAway`, and none of them is in it."""
        try:
            try:
                with self._adding():
                    self._insert(rows)
            except _REFUSED:
                with self._adding():
                    return self._insert_singly(rows)
        except (psycopg.Error, OSError) as error:
            raise StoreAway(_told(error)) from error
        return ()

    def keep(self, kept: Sequence[Keepsake]) -> Sequence[tuple[Keepsake, str]]:
        """Put what was said into `bodies`; of the same request, the last; and how it compared into `comparisons`.
        Those that the database refuses, and why. Raises `StoreAway`."""
        refused = []
        try:
            for one in kept:
                try:
                    self._connection.execute(statement(one, "%s").encode(), msgspec.structs.astuple(_without_nul(one)))
                except (*_REFUSED, UnicodeError) as error:
                    refused.append((one, _told(error)))
        except (psycopg.Error, OSError) as error:
            raise StoreAway(_told(error)) from error
        return refused

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """A transaction whose rows get numbers that follow each other, and are added to what was spent."""
        with self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (ORDER,))
            newest = self._connection.execute(spending.NEWEST).fetchone()
            yield
            self._connection.execute(_SPENDING, newest)

    def _insert(self, rows: Sequence[Attempt]) -> None:
        self._connection.execute(_insertion(), (_encode(rows).decode(),))

    def _insert_singly(self, rows: Sequence[Attempt]) -> Sequence[tuple[Attempt, str]]:
        refused = []
        for row in rows:
            try:
                with self._connection.transaction():
                    self._insert([_without_nul(row)])
            except _REFUSED as error:
                refused.append((row, _told(error)))
        return refused


@cache
def _insertion() -> bytes:
    """One statement for any number of rows, as one JSON text: nothing else costs the event loop's thread as little."""
    fields = msgspec.structs.fields(Attempt)
    columns = ", ".join(f'"{field.name}"' for field in fields)
    types = ", ".join(f'"{field.name}" {_TYPES.get(field.type, "text")}' for field in fields)
    values = ", ".join(_value(field) for field in fields)
    return (
        f"INSERT INTO attempts ({columns}) SELECT {values} FROM json_to_recordset(%s::json) AS row({types})"  # noqa: S608 - no value in it
        " ON CONFLICT (id) DO NOTHING"
    ).encode()


def _value(field: msgspec.structs.FieldInfo) -> str:
    """A member that has its default is not in the JSON."""
    if field.required or field.default is None:
        return f'"{field.name}"'
    default = "''" if field.default == "" else str(field.default).lower()
    return f'coalesce("{field.name}", {default})'


def _is_newest(connection: "Connection[tuple[object, ...]]") -> bool:
    try:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except psycopg.errors.UndefinedTable:
        return False
    return found == [(NEWEST,)]


def _without_nul(row: Kept) -> Kept:
    """PostgreSQL's texts hold any character but one."""
    texts = {name: value for name, value in msgspec.structs.asdict(row).items() if isinstance(value, str)}
    return msgspec.structs.replace(row, **{name: text.replace("\0", "�") for name, text in texts.items()})


def _is_out_of_reach(error: psycopg.Error) -> bool:
    """Whether nobody answered, or one who is just starting, stopping or full. A server that refuses says FATAL, and
    there is no code beside it: a wrong password or a missing database is for somebody to put right."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    said = str(error)
    return "FATAL" not in said or any(words in said for words in LATER)


def _told(error: Exception) -> str:
    return " ".join(str(error).split())
