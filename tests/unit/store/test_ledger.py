"""The ledger on SQLite: every attempt becomes one row, once, whatever happens to the database or the process."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from drivetrain.governance import Attempt
from drivetrain.store import AttemptQuery, Ledger, Store
from drivetrain.store.database import Rows
from drivetrain.store.ledger import TEXT_CHARACTERS

pytestmark = pytest.mark.anyio

URL = "sqlite:///state/drivetrain.db"

# What a worker process does in these tests: append rows FIRST…LAST, then say so and wait to be told to stop, or killed.
WORKER = """
import asyncio, sys
from pathlib import Path
from drivetrain.store import Ledger, Store
from drivetrain.governance import Attempt

async def main(home, first, last):
    ledger = Ledger(Store.open("sqlite:///state/drivetrain.db", home), home / "state")
    ledger.start()
    for number in range(first, last):
        ledger.append(Attempt(id=f"{number:026d}", request_id="r", position=1, started_s=1.0, dialect="openai.chat",
            model="m", engine="e", engine_model="m", stream=True, outcome="ok", status=200))
    print("appended", flush=True)
    sys.stdin.readline()
    await ledger.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


def attempt(number: int, **fields: object) -> Attempt:
    row = Attempt(
        id=f"{number:026d}",
        request_id="r",
        position=1,
        started_s=1.0,
        dialect="openai.chat",
        model="m",
        engine="e",
        engine_model="m",
        stream=True,
        outcome="ok",
        status=200,
    )
    return msgspec.structs.replace(row, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(URL, tmp_path)


def place(store: Store) -> Path:
    return Path(str(store))


@asynccontextmanager
async def writing(
    store: Store, drained: Callable[[Sequence[Attempt], int], None] | None = None, memory_rows: int = 1000
) -> AsyncGenerator[Ledger, None]:
    ledger = Ledger(store, place(store).parent, memory_rows=memory_rows)
    ledger.start(drained) if drained else ledger.start()
    try:
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def locked(store: Store) -> Iterator[Callable[[], None]]:
    """Another program has the database for itself, until it lets go."""
    with closing(sqlite3.connect(place(store), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield lambda: connection.rollback()


@contextmanager
def worker(store: Store, first: int, last: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has appended rows `first`…`last` and still runs."""
    home = place(store).parent.parent
    arguments = [sys.executable, "-c", WORKER, str(home), str(first), str(last)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "appended\n"
            yield process
        finally:
            process.kill()


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():
            await anyio.sleep(0.005)


async def test_an_error_that_nobody_foresaw_loses_no_row_and_does_not_end_the_ledger(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[int] = []

    def drained(rows: Sequence[Attempt], backlog: int) -> None:
        if len(broken) < 2:  # also when it is told that something broke
            broken.append(backlog)
            raise LookupError("nobody foresaw this")

    async with writing(store, drained) as ledger:
        ledger.append(attempt(1))
        await until(lambda: len(broken) == 2)
        ledger.append(attempt(2))
        await until(lambda: ledger.backlog == 0)
    assert [row.id for row in store.attempts(AttemptQuery())] == [attempt(2).id, attempt(1).id]
    assert "the ledger: an error that nobody foresaw; the rest goes on" in caplog.messages


async def test_while_such_an_error_lasts_the_database_is_away_and_the_backlog_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, told = threading.Event(), list[tuple[int, int, bool]]()
    way_in = store.rows

    def broken() -> Rows:
        if not whole.is_set():
            raise LookupError("nobody foresaw this")
        return way_in()

    def drained(rows: Sequence[Attempt], backlog: int) -> None:
        told.append((len(rows), backlog, ledger.away))

    monkeypatch.setattr(store, "rows", broken)
    ledger = Ledger(store, place(store).parent)
    ledger.append(attempt(1))
    ledger.start(drained)
    await until(lambda: len(told) >= 2)
    assert told[:2] == [(1, 1, False), (0, 1, True)]
    whole.set()
    await until(lambda: told[-1] == (0, 0, False))
    await ledger.close()


def rows(store: Store) -> list[str]:
    with closing(sqlite3.connect(place(store))) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM attempts ORDER BY id")]


def ids(*numbers: range) -> list[str]:
    return [f"{number:026d}" for span in numbers for number in span]


def journals(store: Store) -> list[Path]:
    return list((place(store).parent / "ledger").glob("*.journal"))


async def test_a_row_comes_back_as_it_went_in(store: Store) -> None:
    row = attempt(1, first_token_s=0.25, usage_estimated=True, cost_micro_usd=2**40, why="überlast 🚂", status=502)
    async with writing(store) as ledger:
        ledger.append(row)
        assert await ledger.flush()
        assert store.attempts(AttemptQuery()) == [row]


async def test_rows_are_written_without_anybody_asking(store: Store) -> None:
    async with writing(store) as ledger:
        for number in range(2500):
            ledger.append(attempt(number))
        await until(lambda: ledger.backlog == 0)
        assert rows(store) == ids(range(2500))
        ledger.append(attempt(2500))  # after a rest
        await until(lambda: ledger.backlog == 0)
        assert rows(store) == ids(range(2501))


async def test_a_row_that_comes_twice_is_kept_once(store: Store) -> None:
    async with writing(store) as ledger:
        ledger.append(attempt(1))
        await ledger.flush()
        ledger.append(attempt(1, status=500))
        await ledger.flush()
    assert [row.status for row in store.attempts(AttemptQuery())] == [200]


async def test_closing_writes_what_is_left_and_leaves_no_journal(store: Store) -> None:
    async with writing(store) as ledger:
        ledger.append(attempt(1))
    assert rows(store) == ids(range(1, 2))
    await until(lambda: journals(store) == [])


async def test_a_locked_database_costs_patience_only(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async with writing(store) as ledger:
        with locked(store) as unlock:
            ledger.append(attempt(1))
            await until(lambda: "the ledger cannot be written, 1 rows are kept: database is locked" in caplog.text)
            ledger.append(attempt(2))
            assert not await ledger.flush(timeout_s=0.01)
            assert ledger.backlog == 2
            unlock()
        assert await ledger.flush()
        await until(lambda: "the ledger is written again" in caplog.text)  # told after the rows are there
    assert rows(store) == ids(range(1, 3))


async def test_rows_beyond_the_bound_of_memory_wait_in_the_journal(store: Store) -> None:
    async with writing(store, memory_rows=10) as ledger:
        with locked(store) as unlock:
            for number in range(6000):  # more than one segment
                ledger.append(attempt(number))
            assert (ledger.backlog, ledger.lost) == (6000, 0)
            assert len(journals(store)) > 1
            unlock()
        assert await ledger.flush()
        ledger.append(attempt(6000))
        assert await ledger.flush()
        assert ledger.backlog == 0
    assert rows(store) == ids(range(6001))
    await until(lambda: journals(store) == [])


async def test_what_cannot_be_written_before_the_end_is_written_at_the_next_start(store: Store) -> None:
    with locked(store):
        async with writing(store, memory_rows=10) as ledger:
            for number in range(20):
                ledger.append(attempt(number))
    assert rows(store) == []
    async with writing(store):
        await until(lambda: rows(store) == ids(range(20)))
    await until(lambda: journals(store) == [])


async def test_a_killed_process_loses_no_row(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with locked(store) as unlock:  # so that none of them can have been written yet
        with worker(store, 0, 500) as process:
            os.kill(process.pid, signal.SIGKILL)
        unlock()
    async with writing(store):
        await until(lambda: rows(store) == ids(range(500)))
        await until(lambda: "took 500 rows from the journal of a process that died" in caplog.text)
    await until(lambda: journals(store) == [])


async def test_a_living_process_keeps_its_journal_to_itself(store: Store) -> None:
    with locked(store) as unlock, worker(store, 0, 5) as process:
        async with writing(store) as ledger:
            ledger.append(attempt(5))
            unlock()
            assert await ledger.flush()
        process.communicate("stop\n")
    assert rows(store) == ids(range(6))


async def test_several_processes_write_one_database(store: Store) -> None:
    with worker(store, 0, 2000) as one, worker(store, 2000, 4000) as other:
        async with writing(store) as ledger:
            for number in range(4000, 6000):
                ledger.append(attempt(number))
                if number % 100 == 0:
                    await ledger.flush()
        one.communicate("stop\n")
        other.communicate("stop\n")
    assert rows(store) == ids(range(6000))


async def test_a_row_that_the_database_refuses_does_not_hold_up_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    too_large = attempt(2, prompt_tokens=2**63)
    async with writing(store) as ledger:
        for row in (attempt(1), too_large, attempt(3)):
            ledger.append(row)
        assert await ledger.flush()
    assert rows(store) == ids(range(1, 2), range(3, 4))
    refused = (place(store).parent / "ledger" / "refused.jsonl").read_bytes()
    assert msgspec.json.decode(refused, type=Attempt) == too_large
    assert "a row does not fit the ledger" in caplog.text


async def test_a_name_of_a_megabyte_is_cut(store: Store) -> None:
    async with writing(store) as ledger:
        ledger.append(attempt(1, model="x" * 2**20))
        assert await ledger.flush()
    assert [row.model for row in store.attempts(AttemptQuery())] == ["x" * TEXT_CHARACTERS]


async def test_rows_without_memory_or_disk_are_counted_as_lost(store: Store) -> None:
    (place(store).parent / "ledger").write_text("a file where the journal's folder should be")
    async with writing(store, memory_rows=2) as ledger:
        with locked(store) as unlock:
            for number in range(5):
                ledger.append(attempt(number))
            assert (ledger.backlog, ledger.lost) == (2, 3)
            unlock()
        assert await ledger.flush()
    assert rows(store) == ids(range(2))


async def test_every_row_is_drained_once_in_order_with_the_backlog_on_the_ledgers_thread(store: Store) -> None:
    seen: list[str] = []
    backlogs: list[int] = []
    threads: set[str] = set()

    def drained(attempts: Sequence[Attempt], backlog: int) -> None:
        seen.extend(row.id for row in attempts)
        backlogs.append(backlog)
        threads.add(threading.current_thread().name)

    async with writing(store, drained) as ledger:
        with locked(store) as unlock:
            for number in range(50):
                ledger.append(attempt(number))
            await until(lambda: len(seen) == 50)  # while the database is still away
            unlock()
        assert await ledger.flush()
        await until(lambda: backlogs[-1] == 0)
    assert seen == ids(range(50))
    assert max(backlogs) == 50
    assert threads == {"ledger"}


async def test_a_ledger_that_never_started_closes(store: Store) -> None:
    ledger = Ledger(store, place(store).parent)
    await ledger.close()
