"""The store: where it is, that its schema is the newest, and transactions that are whole."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from drivetrain.errors import BadRequest, Internal, StoreAway
from drivetrain.store import AttemptQuery, Store
from drivetrain.store.migrations import NEWEST
from drivetrain.store.tables import head, orgs, teams
from tests.services import PostgresServer
from tests.unit.store.attempts import attempt, kept

pytestmark = pytest.mark.anyio

URL = "sqlite:///state/drivetrain.db"
ORG = {"id": "01J0000000000000000000ORG1", "name": "default", "disabled": False, "created_s": 1.0, "version": 1}


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("is_new", [True, False])
def test_an_ordinary_start_imports_no_sqlalchemy(tmp_path: Path, is_new: bool) -> None:
    if not is_new:
        store = Store.open(URL, tmp_path)
        store.keep_config("server: {}", actor="start", at_s=1.0)
        store.close()
    printed = run(
        "import sys; from pathlib import Path; from drivetrain.store import Ledger, Store;"
        f"store = Store.open({URL!r}, Path({str(tmp_path)!r})); rows = store.rows(); store.revision();"
        f"{is_new} or store.keep_config('server: {{}}', actor='start', at_s=2.0);"
        "print([name for name in ('sqlalchemy', 'alembic', 'psycopg') if name in sys.modules])"
    )
    assert printed == "[]\n"


def test_an_empty_database_gets_the_newest_schema(tmp_path: Path) -> None:
    Store.open(URL, tmp_path)
    with closing(sqlite3.connect(tmp_path / "state/drivetrain.db")) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(NEWEST,)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_database_without_our_tables_is_migrated_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "state" / "drivetrain.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("INSERT INTO notes VALUES ('mine')")
        connection.commit()
    store = Store.open(URL, tmp_path)
    await kept(store, tmp_path / "state", [attempt(1)])
    assert store.attempts(AttemptQuery()) == [attempt(1)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("mine",)]


def test_a_database_of_a_newer_drivetrain_is_refused_untouched(store: Store, store_url: str, tmp_path: Path) -> None:
    with store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Internal, match="has schema 9999, which a newer Drivetrain wrote"):
        Store.open(store_url, tmp_path)
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == "9999"


def test_a_damaged_database_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "drivetrain.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(Internal, match=r"cannot open the store .*/drivetrain\.db: file is not a database; repair it"):
        Store.open("sqlite:///drivetrain.db", tmp_path)


def test_a_relative_path_is_in_the_home_and_an_absolute_one_is_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert str(Store.open(URL, home)) == str(home / "state" / "drivetrain.db")
    assert str(Store.open(f"sqlite:///{tmp_path}/elsewhere.db", home)) == str(tmp_path / "elsewhere.db")


@pytest.mark.parametrize("url", ["mysql://u:hidden@db/drivetrain", "sqlite://", "sqlite:///", "drivetrain.db"])
def test_another_url_is_refused_with_what_is_allowed(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadRequest, match="use sqlite:///PATH or postgresql://") as refused:
        Store.open(url, tmp_path)
    assert "hidden" not in refused.value.message


def test_a_url_that_postgresql_cannot_read_is_refused_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no URL that PostgreSQL can read") as refused:
        Store.open("postgresql://u:hidden@db/drivetrain?no_such_option=hidden", tmp_path)
    assert "hidden" not in refused.value.message


def test_a_server_that_is_not_there_is_told_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"cannot open the store postgresql://u:\*\*\*@127.0.0.1:1/d: .*refused") as told:
        Store.open("postgresql://u:hidden@127.0.0.1:1/d", tmp_path)
    assert "hidden" not in told.value.message


def test_processes_that_open_a_new_sqlite_database_at_once_all_succeed(tmp_path: Path) -> None:
    program = (
        f"from pathlib import Path; from drivetrain.store import Store; Store.open({URL!r}, Path({str(tmp_path)!r}))"
    )
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]


def test_replicas_that_open_a_new_postgresql_database_at_once_all_succeed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.database("template0") as url:
        program = f"from pathlib import Path; from drivetrain.store import Store; Store.open({url!r}, Path('.'))"
        started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
        assert [process.wait() for process in started] == [0, 0, 0]
        store = Store.open(url, tmp_path)
        assert store.revision() == 0
        store.close()


async def test_a_database_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    store = Store.open(URL, tmp_path)
    with store.writing() as connection:
        connection.execute(update(head).values(revision=7))
    assert store.revision() == 7
    shutil.rmtree(tmp_path / "state")
    assert store.revision() == 0
    await kept(store, tmp_path / "state", [attempt(1)])
    assert store.attempts(AttemptQuery()) == [attempt(1)]
    shutil.rmtree(tmp_path / "state")
    assert store.attempts(AttemptQuery()) == []
    store.close()


def test_a_database_that_cannot_be_made_anew_is_away(tmp_path: Path) -> None:
    store = Store.open(URL, tmp_path)
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_text("a file where the folder was")
    for ask in (store.revision, lambda: store.attempts(AttemptQuery()), store.rows):
        with pytest.raises(StoreAway):
            ask()


def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(IntegrityError):
        with store.writing() as connection:
            connection.execute(insert(orgs).values(ORG))
            connection.execute(insert(orgs).values(ORG))
    with store.reading() as connection:
        assert connection.execute(select(orgs)).all() == []


def test_a_team_needs_its_organisation(store: Store) -> None:
    orphan = {**ORG, "id": "01J0000000000000000000TEAM", "org": "01J0000000000000000000NONE", "models": None}
    with pytest.raises(IntegrityError):
        with store.writing() as connection:
            connection.execute(insert(teams).values(orphan))


def test_writers_that_lock_what_they_read_lose_no_update(store: Store) -> None:
    def count() -> None:
        for _ in range(10):
            with store.writing() as connection:
                seen = connection.execute(select(head.c.revision).with_for_update()).scalar_one()
                connection.execute(update(head).values(revision=seen + 1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.revision() == 30


def test_a_database_that_is_away_is_told_as_that_and_found_again(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.database() as url:
        store = Store.open(url, tmp_path)
        assert store.revision() == 0
        postgres.stop()
        try:
            with pytest.raises(StoreAway, match=r"the store postgresql://.* cannot be asked: .*; try again"):
                store.revision()
            with pytest.raises(StoreAway):
                store.attempts(AttemptQuery())
        finally:
            postgres.start()
        assert store.revision() == 0
        store.close()


def test_a_process_rests_at_two_connections(postgres: PostgresServer, tmp_path: Path) -> None:
    def connections(store: Store) -> int:
        with store.reading() as connection:
            counting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            return int(connection.exec_driver_sql(counting).scalar_one())

    with postgres.database() as url:
        store = Store.open(url, tmp_path)
        rows = store.rows()
        with store.reading(), store.reading():
            assert connections(store) == 4  # and no more can be had
        for _ in range(1_000):  # the server hears of those that are closed a moment later
            if (left := connections(store)) == 2:
                break
        rows.close()
        store.close()
        assert left == 2
