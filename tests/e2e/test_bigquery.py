"""Rows to BigQuery over real gRPC: each is in the table exactly once, whatever breaks."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import bigquery
from msgspec.structs import replace

from drivetrain.config.schema import Sink
from drivetrain.governance import Attempt
from drivetrain.sinks import batches, deadletters, streams
from drivetrain.sinks.bigquery import Table
from drivetrain.sinks.bigquery_api import Api
from drivetrain.sinks.columns import COLUMNS
from drivetrain.sinks.export import Export
from tests.e2e.emulator import PROJECT, Emulator, emulator, wired
from tests.fakes.exports import Crash, MemorySource, attempt, dying

__all__ = ["emulator"]
_datasets = itertools.count(1)
BEFORE_DONE = 4  # a checkpoint was made, and a batch begun, each seen before and after; next, it would be done


class Bench:
    """A sink, its store in memory, and its table. Each `export` is a process of its own, as far as it can tell."""

    def __init__(self, emulator: Emulator, state: Path) -> None:
        self.emulator = emulator
        self.state = state
        self.source = MemorySource()
        self.sink = Sink(
            kind="bigquery",
            project=PROJECT,
            dataset=f"usage_{next(_datasets)}",
            url=emulator.url,
            grpc=emulator.address,
            batch_rows=500,
        )

    def came(self, rows: int, **fields: Any) -> None:
        first = self.source.newest() + 1
        self.source.rows += [(seq, attempt(seq, **fields)) for seq in range(first, first + rows)]

    async def export(self, grpc: str | None = None, clock: float = 0.0) -> str:
        sink = replace(self.sink, grpc=grpc or self.emulator.address)
        table = Table("usage", Api("usage", sink), clock=lambda: clock)
        try:
            return await Export("usage", sink, self.source, table, self.state).catch_up()
        finally:
            await table.aclose()

    def counts(self) -> tuple[int, int]:
        """Rows in the table, and different ones."""
        ((rows, ids),) = self.emulator.query(f"SELECT COUNT(*), COUNT(DISTINCT id) FROM {self.table}")
        return rows, ids

    @property
    def table(self) -> str:
        return f"`{PROJECT}.{self.sink.dataset}.{self.sink.table}`"

    @property
    def progress(self) -> batches.Progress:
        return batches.decode(self.source.checkpoints["usage"])


@pytest.fixture
def bench(emulator: Emulator, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(emulator, tmp_path)


async def test_rows_arrive_as_the_ledger_has_them(bench: Bench) -> None:
    bench.came(3)
    bench.source.rows.append((7, attempt(7, first_token_s=None, outcome="error", stream=False, tags='{"team":"α"}')))
    assert await bench.export() == ""
    names = Attempt.__struct_fields__
    got = bench.emulator.query(
        f"SELECT seq, {', '.join(f'`{name}`' for name in names)} FROM {bench.table} ORDER BY seq"
    )
    assert [(seq, Attempt(**dict(zip(names, row, strict=True)))) for seq, *row in got] == bench.source.rows
    ((day,),) = bench.emulator.query(f"SELECT DISTINCT DATE(started_at) FROM {bench.table}")
    assert day.isoformat() == "2026-11-30"


async def test_a_crash_between_answer_and_checkpoint_writes_nothing_twice(bench: Bench) -> None:
    bench.came(1200)
    bench.source.effect = dying(BEFORE_DONE)
    with pytest.raises(Crash):
        await bench.export()
    assert bench.counts() == (500, 500)
    assert bench.progress.intent is not None
    bench.came(300)  # the batch that was begun is sent as it was
    assert await bench.export() == ""
    assert bench.counts() == (1500, 1500)
    assert bench.progress.seq == 1500


@pytest.mark.slow
async def test_an_answer_that_was_lost_writes_nothing_twice(bench: Bench) -> None:
    bench.came(600)
    with wired(bench.emulator) as (wire, address):
        wire.lose = 1
        assert "without an answer" in await bench.export(address)
        assert await bench.export(address) == ""
        assert wire.appends == 3
    assert bench.counts() == (600, 600)


async def test_one_bad_row_of_500_goes_to_the_dead_letters_alone(bench: Bench) -> None:
    bench.came(300)
    bench.came(1, model="unspeakable")
    bench.came(199)
    with wired(bench.emulator) as (wire, address):
        wire.refuses = lambda row: b"unspeakable" in row
        assert await bench.export(address) == ""
        assert wire.appends == 2
    assert bench.counts() == (499, 499)
    (letter,) = deadletters.read(bench.state / "sinks" / "usage.dead.jsonl")
    assert (letter.seq, letter.reason, letter.row.model) == (301, "Field is bad", "unspeakable")
    assert bench.progress.dead == 1


async def test_columns_that_a_table_lacks_are_added_and_its_rows_stay(bench: Bench) -> None:
    client = bench.emulator.client()
    client.create_dataset(bench.sink.dataset or "")
    old = {"seq": "INTEGER", "id": "STRING", "model": "STRING", "note": "STRING"}
    fields = [bigquery.SchemaField(name, kind) for name, kind in old.items()]
    client.create_table(bigquery.Table(bench.table.strip("`"), schema=fields))
    kinds = {"text": "STRING", "integer": "INT64", "number": "FLOAT64", "boolean": "BOOL", "instant": "TIMESTAMP"}
    for name in [name for name in COLUMNS if name not in old]:
        # Where a schema is changed, the emulator changes what it tells of the table, and not the table.
        bench.emulator.query(f"ALTER TABLE {bench.table} ADD COLUMN {name} {kinds[COLUMNS[name]]}")
    bench.emulator.query(f"INSERT INTO {bench.table} (seq, id, model, note) VALUES (0, 'old', 'chat', 'ours')")
    bench.came(5)
    assert await bench.export() == ""
    names = [field.name for field in client.get_table(bench.table.strip("`")).schema]
    client.close()
    assert names[:4] == list(old)
    assert set(names) == {*COLUMNS, "note"}
    asked = f"SELECT id, note, cost_micro_usd FROM {bench.table} WHERE seq <= 1 ORDER BY seq"
    assert bench.emulator.query(asked) == [("old", "ours", None), (attempt(1).id, None, 1234)]
    assert bench.counts() == (6, 6)


@pytest.mark.slow
async def test_a_column_of_another_kind_is_left_alone_and_told(bench: Bench) -> None:
    client = bench.emulator.client()
    client.create_dataset(bench.sink.dataset or "")
    client.create_table(bigquery.Table(bench.table.strip("`"), schema=[bigquery.SchemaField("status", "STRING")]))
    client.close()
    bench.came(1)
    wrong = await bench.export()
    assert "column 'status' is of type STRING, not INT64; rename it there, or name another table" in wrong
    assert bench.progress.seq == 0


@pytest.mark.slow
async def test_rows_wait_for_an_emulator_that_was_killed_and_lost_its_streams(bench: Bench) -> None:
    bench.came(700)
    assert await bench.export() == ""
    bench.emulator.kill()
    bench.came(600)
    wrong = await bench.export()
    assert "Connection refused" in wrong or "Failed" in wrong
    bench.emulator.start()
    assert await bench.export() == ""
    assert bench.counts() == (1300, 1300)


@pytest.mark.slow
async def test_a_batch_in_a_stream_that_is_gone_is_looked_for_in_the_table(bench: Bench) -> None:
    bench.came(10)
    bench.source.effect = dying(BEFORE_DONE)
    with pytest.raises(Crash):
        await bench.export()
    bench.emulator.kill()
    bench.emulator.start()
    assert await bench.export() == ""
    assert bench.counts() == (10, 10)
    bench.came(5)
    assert await bench.export() == ""
    assert bench.counts() == (15, 15)


async def test_a_stream_that_was_ended_or_is_old_is_left_for_a_new_one(bench: Bench) -> None:
    bench.came(10)
    assert await bench.export() == ""
    first = streams.decode(bench.progress.place)
    assert first is not None
    api = Api("usage", bench.sink)
    assert api.finalize(first.stream) == 10
    api.close()
    bench.came(10)
    assert await bench.export() == ""
    second = streams.decode(bench.progress.place)
    assert second is not None
    assert second.stream != first.stream
    bench.came(10)
    assert await bench.export(clock=streams.STREAM_S + 1) == ""
    third = streams.decode(bench.progress.place)
    assert third is not None
    assert third.stream != second.stream
    assert bench.counts() == (30, 30)
