"""`drivetrain explain`: which engine a request would go to, and why. The server is asked, its engines are not."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import connect
from drivetrain.cli.command import Call, command
from drivetrain.cli.completion import model_names

HEADINGS = ("#", "ENGINE", "MODEL", "TIER", "STATE", "LOAD", "EXPECTED", "SCORE", "WHY")
MORE: Mapping[str, str] = {"REGION": "region", "COST": "micro_usd"}


@command()
@click.argument("model", shell_complete=model_names)
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
def explain(call: Call, model: str, **told: str | float | bool | None) -> None:
    """Tell which engines a request would go to, and why.

    A dry run: nothing is generated, counted or charged. What became of a request that was made, `drivetrain trace
    REQUEST_ID` tells.
    """
    within = told.pop("within")
    told["within_ms"] = round(float(within) * 1000) if within is not None else None
    asyncio.run(_explain(call, model, {name: _written(value) for name, value in told.items() if value}))


def _written(value: str | float | bool | None) -> str:
    return "true" if value is True else str(value)


async def _explain(call: Call, model: str, told: Mapping[str, str]) -> None:
    async with connect(call) as server:
        answer = await server.get("/v1/explain", model=model, **told)
    if call.json:
        output.emit(answer)
        return
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
