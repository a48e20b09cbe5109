"""`drivetrain trace`: a request's life as the ledger has it, and recorded traces of experts. No server is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from drivetrain.cli import output, timeline
from drivetrain.cli.amounts import dollars
from drivetrain.cli.command import Call, Existing, Leading, Missing, Misused, command, shared_options
from drivetrain.cli.moments import iso
from drivetrain.cli.office import Office, office, told
from drivetrain.engines.expertstream import trace as traces
from drivetrain.engines.expertstream.trace import POLICIES, Replay, Trace
from drivetrain.store import timeline as lives
from drivetrain.store.timeline import Life

MOST_ATTEMPTS = 1_000  # of one request
SHARES = ("5%", "10%", "20%", "30%", "40%", "50%", "75%", "100%")


@command()
@click.argument("request_id", metavar="REQUEST_ID")
@click.option("--bodies", is_flag=True, help="What was said, too, where the model's policy has it kept.")
def show(call: Call, request_id: str, bodies: bool) -> None:
    """Show a request's life.

    When it came, was let in, was tried where, answered, and what it cost. REQUEST_ID is what the answer had in its
    x-request-id. A request is on record when it is over.
    """
    with office(call) as at:
        rows = at.attempts(request_id, MOST_ATTEMPTS)
        if not rows:
            raise Missing(
                f"there is no request {request_id!r} in the ledger of {call.home}; write the answer's "
                "x-request-id, which is on record when the request is over"
            )
        kept, life = at.store.body(request_id), lives.life(rows)
        if call.json:
            output.emit(_told(at, life) | {"bodies": told(kept) if kept is not None else None})
            return
        for name, value in _head(at, life):
            click.echo(f"{name:<8} {value}")
        click.echo()
        output.table(("AT", "STEP", "WHAT"), map(timeline.line, life.steps))
        if kept is not None and bodies:
            click.echo(f"\n--- request\n{kept.request}\n\n--- answer\n{kept.answer}")
        elif kept is not None or bodies:
            click.echo(f"\n{'--bodies shows what was said' if kept else 'what was said was not kept'}", err=True)


@command()
@click.argument("file", type=Existing())
@click.option(
    "--budget", "budgets", multiple=True, help="Room for so many experts, or a share of all: 25%. Repeatable."
)
@click.option("--expert-bytes", type=click.IntRange(1), help="Bytes of one expert: budgets are shown as memory, too.")
def replay(call: Call, file: Path, budgets: Sequence[str], expert_bytes: int | None) -> None:
    """Tell how often experts would have been in memory.

    FILE is a trace that a streamed model left: set `expert_trace` to a file in its settings. LRU and LRFU (uses count
    less the longer ago they were), of which the engine goes by the one that has missed less lately; LFU; and Belady's
    choice, which knows the future and which nothing beats; at several budgets.
    """
    trace = traces.read(file)
    rooms = [_room(budget, trace.layers * trace.experts) for budget in budgets or SHARES]
    results = [[traces.replay(trace, policy, room) for policy in POLICIES] for room in rooms]
    if call.json:
        output.emit(_replays(file, trace, results))
        return
    click.echo(
        f"{trace.accesses} times an expert was asked for, {trace.distinct} different ones of "
        f"{trace.layers * trace.experts}\n"
    )
    memory = ("MEMORY",) if expert_bytes else ()
    headings = ("EXPERTS", "SHARE", *memory, *(policy.upper() for policy in POLICIES))
    output.table(headings, (_row(row, trace, expert_bytes) for row in results))


trace = Leading(
    "trace",
    leading="show",
    commands=[show, replay],
    params=shared_options(),
    help="Show a request's life: `trace REQUEST_ID`.",
)


def _head(at: Office, life: Life) -> list[tuple[str, str]]:
    found = [
        ("request", life.request_id),
        ("came", iso(life.received_s) or ""),
        ("key", at.holder(life.attempts[0])),
        ("model", f"{life.model}, {'streamed' if life.stream else 'answered whole'}"),
        ("ended", f"{life.outcome}, {life.status}"),
        ("cost", dollars(life.cost_micro_usd)),
        ("trace", life.trace_id),
        ("tags", life.tags if life.tags != "{}" else ""),
    ]
    return [(name, value) for name, value in found if value]


def _told(at: Office, life: Life) -> dict[str, Any]:
    return {
        "request_id": life.request_id,
        "received": iso(life.received_s),
        "trace_id": life.trace_id,
        "dialect": life.dialect,
        "model": life.model,
        "stream": life.stream,
        "key": at.holder(life.attempts[0]),
        "outcome": life.outcome,
        "status": life.status,
        "cost_micro_usd": life.cost_micro_usd,
        "timeline": lives.told(life.steps),
        "attempts": [msgspec.structs.asdict(row) for row in life.attempts],
    }


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


def _replays(file: Path, trace: Trace, results: Sequence[Sequence[Replay]]) -> dict[str, Any]:
    flat = [msgspec.structs.asdict(result) | {"hit_rate": result.hit_rate} for row in results for result in row]
    about = {"layers": trace.layers, "experts": trace.experts, "accesses": trace.accesses, "distinct": trace.distinct}
    return {"file": str(file), **about, "replays": flat}
