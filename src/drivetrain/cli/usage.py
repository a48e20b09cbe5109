"""`drivetrain usage`: what was used, by whom, and what it cost, from the ledger. No server is asked."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.amounts import decimal, dollars
from drivetrain.cli.command import Call, Failure, Misused, command
from drivetrain.cli.moments import PAST
from drivetrain.cli.office import Office, office
from drivetrain.cli.subjects import SUBJECTS, every_bound, subject_options
from drivetrain.cli.words import Words
from drivetrain.store import DIMENSIONS, Dimension, UsageQuery, UsageRow

BY = Words("group", DIMENSIONS)
COUNTS = tuple(name for name in UsageRow.__struct_fields__ if name not in DIMENSIONS)
NOBODY = "-"  # an id that is empty


@click.option("--by", type=BY, default="model", help=f"Groups: {', '.join(DIMENSIONS)}. [default: model]")
@click.option("--since", type=PAST, help="From this time on: 7d, 2026-12-01, today.")
@click.option("--until", type=PAST, help="Up to this time.")
@subject_options("Only what was used by")
@click.option("--model", help="Only of this public model.")
@click.option("--engine", help="Only at this engine.")
@click.option("--outcome", help="Only attempts that ended so: ok, error, cancelled, absorbed, rejected.")
@click.option("--csv", "as_csv", is_flag=True, help="Write CSV.")
@click.option("--parquet", type=click.Path(dir_okay=False, path_type=Path), help="Write a Parquet file.")
def _usage(call: Call, by: tuple[Dimension, ...], as_csv: bool, parquet: Path | None, **given: Any) -> None:
    """Tell what was used, and what it cost.

    From the ledger, whether a server runs or not. A request counts once, however many engines were tried for it; its
    tokens and cost are those of all its attempts. Days are those of UTC.
    """
    if call.json + as_csv + (parquet is not None) > 1:
        raise Misused("--json, --csv and --parquet are three answers; ask for one")
    with office(call) as at:
        whose = dict(every_bound(at, given))
        asked = {name: given[name] for name in ("model", "engine", "outcome")}
        query = UsageQuery(group_by=by, since_s=given["since"], until_s=given["until"], **asked, **whose)
        rows = at.store.usage(query)
        records = [_record(at, row) for row in rows]
    if call.json:
        output.emit({"requests": sum(row.requests for row in rows), "rows": records})
    elif as_csv:
        _write_csv(by, records)
    elif parquet is not None:
        _write_parquet(parquet, by, records)
    else:
        _show(by, rows, records)


usage = command("usage")(_usage)


def _record(at: Office, row: UsageRow) -> dict[str, Any]:
    """The row, with the name beside each id."""
    record: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(row).items():
        record[name] = value
        if name in SUBJECTS:
            record[f"{name}_name"] = at.name(name, value) if value else ""
    return record


def _columns(by: Sequence[str]) -> list[str]:
    named = [name for group in by for name in (group, *([f"{group}_name"] if group in SUBJECTS else []))]
    return [*named, *COUNTS]


def _show(by: Sequence[str], rows: Sequence[UsageRow], records: Sequence[Mapping[str, Any]]) -> None:
    headings = (*(group.upper() for group in by), "REQUESTS", "REFUSED", "ERRORS", "PROMPT", "CACHED", "ANSWER", "COST")
    lines = [(*_groups(by, record), *_counts([row])) for row, record in zip(rows, records, strict=True)]
    if len(rows) > 1:
        lines.append(("total", *[""] * (len(by) - 1), *_counts(rows)))
    output.table(headings, lines)


def _groups(by: Sequence[str], record: Mapping[str, Any]) -> list[str]:
    return [str(record[f"{group}_name" if group in SUBJECTS else group]) or NOBODY for group in by]


def _counts(rows: Sequence[UsageRow]) -> tuple[str, ...]:
    names = ("requests", "rejected", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")
    sums = [f"{sum(getattr(row, name) for row in rows):,}" for name in names]
    return (*sums, dollars(sum(row.cost_micro_usd for row in rows)))


def _write_csv(by: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    from drivetrain.server.admin.tables import cell  # only for those who want CSV

    columns = _columns(by)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*columns, "cost_usd"])
    for record in records:
        writer.writerow([*(cell(record[name]) for name in columns), decimal(record["cost_micro_usd"])])


def _write_parquet(file: Path, by: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    from drivetrain.server.admin.tables import write_parquet

    fresh = file.with_name(f".{file.name}.part")
    try:
        with fresh.open("wb") as written:
            write_parquet(written, records, {name: name in COUNTS for name in _columns(by)})
        fresh.replace(file)
    except ModuleNotFoundError as error:
        fresh.unlink(missing_ok=True)
        raise Failure("--parquet needs pyarrow: pip install 'drivetrain[parquet]'") from error
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise Failure(f"cannot write {file}: {error.strerror or error}") from error
    click.echo(f"{file}: {len(records)} rows", err=True)
