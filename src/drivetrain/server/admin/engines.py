"""`/admin/v1/engines/NAME/drain` and `…/resume`: an engine or an instance of one goes out of service, and back."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from drivetrain.config import Config
from drivetrain.errors import NotFound
from drivetrain.server.admin.sight import Office, Sight
from drivetrain.server.admin.writes import signed
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes


class Drains(Office, Protocol):
    """The part of the store that remembers who is out. Blocks: call it from a thread."""

    def drain(self, engine: str, *, out: bool, actor: str, request_id: str = "") -> bool: ...


class Engines:
    def __init__(self, open: Callable[[], Drains], config: Callable[[], Config]) -> None:
        self._open = open
        self._config = config

    def join(self, table: Routes, base: str) -> None:
        table.under("POST", f"{base}/engines/", self._act, scope="admin")

    async def _act(self, exchange: Exchange, tail: str) -> None:
        """Every process knows within a second. What is drained already is no error."""
        name, _, action = tail.rpartition("/")
        if action not in ("drain", "resume"):
            raise NotFound("no such path: POST …/engines/NAME/drain and …/engines/NAME/resume are there")
        check(name, self._config())
        by = signed(exchange)

        def work() -> None:
            drains = self._open()
            Sight(drains, exchange.who).check_whole("engines")
            drains.drain(name, out=action == "drain", **by)

        await asyncio.to_thread(work)
        await exchange.respond(200, msgspec.json.encode({"name": name, "drained": action == "drain"}))


def check(name: str, config: Config) -> None:
    """Raises `NotFound` for what is neither an engine nor an instance of one. Which instances there are, changes."""
    family, at, instance = name.partition("@")
    engine = config.engines.get(family)
    if engine is None or (at and (engine.discover is None or not instance)):
        known = ", ".join(sorted(config.engines))
        raise NotFound(f"there is no engine {name[:200]!r}; there are {known}, and instances NAME@HOST:PORT of some")
