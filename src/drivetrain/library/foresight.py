"""What is told of a model before it is downloaded: its header comes alone, for whoever knows the machine to judge."""

from collections.abc import Sequence
from typing import Protocol

import anyio.to_thread

from drivetrain import gguf, web
from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf
from drivetrain.library.download import Remote

# A header without a vocabulary takes some hundred kilobytes, one with a vocabulary some megabytes.
_LOOKS_BYTES = (2**20, 2**23, 2**25)


class Outlook(Protocol):
    """Who judges. Both may block."""

    def wanted(self, size_bytes: int) -> bool:
        """Whether a model of this size is worth a look: most run as anybody expects."""
        ...

    def told(self, headers: Sequence[Gguf]) -> str | None:
        """A line about the model with these headers, if there is something to say."""
        ...


async def told(outlook: Outlook, client: web.Client, parts: Sequence[Remote]) -> str | None:
    """A line about the model that consists of these files. None wherever anything is in the way: it is only advice."""
    size_bytes = sum(part.size or 0 for part in parts)
    if not await anyio.to_thread.run_sync(outlook.wanted, size_bytes):
        return None
    headers = [await _header(client, part) for part in parts]
    found = [header for header in headers if header is not None]
    return await anyio.to_thread.run_sync(outlook.told, found) if len(found) == len(parts) else None


async def _header(client: web.Client, part: Remote) -> Gguf | None:
    for count in _LOOKS_BYTES:
        data = await _first(client, part, count)
        try:
            return await anyio.to_thread.run_sync(gguf.head, data, part.size or 0)
        except BadRequest:  # it may be longer than what came
            if len(data) < count:
                return None
    return None


async def _first(client: web.Client, part: Remote, count: int) -> bytes:
    """The first bytes of a file; none if the server does not give them alone."""
    ask = {**part.headers, "range": f"bytes=0-{count - 1}"}
    try:
        with web.translated(part.url):
            async with client.stream("GET", part.url, headers=ask) as response:
                return await web.read_limited(response, count) if response.status_code == 206 else b""
    except web.Unreachable:
        return b""
