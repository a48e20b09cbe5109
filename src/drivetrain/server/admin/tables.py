"""What requests came to, as tables for other programs: CSV and Parquet."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from drivetrain.errors import BadRequest
from drivetrain.store import Dimension, UsageRow

CSV = b"text/csv; charset=utf-8"
PARQUET = b"application/vnd.apache.parquet"


def columns(by: Sequence[Dimension]) -> list[str]:
    """What rows are grouped by, and all that is counted."""
    return [*by, *(name for name in UsageRow.__struct_fields__ if name not in get_args(Dimension))]


def as_csv(rows: Sequence[UsageRow], by: Sequence[Dimension]) -> bytes:
    """RFC 4180, with a header line."""
    names, file = columns(by), io.StringIO()
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([cell(getattr(row, name)) for name in names] for row in rows)
    return file.getvalue().encode()


def cell(value: str | int) -> str | int:
    """Of CSV. Spreadsheets run what begins like a formula, and models may be called anything."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def as_parquet(rows: Sequence[UsageRow], by: Sequence[Dimension]) -> bytes:
    """A file. Raises `BadRequest` where pyarrow is not installed."""
    names = columns(by)
    records = [{name: getattr(row, name) for name in names} for row in rows]
    file = io.BytesIO()
    try:
        write_parquet(file, records, {name: name not in by for name in names})
    except ModuleNotFoundError as error:
        advice = "pip install 'drivetrain[parquet]' where the server runs, or ask for csv"
        raise BadRequest(f"format=parquet needs {error.name}, which is missing; {advice}", param="format") from error
    return file.getvalue()


def write_parquet(file: Any, records: Sequence[Mapping[str, Any]], counts: Mapping[str, bool]) -> None:
    """`counts`: the columns in their order, and whether each holds numbers. Raises `ModuleNotFoundError`."""
    import pyarrow  # only for those who want it
    from pyarrow import parquet

    kinds = [(name, pyarrow.int64() if whole else pyarrow.string()) for name, whole in counts.items()]
    parquet.write_table(pyarrow.Table.from_pylist(list(records), schema=pyarrow.schema(kinds)), file)
