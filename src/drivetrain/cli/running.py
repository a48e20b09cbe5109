"""Commands on what runs: ps, load, stop."""

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import connect, model_path, running
from drivetrain.cli.command import Call, checked_keep_alive, command
from drivetrain.cli.completion import model_names


@command()
def ps(call: Call) -> None:
    """List the models in memory."""
    asyncio.run(_ps(call))


async def _ps(call: Call) -> None:
    answer: Any = {"models": []}
    if await running(call):  # where no server runs, nothing is loaded
        async with connect(call) as server:
            answer = await server.get("/api/ps")
    if call.json:
        output.emit(answer)
        return
    models = answer["models"]
    streamed = any("experts" in model for model in models)  # most people never need to know of experts
    headings = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", *(("EXPERTS",) if streamed else ()), "UNTIL")
    output.table(headings, (_loaded(model, streamed=streamed) for model in models))


def _loaded(model: Mapping[str, Any], *, streamed: bool) -> tuple[str, ...]:
    return (
        model["name"],
        str(model.get("digest", ""))[:12] or "-",
        output.size(model["size"]),
        _processor(model["size"], model.get("size_vram", 0)),
        str(model.get("context_length") or "-"),
        *((_experts(model.get("experts")),) if streamed else ()),
        output.when(model["expires_at"]) if model.get("expires_at") else "forever",
    )


def _experts(experts: Mapping[str, Any] | None) -> str:
    """How much of them is in memory, how often one that was asked for was, how long the drive was waited for."""
    if experts is None:
        return "-"
    held = f"{output.size(experts['resident_bytes'])} of {output.size(experts['total_bytes'])}"
    return f"{held}, {experts['hit_rate']:.0%} hits, {experts['wait_share']:.0%} waiting"


def _processor(total: int, on_gpu: int) -> str:
    """Where a model's memory is: `100% CPU`, `30%/70% CPU/GPU`."""
    share = round(100 * on_gpu / total) if total else 0
    if share in (0, 100):
        return "100% GPU" if share else "100% CPU"
    return f"{100 - share}%/{share}% CPU/GPU"


@command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=model_names)
@click.option(
    "--keep-alive",
    metavar="TIME",
    callback=checked_keep_alive,
    help="How long they stay when idle, such as 30m; -1: for ever.",
)
def load(call: Call, models: tuple[str, ...], keep_alive: str | None) -> None:
    """Bring models into memory.

    At every engine that has them, and before somebody asks for them.
    """
    asyncio.run(_load(call, models, keep_alive))


async def _load(call: Call, models: tuple[str, ...], keep_alive: str | None) -> None:
    said = {} if keep_alive is None else {"keep_alive": keep_alive}
    async with connect(call) as server:
        for model in models:
            answer = await server.post(f"{model_path(model)}/load", said)
            if call.json:
                output.emit_line(answer)
            else:
                click.echo(f"{model} is in memory at {', '.join(answer['loaded'])}")


@command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=model_names)
def stop(call: Call, models: tuple[str, ...]) -> None:
    """Take models out of memory.

    Requests that run are finished first.
    """
    asyncio.run(_stop(call, models))


async def _stop(call: Call, models: tuple[str, ...]) -> None:
    async with connect(call) as server:
        for model in models:
            await server.post("/api/generate", {"model": model, "keep_alive": 0, "stream": False})
            if call.json:
                output.emit_line({"stopped": model})
