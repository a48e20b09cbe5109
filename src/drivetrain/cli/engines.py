"""`drivetrain engines`: how they are, and taking one out of service and back in, so that it can be updated."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import connect, running
from drivetrain.cli.command import Call, Failure, Leading, command, shared_options
from drivetrain.cli.moments import LENGTH
from drivetrain.cli.office import office
from drivetrain.server.admin.engines import check

LOOK_S = 0.2  # between two looks whether it is idle
HEADINGS = ("NAME", "KIND", "URL", "HEALTH", "LOADED")
_NAME = click.argument("name", metavar="NAME")


@command(name="list")
def list_(call: Call) -> None:
    """List the engines and how they are.

    Names, kinds, health, and the models that each has in memory. Of an engine that discovers its instances, those.
    """
    asyncio.run(_list(call))


async def _list(call: Call) -> None:
    async with connect(call) as server:
        answer = await server.get("/v1/engines")
    if call.json:
        output.emit(answer)
        return
    output.table(HEADINGS, map(_row, answer["data"]))


def _row(engine: Mapping[str, Any]) -> tuple[str, ...]:
    loaded = ", ".join(one["model"]["id"] for one in engine["loaded"])
    return (engine["name"], engine["kind"], engine["url"] or "-", _state(engine), loaded or "-")


def _state(engine: Mapping[str, Any]) -> str:
    """What hinders it, or how it is."""
    health = engine["health"]
    word = "ready" if health["ready"] else "live" if health["live"] else "down"
    if engine.get("drained"):
        word = f"drained, {_at_work(engine)} at work"
    elif health["ready"] and engine.get("breaker", "closed") != "closed":
        word = "set aside after failures"
    return f"{word}: {health['message']}" if health.get("message") else word


@command()
@_NAME
@click.option("--wait", is_flag=True, help="Come back when its requests are done.")
@click.option("--timeout", "timeout_s", type=LENGTH, default=600.0, help="How long to wait for that. [default: 10m]")
def drain(call: Call, name: str, wait: bool, timeout_s: float) -> None:
    """Take an engine out of service.

    It gets no new requests on any replica, within a second; those that run are finished. NAME is that of an engine, or
    of one instance, as `drivetrain engines` lists them.
    """
    _put(call, name, out=True)
    if wait:
        asyncio.run(_until_idle(call, name, timeout_s))
    if call.json:
        output.emit({"name": name, "drained": True})


@command()
@_NAME
def resume(call: Call, name: str) -> None:
    """Put an engine back into service.

    It is probed as before, and takes up its share.
    """
    _put(call, name, out=False)
    if call.json:
        output.emit({"name": name, "drained": False})


def _put(call: Call, name: str, *, out: bool) -> None:
    with office(call) as at:
        check(name, at.config)
        at.drain(name, out=out)


async def _until_idle(call: Call, name: str, timeout_s: float) -> None:
    if not await running(call):
        return
    busy: Sequence[str] = (name,)
    async with connect(call) as server:
        try:
            async with asyncio.timeout(timeout_s):
                while busy := _busy((await server.get("/v1/engines"))["data"], name):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            raise Failure(f"after {timeout_s:g} s there is still work at {', '.join(busy)}") from error


def _busy(engines: Sequence[Mapping[str, Any]], name: str) -> Sequence[str]:
    """Those of this name that do not know of it yet, or have something to do."""
    meant = [engine for engine in engines if name in (engine["name"], engine["family"])]
    return [engine["name"] for engine in meant if not engine["drained"] or _at_work(engine)]


def _at_work(engine: Mapping[str, Any]) -> int:
    """Requests of this server's, and as far as the engine tells, of others."""
    health = engine["health"]
    told = (health.get("running") or 0) + (health.get("waiting") or 0)
    return int(max(engine["outstanding"], told))


engines = Leading(
    "engines",
    leading="list",
    commands=[list_, drain, resume],
    params=shared_options(),
    help="List the engines, and take one out of service for an update.",
)
