"""`drivetrain create`: a Modelfile is read here, the files it names are sent, the server does the rest."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.client import Server, connect
from drivetrain.cli.command import Call, Missing, Misused, command
from drivetrain.cli.models import watch
from drivetrain.dialects.ollama import modelfile
from drivetrain.dialects.ollama.modelfile import Modelfile

_WEIGHTS = ("*.gguf", "*.safetensors")
_BESIDE = ("*.json", "*.model", "*.txt")  # what belongs to weights in safetensors


@command()
@click.argument("name")
@click.option("-f", "--file", type=click.Path(path_type=Path), default=Path("Modelfile"), help="[default: ./Modelfile]")
@click.option("-q", "--quantize", metavar="TYPE", help="Quantise the weights, as to `q4_K_M`.")
def create(call: Call, name: str, file: Path, quantize: str | None) -> None:
    """Make a model from a Modelfile.

    FROM names a model of the library, a GGUF file, or a folder; a relative path counts from the Modelfile.
    """
    read = modelfile.parse(_read(file))
    asyncio.run(_create(call, name, read, file.absolute().parent, quantize))


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError as error:
        raise Missing(f"there is no file {str(file)!r}; name the Modelfile with -f") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"{file} cannot be read as text: {error}") from error


async def _create(call: Call, name: str, read: Modelfile, folder: Path, quantize: str | None) -> None:
    async with connect(call) as server:
        with output.progress(as_json=call.json) as shown:
            body = {"model": name, **described(read), "stream": True}
            weights = files_of(folder, read.from_)
            body |= {"files": await _send_all(server, weights, shown)} if weights else {"from": read.from_}
            for member, paths in (("adapters", read.adapters), ("draft_files", read.drafts)):
                if paths:
                    named = [found for path in paths for found in _required(folder, path)]
                    body[member] = await _send_all(server, named, shown)
            if quantize:
                body["quantize"] = quantize
            await watch(server, "/api/create", body, shown)


def described(read: Modelfile) -> dict[str, Any]:
    """What a Modelfile says besides its files, as `/api/create` takes it."""
    said: Mapping[str, Any] = {
        "template": read.template,
        "system": read.system,
        "license": list(read.licenses),
        "parameters": dict(read.parameters),
        "messages": [{"role": message.role, "content": message.text} for message in read.messages],
        "renderer": read.renderer,
        "parser": read.parser,
        "requires": read.requires,
    }
    return {name: value for name, value in said.items() if value not in (None, "", [], {})}


def files_of(folder: Path, named: str) -> list[Path]:
    """The files that FROM names, none if it names a model. Raises `Missing` for a path that leads nowhere."""
    path = folder / Path(named).expanduser()
    found = [path] if path.is_file() else _in_folder(path)
    if not found and (named.startswith((".", "/", "~")) or named.endswith(".gguf")):
        raise Missing(f"FROM {named}: {path} is no file, and no folder with {' or '.join(_WEIGHTS)}")
    return found


def _in_folder(folder: Path) -> list[Path]:
    for pattern in _WEIGHTS:
        if found := sorted(folder.glob(pattern)):
            beside = [] if pattern == "*.gguf" else [path for kind in _BESIDE for path in sorted(folder.glob(kind))]
            return found + beside
    return []


def _required(folder: Path, named: str) -> list[Path]:
    found = files_of(folder, named)
    if not found:
        raise Missing(f"there is no file {named!r} in {folder}")
    return found


async def _send_all(server: Server, paths: Iterable[Path], shown: output.Progress) -> dict[str, str]:
    """Sends the files that the server has not yet. Returns the digest of each by its name."""
    return {path.name: await _send(server, path, shown) for path in paths}


async def _send(server: Server, path: Path, shown: output.Progress) -> str:
    digest = await asyncio.to_thread(_digest, path)
    if not await server.has_blob(digest):
        with path.open("rb") as file:
            await server.put_blob(digest, file, _counter(path, digest, shown))
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _counter(path: Path, digest: str, shown: output.Progress) -> Callable[[int], None]:
    total, completed = path.stat().st_size, 0

    def told(count: int) -> None:
        nonlocal completed
        completed += count
        shown.show({"status": f"sending {path.name}", "digest": digest, "total": total, "completed": completed})

    return told
