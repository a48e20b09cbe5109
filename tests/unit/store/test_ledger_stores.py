"""The ledger on either database: every attempt becomes one row, once, and those who read on by its number miss none.

What happens to it while PostgreSQL is away, or loses connections. `test_ledger.py` does the same to SQLite, and more.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import psycopg
import pytest

from drivetrain.governance import Attempt
from drivetrain.store import AttemptQuery, Body, Store, UsageQuery
from tests.services import PostgresServer
from tests.unit.store.attempts import attempt, writing

pytestmark = pytest.mark.anyio

# What a worker process does here: append rows FIRST…LAST, then say so and wait to be killed.
WORKER = """
import asyncio, sys
from pathlib import Path
from drivetrain.store import Ledger, Store
from tests.unit.store.attempts import attempt

async def main(url, state, first, last):
    store = Store.open(url, state)
    print("opened", flush=True)
    sys.stdin.readline()
    ledger = Ledger(store, state)
    ledger.start()
    for number in range(first, last):
        ledger.append(attempt(number))
    print("appended", flush=True)
    sys.stdin.readline()

asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
"""


def ids(store: Store) -> list[int]:
    return sorted(int(row.id[-4:]) for row in store.attempts(AttemptQuery(limit=100_000)))


@contextmanager
def worker(url: str, state: Path, first: int, last: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened the store, and appends its rows when it is told to go on."""
    arguments = [sys.executable, "-c", WORKER, url, str(state), str(first), str(last)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "opened\n"
            yield process
        finally:
            process.kill()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "appended\n"


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not true():
            await anyio.sleep(0.01)


async def test_a_row_comes_back_as_it_went_in(store: Store, tmp_path: Path) -> None:
    fields = msgspec.structs.asdict(attempt(1))
    texts = {name: f"überlast 🚂 {name}" for name, value in fields.items() if isinstance(value, str)}
    short = ("id", "key_id", "user_id", "project_id", "team_id", "org_id", "price_id", "outcome", "trace_id")
    texts |= dict.fromkeys(short, "ok") | dict.fromkeys(("span_id", "parent_span_id"), "0123456789abcdef")
    numbers = {name: 2**40 + 7 for name in fields if name.endswith(("_tokens", "_micro_usd"))}
    times = {name: 0.1 + 0.2 for name in fields if name.endswith("_s")}
    row = attempt(1, **texts, **numbers, **times, final=False, usage_estimated=True, position=3, status=502)
    async with writing(store, tmp_path) as ledger:
        ledger.append(row)
        ledger.append(attempt(2))
        assert await ledger.flush()
    assert store.attempts(AttemptQuery()) == [attempt(2), row]


async def test_a_row_that_comes_twice_is_kept_once(store: Store, tmp_path: Path) -> None:
    async with writing(store, tmp_path) as ledger:
        ledger.append(attempt(1))
        await ledger.flush()
        ledger.append(attempt(1, status=500))
        ledger.append(attempt(2))
        await ledger.flush()
    assert store.attempts(AttemptQuery()) == [attempt(2), attempt(1)]


async def test_a_row_that_the_database_refuses_does_not_hold_up_the_others(store: Store, tmp_path: Path) -> None:
    too_large = attempt(2, prompt_tokens=2**63)
    async with writing(store, tmp_path) as ledger:
        for row in (attempt(1), too_large, attempt(3)):
            ledger.append(row)
        assert await ledger.flush()
    assert ids(store) == [1, 3]
    refused = (tmp_path / "ledger" / "refused.jsonl").read_bytes()
    assert msgspec.json.decode(refused, type=Attempt) == too_large


async def test_a_name_with_any_character_is_no_reason_to_lose_a_row(store: Store, tmp_path: Path) -> None:
    async with writing(store, tmp_path) as ledger:
        ledger.append(attempt(1, model="nul \0"))
        ledger.append(attempt(2, model="half a pair \ud83d"))
        assert await ledger.flush()
    assert ids(store) == [1, 2]
    assert not (tmp_path / "ledger" / "refused.jsonl").exists()


async def test_who_reads_on_by_the_number_misses_no_row_of_many_writers(store: Store, tmp_path: Path) -> None:
    seen: list[str] = []

    def read_on(seq: int) -> int:
        told = store.after(seq, 500)
        seen.extend(row.id for _, row in told)
        return told[-1][0] if told else seq

    async with AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(writing(store, tmp_path / f"{n}")) for n in range(3)]
        seq = 0
        for number in range(0, 3000, 3):
            for offset, ledger in enumerate(ledgers):
                ledger.append(attempt(number + offset))
            if number % 150 == 0:
                seq = await anyio.to_thread.run_sync(read_on, seq)
        for ledger in ledgers:
            assert await ledger.flush()
    while (further := read_on(seq)) != seq:
        seq = further
    assert len(seen) == 3000
    assert len(set(seen)) == 3000


async def test_while_postgresql_is_away_rows_wait_and_none_comes_twice(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.open(postgres_url, tmp_path)
    async with writing(store, tmp_path, memory_rows=50) as ledger:
        for number in range(100):
            ledger.append(attempt(number))
        assert await ledger.flush()
        for number in range(100, 150):
            ledger.append(attempt(number))
        postgres.stop()  # whatever has become of those
        try:
            for number in range(150, 2000):
                ledger.append(attempt(number))
            await until(lambda: "the ledger cannot be written" in caplog.text)
            assert (ledger.backlog >= 1850, ledger.lost) == (True, 0)
        finally:
            postgres.start()
        assert ledger.away
        assert await ledger.flush(timeout_s=30)
        await until(lambda: "the ledger is written again" in caplog.text)
        assert not ledger.away
    assert ids(store) == list(range(2000))
    assert store.usage(UsageQuery())[0].attempts == 2000
    store.close()


async def test_a_process_that_is_killed_while_postgresql_is_away_loses_no_row(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with worker(postgres_url, tmp_path, 0, 500) as process:
        postgres.stop()
        try:
            go_on(process)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            postgres.start()
    store = Store.open(postgres_url, tmp_path)
    assert ids(store) == []
    async with writing(store, tmp_path):
        await until(lambda: ids(store) == list(range(500)))
    store.close()


async def test_connections_that_are_cut_at_any_moment_cost_no_row_and_double_none(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    store = Store.open(postgres_url, tmp_path)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        async with writing(store, tmp_path) as ledger:
            for number in range(4000):
                ledger.append(attempt(number))
                if number % 400 == 0:
                    await anyio.to_thread.run_sync(other.execute, cut, [postgres_url.rsplit("/", 1)[1]])
            assert await ledger.flush(timeout_s=30)
    assert ids(store) == list(range(4000))
    store.close()


async def test_a_writer_that_stands_still_in_a_transaction_is_cut_off(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """It holds what gives rows their numbers, and everybody else would wait for it."""
    store = Store.open(postgres_url, Path())
    with store.reading() as connection:
        asked = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')"
        assert connection.exec_driver_sql(asked).one() == ("10s", "10s")
    store.close()


async def test_bodies_are_kept_beside_the_rows(store: Store, tmp_path: Path) -> None:
    said = [Body(request_id=f"req_{n}", at_s=1.0, delete_s=1e11, request="hi", answer="hello") for n in range(100)]
    async with writing(store, tmp_path) as ledger:
        for body in said:
            ledger.keep(body)
        await until(lambda: store.body("req_99") == said[99])
    assert [store.body(body.request_id) for body in said] == said
