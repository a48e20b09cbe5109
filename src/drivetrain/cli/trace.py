"""`drivetrain trace`: looks at what was recorded. No server is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.engines.expertstream import trace as traces
from drivetrain.engines.expertstream.trace import POLICIES, Replay, Trace

SHARES = ("5%", "10%", "20%", "30%", "40%", "50%", "75%", "100%")


@command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--budget", "budgets", multiple=True, help="Room for so many experts, or a share of all: 25%. Repeatable."
)
@click.option("--expert-bytes", type=click.IntRange(1), help="Bytes of one expert: budgets are shown as memory, too.")
def replay(call: Call, file: Path, budgets: Sequence[str], expert_bytes: int | None) -> None:
    """Tell how often experts would have been in memory.

    FILE is a trace that a streamed model left: set `expert_trace` to a file in its settings. LRU, which the engine
    uses, LFU, and Belady's choice, which knows the future and which nothing beats, at several budgets.
    """
    trace = traces.read(file)
    rooms = [_room(budget, trace.layers * trace.experts) for budget in budgets or SHARES]
    results = [[traces.replay(trace, policy, room) for policy in POLICIES] for room in rooms]
    if call.json:
        output.emit(_told(file, trace, results))
        return
    click.echo(
        f"{trace.accesses} times an expert was asked for, {trace.distinct} different ones of "
        f"{trace.layers * trace.experts}\n"
    )
    memory = ("MEMORY",) if expert_bytes else ()
    headings = ("EXPERTS", "SHARE", *memory, *(policy.upper() for policy in POLICIES))
    output.table(headings, (_row(row, trace, expert_bytes) for row in results))


trace = click.Group(
    "trace",
    commands=[replay],
    params=shared_options(),
    help="Look at what was recorded.",
)


def _room(budget: str, experts: int) -> int:
    """In experts."""
    number, unit = budget.removesuffix("%").strip(), budget[-1:]
    try:
        room = float(number) / 100 * experts if unit == "%" else int(number)
    except ValueError:
        room = -1.0
    if not 0 <= room <= 2**62:
        raise Misused(f"--budget is {budget!r}; it must be a number of experts, or a share such as 25%")
    return int(room)


def _row(row: Sequence[Replay], trace: Trace, expert_bytes: int | None) -> Sequence[str]:
    room = row[0].budget
    memory = (output.size(room * expert_bytes),) if expert_bytes else ()
    return (
        str(room),
        f"{room / max(trace.layers * trace.experts, 1):.0%}",
        *memory,
        *(f"{result.hit_rate:.1%}" for result in row),
    )


def _told(file: Path, trace: Trace, results: Sequence[Sequence[Replay]]) -> dict[str, Any]:
    flat = [msgspec.structs.asdict(result) | {"hit_rate": result.hit_rate} for row in results for result in row]
    about = {"layers": trace.layers, "experts": trace.experts, "accesses": trace.accesses, "distinct": trace.distinct}
    return {"file": str(file), **about, "replays": flat}
