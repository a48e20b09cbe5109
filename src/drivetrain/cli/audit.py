"""`drivetrain audit`: every change of what an administrator owns, and whether somebody has tampered with the record."""

from collections.abc import Mapping
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.command import FAILED, Call, Leading, command, shared_options
from drivetrain.cli.moments import PAST, iso, shown
from drivetrain.cli.office import office, told
from drivetrain.governance import Change

_UNSAID = frozenset({"id", "version", "created_s"})  # changes with every write, or never


@command(name="list")
@click.option("--since", type=PAST, help="From this time on: 7d, 2026-12-01.")
@click.option("--kind", help="Of this kind only: key, team, budget, price, …")
@click.option("--limit", type=click.IntRange(1), default=100, help="So many of the newest. [default: 100]")
def list_(call: Call, since: float | None, kind: str | None, limit: int) -> None:
    """List changes, the newest last."""
    with office(call) as at:
        found = at.audit(since, kind, limit)
        if call.json:
            output.emit({"changes": [told(change) | {"at": iso(change.at_s)} for change in found]})
            return
        output.table(("REVISION", "AT", "WHO", "DID", "WHAT", "CHANGED"), map(_row, found))


def _row(change: Change) -> tuple[str, ...]:
    what = f"{change.kind} {_name(change)}"
    return (str(change.revision), shown(change.at_s), change.actor, change.action, what, _difference(change) or "-")


def _name(change: Change) -> str:
    for side in (change.after, change.before):
        if side and side.get("name"):
            return repr(side["name"])
    return change.object_id


def _difference(change: Change) -> str:
    """`amount: 50 → 60`; of what is new or gone, nothing: its name says it."""
    before, after = change.before, change.after
    if before is None or after is None:
        return ""
    names = [name for name in after if name not in _UNSAID and before.get(name) != after[name]]
    return ", ".join(f"{name}: {_brief(before, name)} → {_brief(after, name)}" for name in names)


def _brief(side: Mapping[str, Any], name: str) -> str:
    value = side.get(name)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return shown(value, none="never") if name.endswith("_s") else str(value)


@command()
def verify(call: Call) -> int | None:
    """Tell whether the record of changes is whole.

    Each line is sealed with a hash over itself and the line before it. Who writes to the database can seal all of them
    anew: note the newest hash elsewhere from time to time, and see that it is still there.
    """
    with office(call) as at:
        verdict = at.verify_audit()
    if call.json:
        output.emit({"whole": verdict.broken is None, **told(verdict)})
    elif verdict.broken is None:
        click.echo(
            f"whole: {verdict.lines} changes are as they were written; the newest has the hash {verdict.head_hash}"
        )
    else:
        click.echo(f"broken at revision {verdict.broken}: {verdict.why}", err=True)
    return None if verdict.broken is None else FAILED


audit = Leading(
    "audit",
    leading="list",
    commands=[list_, verify],
    params=shared_options(),
    help="List who changed what, and check the record.",
)
