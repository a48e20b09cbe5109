"""What replicas tell each other of engines: one of them probes each, and all know; a breaker that opens warns the rest.

While the place where they meet is away, everybody probes.
"""

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from drivetrain.config.schema import Engine as EngineConfig
from drivetrain.types import Health, Model, Value

if TYPE_CHECKING:
    from drivetrain.quota.board import Board

TURN_S = 6.0  # after which a probe that nobody hears of is made by another
LOOK_S = 0.05  # between two looks whether it is done
KEEP_S = 60.0  # how long what was found is kept
LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 - compared with, nothing is bound

_encode, _host = msgspec.json.Encoder().encode, socket.gethostname()


class Finding(Value, frozen=True, kw_only=True):
    """What a probe has found."""

    health: Health
    models: tuple[Model, ...] = ()


class Heard(NamedTuple):
    finding: Finding
    age_s: float


_decode = msgspec.json.Decoder(Finding).decode


def subject(name: str, config: EngineConfig) -> str | None:
    """What replicas call an engine among themselves. None: it is this host's or this process's own affair."""
    if config.url is None:
        return None
    here = config.url.startswith("unix:") or urlsplit(config.url).hostname in LOCAL
    words = (name, config.kind, config.url, _host if here else "")
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]


class Hearsay:
    def __init__(self, board: "Board") -> None:
        self._board = board

    async def ask(self, about: str, fresh_s: float, probe: Callable[[], Awaitable[Finding]]) -> Heard:
        """What is known of an engine, not older than `fresh_s` when it was asked: `probe` is called if it is our turn,
        or if nobody else tells in time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while (waited_s := loop.time() - began_s) < TURN_S:
            found = await self._board.look(about, fresh_s=fresh_s + waited_s, turn_s=TURN_S)
            if found is None:
                break
            if found.text is not None and found.age_s <= fresh_s + waited_s:
                if (finding := _read(found.text)) is None:
                    break
                return Heard(finding, found.age_s)
            if found.mine:
                return await self._tell(about, await probe())
            await asyncio.sleep(LOOK_S)
        return Heard(await probe(), 0.0)

    async def _tell(self, about: str, finding: Finding) -> Heard:
        await self._board.post(about, _encode(finding).decode(), keep_s=KEEP_S)
        return Heard(finding, 0.0)

    def warn(self, about: str, for_s: float) -> None:
        """We have set it aside."""
        self._board.warn(about, for_s)

    async def warned(self, about: Collection[str]) -> frozenset[str]:
        """Those that another replica has set aside."""
        return await self._board.warned(tuple(about)) if about else frozenset()


def _read(text: str) -> Finding | None:
    """None: a replica of another version wrote it."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return None
