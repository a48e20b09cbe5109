"""The configuration in force, those that were before it, and the way back to one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from drivetrain.config import Config
from drivetrain.config.secrets import shown
from drivetrain.errors import Conflict, NotFound
from drivetrain.server.admin import query
from drivetrain.server.admin.kinds import Body
from drivetrain.server.admin.sight import Office, Sight
from drivetrain.server.admin.writes import NO_STORE, decoded, signed
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes
from drivetrain.store import ConfigRevision
from drivetrain.types import Value

Open = Callable[[], Office]
Revision = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Rollback(Body, frozen=True):
    """To which revision; `newest` is the last one that its writer knows, where a later one is a reason to refuse."""

    revision: Revision
    newest: Revision | UnsetType = UNSET


class Return(Value, frozen=True, kw_only=True):
    """The way back to an earlier configuration, as somebody asks for it."""

    revision: int
    newest: int | None
    actor: str
    request_id: str


PutBack = Callable[[Return], Awaitable[ConfigRevision]]


class Revisions(Protocol):
    """The part of the store that keeps configurations. Blocks."""

    def config(self, revision: int) -> ConfigRevision | None: ...
    def configs(self, limit: int = 100) -> Sequence[ConfigRevision]: ...


async def no_file(_: Return) -> ConfigRevision:
    raise Conflict("this server has no configuration file that it could write")


class Configuration:
    """Answers about the configuration, and puts an earlier one back in force."""

    def __init__(
        self, office: Open, kept: Revisions, config: Callable[[], Config], put_back: PutBack = no_file
    ) -> None:
        """`put_back` makes an earlier revision the one in force. It raises `NotFound`, `Conflict` and `BadRequest`."""
        self._office = office
        self._kept = kept
        self._config = config
        self._put_back = put_back

    def join(self, table: Routes, base: str) -> None:
        table.add("GET", f"{base}/config", self.config, scope="admin")
        table.add("GET", f"{base}/config/revisions", self.revisions, scope="admin")
        table.under("GET", f"{base}/config/revisions/", self.revision, scope="admin")
        table.add("POST", f"{base}/config/rollback", self.rollback, scope="admin")

    async def config(self, exchange: Exchange) -> None:
        """The configuration in force, every default included, without secrets."""
        await self._check_whole(exchange)
        told = shown(msgspec.to_builtins(self._config()), ())
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    async def revisions(self, exchange: Exchange) -> None:
        """Which configurations there were, newest first."""
        given = query.parameters(exchange, ("limit",))
        limit = query.number(given.get("limit", str(query.USUAL)), "limit", 1, query.MOST)
        await self._check_whole(exchange)
        found = await asyncio.to_thread(self._kept.configs, limit)
        await exchange.respond(200, msgspec.json.encode({"object": "list", "data": [_heading(one) for one in found]}))

    async def revision(self, exchange: Exchange, number: str) -> None:
        """One configuration as it was written. Secrets in it that are not references can be read here."""
        asked = query.number(number, "revision", 1, 2**53)
        await self._check_whole(exchange)
        found = await asyncio.to_thread(self._kept.config, asked)
        if found is None:
            raise NotFound(f"there is no revision {asked} of the configuration; /admin/v1/config/revisions lists them")
        await exchange.respond(200, msgspec.json.encode(found), headers=NO_STORE)

    async def rollback(self, exchange: Exchange) -> None:
        """Put an earlier configuration back in force, here, for all workers. Answers when it is."""
        asked = decoded(await exchange.body(), Rollback)
        await self._check_whole(exchange)
        newest = None if asked.newest is UNSET else asked.newest
        made = await self._put_back(Return(revision=asked.revision, newest=newest, **signed(exchange)))
        told = {**_heading(made), "like": asked.revision}
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    async def _check_whole(self, exchange: Exchange) -> None:
        await asyncio.to_thread(lambda: Sight(self._office(), exchange.who).check_whole("the configuration"))


def _heading(revision: ConfigRevision) -> Mapping[str, Any]:
    return {"revision": revision.revision, "at_s": revision.at_s, "actor": revision.actor, "hash": revision.hash}
