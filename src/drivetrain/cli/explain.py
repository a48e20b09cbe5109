"""`drivetrain explain`: which engine a request would go to, and why. The server is asked, its engines are not."""

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import connect
from drivetrain.cli.command import Call, command
from drivetrain.cli.completion import model_names

HEADINGS = ("#", "ENGINE", "MODEL", "TIER", "STATE", "LOAD", "EXPECTED", "SCORE", "WHY")


@command()
@click.argument("model", shell_complete=model_names)
@click.option("--prompt-tokens", type=click.IntRange(1), help="How long the prompt is.")
@click.option("--output-tokens", type=click.IntRange(1), help="How long the answer is.")
def explain(call: Call, model: str, prompt_tokens: int | None, output_tokens: int | None) -> None:
    """Tell which engines a request would go to, and why.

    A dry run: nothing is generated, counted or charged. What became of a request that was made, `drivetrain trace
    REQUEST_ID` tells.
    """
    given = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    asyncio.run(_explain(call, model, {name: str(value) for name, value in given.items() if value is not None}))


async def _explain(call: Call, model: str, lengths: Mapping[str, str]) -> None:
    async with connect(call) as server:
        answer = await server.get("/v1/explain", model=model, **lengths)
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
        fallback = "" if choice is answer["choices"][0] else "fallback "
        click.echo(f"\n{fallback}{choice['model']}, policy {choice['policy']}")
        output.table(HEADINGS, map(_candidate, choice["candidates"]))


def _candidate(seen: Mapping[str, Any]) -> tuple[str, ...]:
    expected_s = seen["expected_s"]
    return (
        str(seen["position"] or "-"),
        seen["engine"],
        seen["model"],
        str(seen["tier"]),
        seen["state"],
        f"{seen['load']:.3g}",
        f"{expected_s:.3g} s" if expected_s is not None else "-",
        f"{seen['score']:.3g}",
        seen["why"],
    )
