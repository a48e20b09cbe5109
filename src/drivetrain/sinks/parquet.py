"""Parquet files: one for each batch and day, named after the first and last row of the batch.

A file appears whole or not at all. A batch that is written again replaces its own files: nothing is in two of them.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from anyio.to_thread import run_sync

from drivetrain.sinks.batches import Batch, Row
from drivetrain.sinks.columns import COLUMNS, day, values
from drivetrain.sinks.target import Answer, Taken

_TYPES = {
    "text": pyarrow.string(),
    "integer": pyarrow.int64(),
    "number": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "instant": pyarrow.timestamp("us", tz="UTC"),
}
SCHEMA = pyarrow.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])


class ParquetFolder:
    """Files `day=YYYY-MM-DD/FIRST-LAST.parquet`, the layout that engines read as a table partitioned by day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def prepare(self, place: str) -> str:
        return place

    async def send(self, batch: Batch) -> Answer:
        """Raises `OSError` if the disk is full or away."""
        await run_sync(self._write, batch)
        return Taken()

    def _write(self, batch: Batch) -> None:
        days: dict[str, list[Row]] = defaultdict(list)
        for row in batch.rows:
            days[day(row)].append(row)
        for name, rows in days.items():
            write(rows, self.folder / f"day={name}" / f"{batch.first:012}-{batch.last:012}.parquet")

    async def aclose(self) -> None:
        return


def write(rows: Sequence[Row], path: Path) -> None:
    """Write a file that is on the disk, whole, when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist([values(row) for row in rows], schema=SCHEMA)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with fresh.open("wb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    _sync(path.parent)
    _sync(path.parent.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
