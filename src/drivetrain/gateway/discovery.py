"""Where the instances of an engine are, by a list, by DNS or by a file; and what each of them is called.

What was found last holds while nobody can tell: a name server that is away takes no engine with it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from drivetrain.config.schema import Discover
from drivetrain.config.schema import Engine as EngineConfig

DNS_S = 5.0  # for an answer of the name servers
MOST = 1_000  # instances of one engine

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Unknown(Exception):
    """Nobody can tell now where the instances are."""


async def resolved(host: str, port: int) -> Sequence[str]:
    """Every address of a host. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


async def addresses(discover: Discover, home: Path, resolve: Resolve = resolved) -> Sequence[str]:
    """The URLs of all instances, each once. Raises `Unknown`."""
    if discover.dns is not None:
        found = await _by_name(discover.dns, resolve)
    elif discover.file is not None:
        found = await asyncio.to_thread(_in_file, home / discover.file)
    else:
        found = discover.list
    if len(found) > MOST:
        raise Unknown(f"there are {len(found)}, and {MOST} are the most")
    return tuple(dict.fromkeys(found))


async def _by_name(name: str, resolve: Resolve) -> Sequence[str]:
    host, _, port = name.rpartition(":")
    try:
        async with asyncio.timeout(DNS_S):
            found = await resolve(host, int(port))
    except TimeoutError as error:
        raise Unknown(f"{host!r} could not be resolved within {DNS_S:g} s") from error
    except (OSError, UnicodeError, OverflowError) as error:
        raise Unknown(f"{host!r} could not be resolved: {error}") from error
    return [f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}" for address in found]


def _in_file(path: Path) -> Sequence[str]:
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=tuple[str, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise Unknown(f"{path} could not be read as a list of URLs: {error}") from error


def instances(name: str, config: EngineConfig, urls: Sequence[str]) -> Mapping[str, EngineConfig]:
    """The entry of each instance, by its name: `gpu@10.0.0.5:8000`."""
    return {f"{name}@{_place(url)}": replace(config, url=url, discover=None) for url in urls}


def _place(url: str) -> str:
    """Where a URL leads: without its scheme and the slash at its end."""
    if url.startswith("unix:"):
        return url
    parts = urlsplit(url)
    return parts.netloc + parts.path.rstrip("/")


def family(name: str) -> str:
    """Of an instance, the engine that it is one of; of an engine, itself."""
    return name.partition("@")[0]
