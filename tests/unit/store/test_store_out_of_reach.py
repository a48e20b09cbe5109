"""A server starts although its PostgreSQL is away, and not although it is set up wrong."""

from pathlib import Path

import pytest

from drivetrain.errors import Internal, StoreAway
from drivetrain.store import Ledger, Store
from drivetrain.store.usage import AttemptQuery
from tests.services import PostgresServer
from tests.unit.store.test_timeline import attempt

pytestmark = pytest.mark.anyio


async def test_a_database_that_cannot_be_reached_at_the_start_is_away_until_it_can(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.database("template0") as url:  # without a table: whoever reaches it first makes them
        postgres.stop()
        try:
            store = Store.open(url, tmp_path, patient=True)
            with pytest.raises(StoreAway):
                store.revision()
            ledger = Ledger(store, tmp_path / "state")
            ledger.start()
            ledger.append(attempt(id="before it was there"))
            assert not await ledger.flush(timeout_s=0.2)
        finally:
            postgres.start()
        assert await ledger.flush(timeout_s=20)
        assert store.revision() == 0
        assert [row.id for row in store.attempts(AttemptQuery())] == ["before it was there"]
        await ledger.close()
        store.close()


def test_who_is_not_patient_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(Internal, match="cannot open the store"):
        Store.open("postgresql://u@127.0.0.1:1/d", tmp_path)


def test_a_database_that_its_server_does_not_know_is_a_mistake_however_patient_one_is(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with pytest.raises(Internal, match=r'database "nowhere" does not exist'):
        Store.open(postgres.url("nowhere"), tmp_path, patient=True)


def test_no_patience_mends_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "drivetrain.db").write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(Internal, match="file is not a database"):
        Store.open("sqlite:///drivetrain.db", tmp_path, patient=True)
