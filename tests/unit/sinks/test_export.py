"""The loop of a sink: nothing is lost, nothing sent twice where the target can tell, nothing held up."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.config.schema import Sink
from drivetrain.sinks import batches, deadletters
from drivetrain.sinks.batches import Batch, Row
from drivetrain.sinks.bigquery import Table
from drivetrain.sinks.export import PAUSE_S, Export, Standing
from drivetrain.sinks.target import Answer, Refused, Taken
from drivetrain.web import Unreachable
from tests.fakes.exports import Crash, MemoryBigQuery, MemorySource, attempt, crashing

SINK = Sink(kind="bigquery", dataset="usage", batch_rows=4)


def rows(last: int, first: int = 1) -> list[Row]:
    return [(seq, attempt(seq)) for seq in range(first, last + 1)]


def seqs(rows: list[Row]) -> list[int]:
    return [seq for seq, _ in rows]


class Inbox:
    """A target that takes batches, unless it is away or refuses rows without telling which."""

    def __init__(self) -> None:
        self.got: list[Batch] = []
        self.away = False
        self.poison: set[int] = set()

    async def prepare(self, place: str) -> str:
        return place

    async def send(self, batch: Batch) -> Answer:
        if self.away:
            raise Unreachable("the target is away")
        if self.poison & {seq for seq, _ in batch.rows}:
            return Refused(why="400: no")
        self.got.append(batch)
        return Taken()

    async def aclose(self) -> None:
        return

    @property
    def seqs(self) -> list[int]:
        return [seq for batch in self.got for seq, _ in batch.rows]


def export(target: Any, source: MemorySource, state: Path, **more: Any) -> Export:
    return Export("usage", more.pop("sink", SINK), source, target, state, **more)


async def test_rows_go_out_in_their_order_batch_after_batch(tmp_path: Path) -> None:
    source, inbox = MemorySource(rows(10)), Inbox()
    assert await export(inbox, source, tmp_path).catch_up() == ""
    assert [len(batch.rows) for batch in inbox.got] == [4, 4, 2]
    assert inbox.seqs == list(range(1, 11))
    assert batches.decode(source.checkpoints["usage"]).seq == 10


async def test_a_sink_goes_on_where_the_last_process_stopped(tmp_path: Path) -> None:
    source, inbox = MemorySource(rows(3)), Inbox()
    await export(inbox, source, tmp_path).catch_up()
    source.rows += rows(5, first=4)
    await export(inbox, source, tmp_path).catch_up()
    assert inbox.seqs == [1, 2, 3, 4, 5]


async def test_rows_wait_for_a_target_that_is_away(tmp_path: Path) -> None:
    source, inbox, told, slept = MemorySource(rows(3)), Inbox(), list[Standing](), list[float]()
    inbox.away = True

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        source.rows += rows(source.newest() + 1, first=source.newest() + 1)
        inbox.away = len(slept) < 8
        if len(slept) == 10:
            raise Crash

    with pytest.raises(Crash):
        await export(inbox, source, tmp_path, told=told.append, sleep=sleep, clock=lambda: 0.0).run()
    assert slept == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 5.0, 5.0]
    assert PAUSE_S == (1.0, 60.0)
    assert inbox.seqs == list(range(1, 13))
    assert [standing.lag_rows for standing in told if standing.wrong] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert {standing.wrong for standing in told} == {"", "the target is away"}
    assert sum(standing.taken for standing in told) == 12
    assert told[-1].lag_rows == 0


async def test_lag_is_how_long_the_first_row_has_waited(tmp_path: Path) -> None:
    source, inbox, told = MemorySource(rows(3)), Inbox(), list[Standing]()
    inbox.away = True
    first = source.rows[0][1]
    now_s = first.started_s + first.total_s + 7.5
    await export(inbox, source, tmp_path, told=told.append, clock=lambda: now_s).catch_up()
    assert (told[-1].lag_rows, told[-1].lag_s) == (3, 7.5)


async def test_a_refusal_without_a_reason_for_each_row_is_narrowed_down(tmp_path: Path) -> None:
    source, inbox, told = MemorySource(rows(500)), Inbox(), list[Standing]()
    inbox.poison = {137, 138, 500}
    sink = Sink(kind="bigquery", dataset="usage", batch_rows=500)
    assert await export(inbox, source, tmp_path, sink=sink, told=told.append).catch_up() == ""
    assert inbox.seqs == [seq for seq in range(1, 501) if seq not in inbox.poison]
    letters = deadletters.read(tmp_path / "sinks" / "usage.dead.jsonl")
    assert [(letter.seq, letter.reason) for letter in letters] == [(seq, "400: no") for seq in (137, 138, 500)]
    assert letters[0].row == attempt(137)
    assert sum(standing.dead for standing in told) == 3
    assert batches.decode(source.checkpoints["usage"]).dead == 3


async def test_old_news_is_for_those_who_keep_history(tmp_path: Path) -> None:
    hook = Sink(kind="webhook", url="http://127.0.0.1:9/")
    source, inbox = MemorySource(rows(10)), Inbox()
    await export(inbox, source, tmp_path, sink=hook).catch_up()
    source.rows += rows(12, first=11)
    await export(inbox, source, tmp_path, sink=hook).catch_up()
    assert inbox.seqs == [11, 12]


async def test_who_was_superseded_writes_no_checkpoint(tmp_path: Path) -> None:
    source, inbox = MemorySource(rows(2)), Inbox()
    first = export(inbox, source, tmp_path)
    await first.catch_up()
    source.rows += rows(4, first=3)
    await export(inbox, source, tmp_path).catch_up()  # another process, which took over
    source.rows += rows(6, first=5)
    assert await first.catch_up() == "sink 'usage': another process exports it now"
    assert inbox.seqs == [1, 2, 3, 4]
    assert await first.catch_up() == ""  # and goes on from what is kept
    assert inbox.seqs == [1, 2, 3, 4, 5, 6]


async def test_what_was_begun_is_sent_with_the_same_rows_and_name(tmp_path: Path) -> None:
    source, inbox = MemorySource(rows(3)), Inbox()
    inbox.away = True
    await export(inbox, source, tmp_path).catch_up()
    source.rows += rows(9, first=4)
    inbox.away = False
    await export(inbox, source, tmp_path).catch_up()
    assert [(batch.first, batch.last) for batch in inbox.got] == [(1, 3), (4, 7), (8, 9)]


@settings(max_examples=150)
@given(
    crashes=st.lists(st.booleans(), max_size=60),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    poison=st.sets(st.integers(1, 20), max_size=4),
    named=st.booleans(),
    age=st.booleans(),
)
async def test_every_row_is_there_once_wherever_the_process_dies(
    crashes: list[bool], counts: list[int], poison: set[int], named: bool, age: bool
) -> None:
    """Each effect on the world may be the last one of a process, before it happens or just after."""
    effect = crashing(iter(crashes))
    reasons = dict.fromkeys(poison, "bad")
    source, service = MemorySource(effect=effect), MemoryBigQuery(reasons, effect)
    service.names_rows = named
    clock = itertools.count(step=50_000)  # streams get old now and then

    async def until_done(state: Path) -> None:
        while True:
            table = Table("usage", service, clock=lambda: float(next(clock)) if age else 0.0)
            try:
                assert await Export("usage", SINK, source, table, state).catch_up() == ""
                return
            except Crash:
                continue

    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            newest = source.newest()
            source.rows += rows(newest + count, first=newest + 1)
            await until_done(Path(folder))
        dead = Path(folder, "sinks", "usage.dead.jsonl")
        letters = [letter.seq for letter in deadletters.read(dead)] if dead.exists() else []
    there = range(1, sum(counts) + 1)
    assert seqs(service.table) == [seq for seq in there if seq not in poison]
    assert letters == sorted(poison & set(there))
