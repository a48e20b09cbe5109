"""The schema: the same however a database came to it, and what an older one held is still there."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine

from drivetrain.errors import Internal
from drivetrain.governance import Attempt, Key, Rule, Team, Terms
from drivetrain.store import AttemptQuery, Store, migrate, migrations, sqlite
from drivetrain.store.directory import Directory
from drivetrain.store.migrations import NEWEST
from drivetrain.store.rollouts import Rollouts
from drivetrain.store.tables import attempts, metadata
from tests.services import PostgresServer
from tests.unit.store.administrators import PEPPER, administration
from tests.unit.store.attempts import attempt, kept
from tests.unit.store.plans import begun

pytestmark = pytest.mark.anyio

FIRST = """INSERT INTO attempts (id, request_id, position, started_s, dialect, model, engine, engine_model, stream,
outcome, status, why, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, usage_estimated,
first_token_s, total_s, cost_micro_usd) VALUES"""
OLD = (  # out of order, and one request that took two attempts
    f"{FIRST} ('01J00000000000000000000003', 'b', 2, 3.5, 'openai.chat', 'm', 'e2', 'm2', true, 'ok', 200, 'x', 5, 1,"
    " 7, 2, true, 0.25, 1.5, 40)",
    f"{FIRST} ('01J00000000000000000000001', 'a', 1, 1.5, 'ollama', 'm', 'e', 'm', false, 'ok', 200, '', 1, 0, 2, 0,"
    " false, NULL, 0.5, 9)",
    f"{FIRST} ('01J00000000000000000000002', 'b', 1, 2.5, 'openai.chat', 'm', 'e', 'm', true, 'absorbed', 502,"
    " 'engine_failed', 0, 0, 0, 0, false, NULL, 0.5, 0)",
)
NEW = [
    attempt(1, id="01J00000000000000000000001", request_id="a", started_s=1.5, received_s=1.5, dialect="ollama",
            model="m", engine="e", engine_model="m", stream=False, first_token_s=None, total_s=0.5, prompt_tokens=1,
            completion_tokens=2, cost_micro_usd=9),
    attempt(2, id="01J00000000000000000000002", request_id="b", started_s=2.5, received_s=2.5, model="m", engine="e",
            engine_model="m", outcome="absorbed", status=502, why="engine_failed", first_token_s=None, total_s=0.5,
            final=False),
    attempt(3, id="01J00000000000000000000003", request_id="b", position=2, started_s=3.5, received_s=3.5, model="m",
            engine="e2", engine_model="m2", why="x", prompt_tokens=5, cached_tokens=1, completion_tokens=7,
            reasoning_tokens=2, usage_estimated=True, first_token_s=0.25, total_s=1.5, cost_micro_usd=40),
]  # fmt: skip
THIRD = (
    "INSERT INTO orgs VALUES ('o', 'acme', false, 1.0, 1)",
    "INSERT INTO teams VALUES ('t', 'o', 'search', NULL, false, 1.0, 1)",
    "INSERT INTO projects VALUES ('p', 't', 'web', false, 1.0, 1)",
    "INSERT INTO users VALUES ('u', 'o', 'Ada', '', '', '[]', false, 1.0, 1)",
    "INSERT INTO keys VALUES ('k', '123456789012', 'h', 'q', 'ci', 'p', 'u', '[\"inference\"]', '[\"chat\"]', 'bulk',"
    " NULL, '', '{\"env\": \"ci\"}', false, 1.0, 3)",
)
SECOND = (attempt(5), attempt(6, outcome="error", status=502))


@contextmanager
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


def filled_old(url: str) -> None:
    with engine(url) as made, made.begin() as connection:
        migrate.upgrade(connection, "old", to="0001")
        for statement in OLD:
            connection.exec_driver_sql(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/drivetrain.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database("template0") as url:
        yield url


def test_the_schema_file_is_what_the_migrations_make(tmp_path: Path) -> None:
    path = tmp_path / "migrated.db"
    with engine(f"sqlite:///{path}") as made, made.begin() as connection:
        migrate.upgrade(connection, "new")
    schema = Path(sqlite.__file__).with_name("schema.sql")
    assert schema.read_text() == migrate.dump(path), f"write migrate.dump(…) to {schema}"


def differences(store: Store) -> list[Any]:
    """Between its tables and those that are described."""
    with store.reading() as connection:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))


def test_the_newest_step_is_the_schema_that_is_asked_for() -> None:
    assert migrate.revisions() == [NEWEST, "0003", "0002", "0001"]


def test_the_tables_are_what_the_migrations_make(empty_url: str) -> None:
    with engine(empty_url) as made:
        with made.begin() as connection:
            migrate.upgrade(connection, "new")
        with made.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_there_is_no_way_back_from_the_newest_schema(tmp_path: Path) -> None:
    script = ScriptDirectory(str(Path(migrations.__file__).parent)).get_revision(NEWEST)
    with pytest.raises(Internal, match="cannot go back to schema 0003; put a copy of the database in its place"):
        script.module.downgrade()


def test_the_tables_are_what_the_schema_file_makes(tmp_path: Path) -> None:
    assert differences(Store.open("sqlite:///drivetrain.db", tmp_path)) == []


def test_a_row_of_the_ledger_has_a_column_for_each_field() -> None:
    assert tuple(attempts.c.keys()) == ("seq", *Attempt.__struct_fields__)


async def test_a_filled_database_of_the_first_schema_keeps_its_rows_and_takes_new_ones(
    empty_url: str, tmp_path: Path
) -> None:
    filled_old(empty_url)
    store = Store.open(empty_url, tmp_path)
    assert store.after(0, 10) == list(enumerate(NEW, 1))
    assert store.spent(Rule(id="policy:p:m:money:day", owner="", resource="money", amount=1), 0.0, 7200.0) == 49
    await kept(store, tmp_path / "state", [attempt(4), NEW[0]])  # the second is there already
    assert store.attempts(AttemptQuery()) == [attempt(4), *NEW[::-1]]
    assert differences(store) == []
    store.close()


async def test_a_filled_database_of_the_second_schema_keeps_its_rows_and_takes_rollouts(
    empty_url: str, tmp_path: Path
) -> None:
    with engine(empty_url) as made, made.begin() as connection:
        migrate.upgrade(connection, "old", to="0002")
        for row in SECOND:
            connection.execute(attempts.insert().values(msgspec.structs.asdict(row)))
        connection.exec_driver_sql("INSERT INTO orgs VALUES ('o', 'acme', false, 1.0, 1)")
    store = Store.open(empty_url, tmp_path)
    assert store.attempts(AttemptQuery()) == list(SECOND[::-1])
    one = begun(Rollouts(store))
    await kept(store, tmp_path / "state", [attempt(7, rollout=f"{one.id}:new", started_s=one.since_s + 1)])
    assert [arm.requests for arm in Rollouts(store).report(one).arms.arms] == [0, 1]
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT name FROM orgs").scalars().all() == ["acme"]
    assert differences(store) == []
    store.close()


async def test_a_filled_database_of_the_third_schema_keeps_its_keys_and_takes_terms(
    empty_url: str, tmp_path: Path
) -> None:
    with engine(empty_url) as made, made.begin() as connection:
        migrate.upgrade(connection, "old", to="0003")
        for statement in THIRD:
            connection.exec_driver_sql(statement)
    store = Store.open(empty_url, tmp_path)
    admin = administration(store)
    key = admin.get("key", "ci")
    assert isinstance(key, Key)
    assert (key.id, key.terms, key.version, key.tags) == ("k", Terms(), 3, {"env": "ci"})
    assert admin.get("team", "search") == Team(id="t", org="o", name="search", created_s=1.0)
    record = await Directory(store, PEPPER).find("123456789012")
    assert record is not None
    assert (record.principal.models, record.principal.terms) == (("chat",), ())
    admin.update("key", "k", 3, {"terms": {"queue_size": 0}}, actor="cli root")
    admin.update("org", "o", 1, {"terms": {"idle_s": 2}}, actor="cli root")
    record = await Directory(store, PEPPER).find("123456789012")
    assert record is not None
    assert [said.owner for said in record.principal.terms] == ["key 'ci'", "org 'acme'"]
    assert differences(store) == []
    store.close()


def test_a_step_that_fails_leaves_the_old_database_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "drivetrain.db"
    filled_old(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sinks (mine)")  # in the way of the last statement
        connection.commit()
    with pytest.raises(
        Internal, match="stays as it is, schema 0001: a step to head failed: table sinks already exists"
    ):
        Store.open(f"sqlite:///{path}", tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (3,)
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
