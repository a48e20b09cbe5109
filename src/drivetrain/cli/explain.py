"""`drivetrain explain`: where a request would go or went, and why. The server is asked, its engines are not."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from drivetrain.cli import output
from drivetrain.cli.client import Server, connect
from drivetrain.cli.command import Call, Failure, Missing, command
from drivetrain.cli.completion import model_names
from drivetrain.cli.moments import iso

HEADINGS = ("#", "ENGINE", "MODEL", "TIER", "STATE", "LOAD", "EXPECTED", "SCORE", "WHY")
THEN = ("ATTEMPT", "MODEL", "ENGINE", "ITS MODEL", "OUTCOME", "WHY")
OWN = "req_"  # how ids of requests begin that no caller chose
MORE: Mapping[str, str] = {"REGION": "region", "COST": "micro_usd"}


@command()
@click.argument("subject", metavar="MODEL|REQUEST_ID", shell_complete=model_names)
@click.option("--prompt-tokens", type=click.IntRange(1), help="How long the prompt is.")
@click.option("--output-tokens", type=click.IntRange(1), help="How long the answer is.")
@click.option("--tools", is_flag=True, help="It offers tools.")
@click.option("--images", is_flag=True, help="It has images.")
@click.option("--schema", is_flag=True, help="It demands JSON, a schema or a grammar.")
@click.option("--priority", help="Its class: system, interactive, default or bulk.")
@click.option("--within", type=click.FloatRange(0.001), metavar="SECONDS", help="How long its caller waits.")
@click.option("--region", help="Where its caller is.")
@click.option("--session", help="What it calls its conversation.")
@click.option("--system", help="What its system prompt begins with.")
@click.option("--message", help="What its first message begins with.")
def explain(call: Call, subject: str, **told: str | float | bool | None) -> None:
    """Tell which engines a request would go to, and why.

    A dry run: nothing is generated, counted or charged. REQUEST_ID, the x-request-id of an answer, tells which engines
    that request went to and why, and below it where one like it would go now.
    """
    within = told.pop("within")
    told["within_ms"] = round(float(within) * 1000) if within is not None else None
    asyncio.run(_explain(call, subject, {name: _written(value) for name, value in told.items() if value}))


def _written(value: str | float | bool | None) -> str:
    return "true" if value is True else str(value)


async def _explain(call: Call, subject: str, told: Mapping[str, str]) -> None:
    """A model's, or if there is none of this name, a request's: callers choose ids of requests as they like."""
    async with connect(call) as server:
        try:
            answer, show = await server.get("/v1/explain", model=subject, **told), _tell
        except Failure as error:
            if not isinstance(error, Missing) and not subject.startswith(OWN):
                raise
            answer, show = await _of_request(server, subject, told, error), _tell_request
    if call.json:
        output.emit(answer)
        return
    show(answer)


async def _of_request(server: Server, subject: str, told: Mapping[str, str], no_model: Failure) -> Any:
    try:
        return await server.get(f"/admin/v1/explain/{quote(subject, safe='')}", **told)
    except Failure as error:
        if subject.startswith(OWN):
            raise
        if not isinstance(error, Missing):
            more = f"whether it is a request cannot be told: {error.message}"
            raise Missing(f"{no_model.message}, and {more}") from error
        raise Missing(f"{subject!r} is neither a request of the ledger nor a model: {no_model.message}") from error


def _tell_request(answer: Mapping[str, Any]) -> None:
    came = iso(answer["received_s"])
    click.echo(f"{answer['request_id']}, model {answer['model']}\n\nthen, {came}, as the ledger has it")
    output.table(THEN, map(_attempt, answer["then"]))
    if answer["now"] is None:
        click.echo(f"\nnow there is no model {answer['model']!r}")
        return
    click.echo("\nnow, for a request as long as it; what else it asked for is not on record, options tell it")
    _tell(answer["now"])


def _attempt(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row has no member that is as usual; of a failure, `why` is the error."""
    ended = row["outcome"] if row["outcome"] == "ok" else f"{row['outcome']} {row['status']}"
    engine, its = row["engine"] or "-", row["engine_model"] or "-"
    return str(row["position"]), row["model"], engine, its, ended, row.get("why") or "-"


def _tell(answer: Mapping[str, Any]) -> None:
    click.echo(
        f"a prompt of {answer['prompt_tokens']} tokens and an answer of {answer['output_tokens']}, "
        f"done within {answer['total_s']:g} s"
    )
    click.echo(
        f"up to {answer['retries']} further attempts; {answer['retries_left']} are left for all requests of this minute"
    )
    for choice in answer["choices"]:
        fallback = "" if choice["model"] == answer["model"] else "fallback "
        arm = f", arm {choice['arm']}" if choice["arm"] else ""
        click.echo(f"\n{fallback}{choice['model']}, policy {choice['policy']}{arm}")
        _show(choice["candidates"])


def _show(candidates: Sequence[Mapping[str, Any]]) -> None:
    """With regions and prices where there are any."""
    more = [heading for heading, member in MORE.items() if any(seen[member] for seen in candidates)]
    headings = (*HEADINGS[:-1], *more, HEADINGS[-1])
    output.table(headings, (_candidate(seen, more) for seen in candidates))


def _candidate(seen: Mapping[str, Any], more: Sequence[str]) -> tuple[str, ...]:
    expected_s = seen["expected_s"]
    further = {"REGION": seen["region"] or "-", "COST": f"${(seen['micro_usd'] or 0) / 1e6:.3g}"}
    return (
        str(seen["position"] or "-"),
        seen["engine"],
        seen["model"],
        str(seen["tier"]),
        seen["state"],
        f"{seen['load']:.3g}",
        f"{expected_s:.3g} s" if expected_s is not None else "-",
        f"{seen['score']:.3g}",
        *(further[heading] for heading in more),
        seen["why"],
    )
