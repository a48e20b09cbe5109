"""Parquet files: whole or not there, each row in one of them, readable as one table."""

from pathlib import Path

import pyarrow.dataset
import pyarrow.parquet
import pytest

from drivetrain.config.schema import Sink
from drivetrain.governance import Attempt
from drivetrain.sinks.batches import Row
from drivetrain.sinks.export import Export
from drivetrain.sinks.parquet import SCHEMA, ParquetFolder
from tests.fakes.exports import NOON_S, Crash, MemorySource, attempt, dying

SINK = Sink(kind="parquet", path="usage", batch_rows=100)
BEFORE_DONE = 4  # a checkpoint was made, and a batch begun, each seen before and after; next, it would be done


def rows(last: int) -> list[Row]:
    return [(seq, attempt(seq)) for seq in range(1, last + 1)]


async def export(source: MemorySource, home: Path) -> str:
    return await Export("usage", SINK, source, ParquetFolder(home / "usage"), home / "state").catch_up()


def files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home / "usage")) for path in (home / "usage").rglob("*") if path.is_file())


def table(home: Path) -> list[dict[str, object]]:
    whole = pyarrow.dataset.dataset(home / "usage", partitioning="hive").to_table()
    return whole.sort_by("seq").to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


async def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    source = MemorySource([*rows(2), (9, attempt(9, first_token_s=None, stream=False, tags='{"α":"β"}'))])
    assert await export(source, tmp_path) == ""
    assert files(tmp_path) == ["day=2026-11-30/000000000001-000000000009.parquet"]
    read = table(tmp_path)
    names = Attempt.__struct_fields__
    assert [(row["seq"], Attempt(**{name: row[name] for name in names})) for row in read] == source.rows  # type: ignore[arg-type]
    assert str(read[0]["started_at"]) == "2026-11-30 12:00:01+00:00"
    written = pyarrow.parquet.read_schema(tmp_path / "usage" / files(tmp_path)[0])
    assert written.equals(SCHEMA)


async def test_a_batch_over_midnight_is_one_file_for_each_day(tmp_path: Path) -> None:
    midnight_s = NOON_S + 12 * 3600
    starts = [midnight_s - 1, midnight_s + 1, midnight_s - 2]
    source = MemorySource([(seq, attempt(seq, started_s=start)) for seq, start in enumerate(starts, 1)])
    assert await export(source, tmp_path) == ""
    assert files(tmp_path) == [
        "day=2026-11-30/000000000001-000000000003.parquet",
        "day=2026-12-01/000000000001-000000000003.parquet",
    ]
    assert [row["seq"] for row in table(tmp_path)] == [1, 2, 3]


async def test_a_crash_before_the_checkpoint_writes_nothing_twice(tmp_path: Path) -> None:
    source = MemorySource(rows(250), dying(BEFORE_DONE))
    with pytest.raises(Crash):
        await export(source, tmp_path)
    assert len(files(tmp_path)) == 1
    source.rows += [(seq, attempt(seq)) for seq in range(251, 301)]
    assert await export(source, tmp_path) == ""
    assert [row["seq"] for row in table(tmp_path)] == list(range(1, 301))
    assert len(files(tmp_path)) == 3


async def test_a_file_that_was_not_finished_is_no_file(tmp_path: Path) -> None:
    source, folder = MemorySource(rows(5)), tmp_path / "usage" / "day=2026-11-30"
    folder.mkdir(parents=True)
    (folder / "000000000001-000000000005.parquet").mkdir()  # nothing can be put there
    assert "000000000001-000000000005.parquet" in await export(source, tmp_path)
    assert files(tmp_path) == []
    (folder / "000000000001-000000000005.parquet").rmdir()
    assert await export(source, tmp_path) == ""
    assert [row["seq"] for row in table(tmp_path)] == [1, 2, 3, 4, 5]


async def test_a_clock_that_is_far_off_breaks_nothing(tmp_path: Path) -> None:
    source = MemorySource([(1, attempt(1, started_s=1e15)), (2, attempt(2, started_s=-1e15))])
    assert await export(source, tmp_path) == ""
    assert [Path(name).parent.name for name in files(tmp_path)] == ["day=1970-01-01", "day=9999-12-31"]
