"""Commands on what runs: ps, stop, engines."""

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import connect, running
from drivetrain.cli.command import Call, command
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


@command()
def engines(call: Call) -> None:
    """List the engines and how they are.

    Names, kinds, health, and the models that each has in memory.
    """
    asyncio.run(_engines(call))


async def _engines(call: Call) -> None:
    async with connect(call) as server:
        answer = await server.get("/v1/engines")
    if call.json:
        output.emit(answer)
        return
    output.table(("NAME", "KIND", "URL", "HEALTH", "LOADED"), map(_engine, answer["data"]))


def _engine(engine: Mapping[str, Any]) -> tuple[str, ...]:
    loaded = ", ".join(one["model"]["id"] for one in engine["loaded"])
    return (engine["name"], engine["kind"], engine["url"] or "-", _health(engine["health"]), loaded or "-")


def _health(health: Mapping[str, Any]) -> str:
    word = "ready" if health["ready"] else "live" if health["live"] else "down"
    return f"{word}: {health['message']}" if health.get("message") else word
