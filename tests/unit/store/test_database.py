"""The store: one schema, however a database came to it, and the questions it answers."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from drivetrain.errors import BadRequest, Internal
from drivetrain.store import AttemptQuery, Ledger, Store, database
from drivetrain.types import Attempt

pytestmark = pytest.mark.anyio

URL = "sqlite:///state/drivetrain.db"


def attempt(number: int, **fields: object) -> Attempt:
    row = Attempt(
        id=f"01J0000000000000000000{number:04d}",
        request_id=f"req_{number}",
        position=1,
        started_s=1000.0 + number,
        dialect="openai.chat",
        model="smollm2:135m",
        engine="local",
        engine_model="smollm2",
        stream=True,
        outcome="ok",
        status=200,
        first_token_s=0.01,
    )
    return msgspec.structs.replace(row, **fields)


async def kept(store: Store, state: Path, rows: list[Attempt]) -> None:
    ledger = Ledger(store, state)
    ledger.start()
    for row in rows:
        ledger.append(row)
    await ledger.close()


def test_an_empty_database_gets_the_newest_schema_without_importing_sqlalchemy(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from drivetrain.store import Store;"
        f"Store.open({URL!r}, Path({str(tmp_path)!r}));"
        "print([name for name in ('sqlalchemy', 'alembic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with closing(sqlite3.connect(tmp_path / "state/drivetrain.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(database.SCHEMA,)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_schema_file_is_what_the_migrations_make(tmp_path: Path) -> None:
    from drivetrain.store import migrate

    migrate.upgrade(f"sqlite:///{tmp_path / 'migrated.db'}")
    assert Path(database.__file__).with_name("schema.sql").read_text() == migrate.dump(tmp_path / "migrated.db")
    assert migrate.revisions()[0] == database.SCHEMA


def test_the_tables_are_what_the_migrations_make(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import NullPool, create_engine

    from drivetrain.store.tables import attempts, metadata

    store = Store.open(URL, tmp_path)
    with create_engine(f"sqlite:///{store.path}", poolclass=NullPool).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert tuple(attempts.c.keys()) == Attempt.__struct_fields__


async def test_a_database_without_our_tables_is_migrated_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "state" / "drivetrain.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("INSERT INTO notes VALUES ('mine')")
        connection.commit()
    store = Store.open(URL, tmp_path)
    await kept(store, tmp_path / "state", [attempt(1)])
    assert await store.attempts(AttemptQuery()) == [attempt(1)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("mine",)]


def test_a_database_of_a_newer_drivetrain_is_refused_untouched(tmp_path: Path) -> None:
    store = Store.open(URL, tmp_path)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    with pytest.raises(Internal, match="has schema 9999, which a newer Drivetrain wrote"):
        Store.open(URL, tmp_path)


def test_a_damaged_database_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "drivetrain.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(Internal, match=r"cannot open the store .*/drivetrain\.db: file is not a database; repair it"):
        Store.open("sqlite:///drivetrain.db", tmp_path)


def test_a_relative_path_is_in_the_home_and_an_absolute_one_is_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert Store.open(URL, home).path == home / "state" / "drivetrain.db"
    assert Store.open(f"sqlite:///{tmp_path}/elsewhere.db", home).path == tmp_path / "elsewhere.db"


@pytest.mark.parametrize("url", ["postgresql://db/drivetrain", "sqlite://", "sqlite:///", "drivetrain.db"])
def test_another_url_is_refused_with_what_is_allowed(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadRequest, match="use sqlite:///PATH"):
        Store.open(url, tmp_path)


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    program = (
        f"from pathlib import Path; from drivetrain.store import Store; Store.open({URL!r}, Path({str(tmp_path)!r}))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]


async def test_a_query_gives_the_newest_rows_first_and_only_what_it_asks_for(tmp_path: Path) -> None:
    store = Store.open(URL, tmp_path)
    rows = [
        attempt(1),
        attempt(2, model="other", engine="remote"),
        attempt(3, outcome="error", status=502, why="engine_failed", first_token_s=None),
        attempt(4, request_id="req_3", position=2),
    ]
    await kept(store, tmp_path / "state", rows)

    async def numbers(query: AttemptQuery) -> list[int]:
        return [int(row.id[-4:]) for row in await store.attempts(query)]

    assert await store.attempts(AttemptQuery()) == rows[::-1]
    assert await numbers(AttemptQuery(limit=2)) == [4, 3]
    assert await numbers(AttemptQuery(request_id="req_3")) == [4, 3]
    assert await numbers(AttemptQuery(model="other")) == [2]
    assert await numbers(AttemptQuery(engine="local", outcome="ok")) == [4, 1]
    assert await numbers(AttemptQuery(since_s=1002.0, until_s=1004.0)) == [3, 2]


async def test_a_database_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    store = Store.open(URL, tmp_path)
    shutil.rmtree(tmp_path / "state")
    await kept(store, tmp_path / "state", [attempt(1)])
    assert await store.attempts(AttemptQuery()) == [attempt(1)]
