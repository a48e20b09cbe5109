"""`/admin/v1`: organisations, teams, projects, users, keys, limits, budgets, prices, rollouts, and reports on what they
come to.

One table of kinds, one handler per verb. A write names the version that its writer has read, leaves a line in the
audit with who did it and in which request, and is answered with what is there now.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from drivetrain.config import Config
from drivetrain.errors import NotFound
from drivetrain.governance import Key
from drivetrain.server.admin import openapi, query
from drivetrain.server.admin.engines import Engines
from drivetrain.server.admin.kinds import COLLECTIONS, Collection, Entity, KeyWithSecret, Rotation
from drivetrain.server.admin.reports import Reports
from drivetrain.server.admin.rollouts import Control
from drivetrain.server.admin.sight import Office, Sight
from drivetrain.server.admin.writes import answered, decoded, signed, version_of, version_read
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes

BASE = "/admin/v1"


class Administration(Office, Protocol):
    """The part of the store that writes. Blocks: call it from a thread."""

    def create(self, kind: str, fields: Mapping[str, Any], *, actor: str, request_id: str = "") -> Any: ...
    def update(
        self, kind: str, id: str, version: int | None, fields: Mapping[str, Any], *, actor: str, request_id: str = ""
    ) -> Any: ...
    def delete(self, kind: str, id: str, version: int | None = None, *, actor: str, request_id: str = "") -> Any: ...
    def create_key(self, fields: Mapping[str, Any], *, actor: str, request_id: str = "") -> tuple[Key, str]: ...
    def rotate_key(
        self, id: str, version: int | None = None, *, grace_s: float, actor: str, request_id: str = ""
    ) -> tuple[Key, str]: ...
    def revoke_key(self, id: str, version: int | None = None, *, actor: str, request_id: str = "") -> Key: ...
    def drain(self, engine: str, *, out: bool, actor: str, request_id: str = "") -> bool: ...


Open = Callable[[], Administration]


class Admin:
    """What administrators ask by HTTP. `join` adds it to a table of routes."""

    def __init__(self, open: Open, config: Callable[[], Config], reports: Reports, control: Control) -> None:
        """`open` gives the administration, when a thread first needs it; `config` the configuration in force."""
        self._open = open
        self._config = config
        self._reports = reports
        self._control = control

    def join(self, table: Routes) -> None:
        for collection in COLLECTIONS:
            _Handlers(collection, self._open).join(table)
        table.under("POST", f"{BASE}/keys/", self._act_on_key, scope="admin")
        Engines(self._open, self._config).join(table, BASE)
        table.add("GET", f"{BASE}/openapi.json", self._openapi, scope="admin")
        self._reports.join(table, BASE)
        self._control.join(table, BASE)

    async def _openapi(self, exchange: Exchange) -> None:
        await exchange.respond(200, openapi.document())

    async def _act_on_key(self, exchange: Exchange, tail: str) -> None:
        """`{id}/rotate` and `{id}/revoke`."""
        id, _, action = tail.partition("/")
        if action not in ("rotate", "revoke"):
            raise NotFound("no such path: POST …/keys/ID/rotate and …/keys/ID/revoke are there")
        asked = decoded(await exchange.body() or b"{}", Rotation)
        version = version_of(exchange, asked)
        grace_s = self._config().keys.grace_s if asked.grace_s is msgspec.UNSET else asked.grace_s
        by = signed(exchange)

        def work() -> tuple[Key, str]:
            administration = self._open()
            sight = Sight(administration, exchange.who)
            key = sight.found("key", id)
            sight.check_change(key)
            if action == "revoke":
                return administration.revoke_key(id, version, **by), ""
            sight.check_secret(key)
            return administration.rotate_key(id, version, grace_s=grace_s, **by)

        key, secret = await asyncio.to_thread(work)
        await answered(exchange, 200, with_secret(key, secret) if secret else key)


class _Handlers:
    """The routes of one kind."""

    def __init__(self, collection: Collection, open: Open) -> None:
        self._collection = collection
        self._open = open

    def join(self, table: Routes) -> None:
        path = f"{BASE}/{self._collection.path}"
        table.add("GET", path, self.list, scope="admin")
        table.add("POST", path, self.create, scope="admin")
        table.under("GET", f"{path}/", self.get, scope="admin")
        table.under("PATCH", f"{path}/", self.update, scope="admin")
        table.under("DELETE", f"{path}/", self.delete, scope="admin")

    async def list(self, exchange: Exchange) -> None:
        page, kind = query.page(exchange, self._collection.filters), self._collection.kind

        def work() -> Sequence[Entity]:
            sight = Sight(self._open(), exchange.who)
            return sight.listed(kind, page.filters, after=page.after, limit=page.limit + 1)

        found = await asyncio.to_thread(work)
        await exchange.respond(200, msgspec.json.encode(query.listing(found, page.limit)))

    async def get(self, exchange: Exchange, id: str) -> None:
        def work() -> Entity:
            found: Entity = Sight(self._open(), exchange.who).found(self._collection.kind, id)
            return found

        await answered(exchange, 200, await asyncio.to_thread(work))

    async def create(self, exchange: Exchange) -> None:
        fields = decoded(await exchange.body(), self._collection.new).fields()
        kind, by = self._collection.kind, signed(exchange)

        def work() -> Entity:
            administration = self._open()
            placed = Sight(administration, exchange.who).check_new(kind, fields)
            if kind == "key":
                return with_secret(*administration.create_key(placed, **by))
            made: Entity = administration.create(kind, placed, **by)
            return made

        made = await asyncio.to_thread(work)
        place = f"{BASE}/{self._collection.path}/{made.id}".encode()
        await answered(exchange, 201, made, (b"location", place))

    async def update(self, exchange: Exchange, id: str) -> None:
        change = decoded(await exchange.body(), self._collection.change)
        version, by = version_read(exchange, change), signed(exchange)

        def work() -> Entity:
            administration = self._open()
            sight = Sight(administration, exchange.who)
            sight.check_change(sight.found(self._collection.kind, id), change.fields())
            changed: Entity = administration.update(self._collection.kind, id, version, change.fields(), **by)
            return changed

        await answered(exchange, 200, await asyncio.to_thread(work))

    async def delete(self, exchange: Exchange, id: str) -> None:
        version, by = version_of(exchange), signed(exchange)

        def work() -> None:
            administration = self._open()
            sight = Sight(administration, exchange.who)
            sight.check_change(sight.found(self._collection.kind, id))
            administration.delete(self._collection.kind, id, version, **by)

        await asyncio.to_thread(work)
        await exchange.respond(204)


def with_secret(key: Key, secret: str) -> KeyWithSecret:
    return KeyWithSecret(**msgspec.structs.asdict(key), secret=secret)
