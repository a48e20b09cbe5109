"""Rollouts, experiments and prompts by HTTP: made, watched, moved on, rolled back. For administrators of everything."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, get_args

import msgspec

from drivetrain.errors import NotFound
from drivetrain.governance import Move
from drivetrain.rollouts.plan import Prompt, Rollout
from drivetrain.server.admin import query
from drivetrain.server.admin.rollout_kinds import Moving, NewPrompt, NewRollout, RolloutChange
from drivetrain.server.admin.sight import ID, Office, Sight
from drivetrain.server.admin.writes import NO_STORE, answered, decoded, signed, version_of, version_read
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes

if TYPE_CHECKING:
    from drivetrain.store.prompts import Prompts
    from drivetrain.store.rollouts import Rollouts

MOVES: Mapping[str, Move] = {move: move for move in get_args(Move)}
T = TypeVar("T")


class Control:
    """What administrators ask about rollouts. `join` adds it to a table of routes."""

    def __init__(
        self,
        office: Callable[[], Office],
        rollouts: "Callable[[], Rollouts]",
        prompts: "Callable[[], Prompts]",
        *,
        engines: Callable[[], Collection[str]],
        named: Callable[[str], str],
    ) -> None:
        """The first three are made when a thread first needs them. `engines` are those that there are; `named` gives
        the public name of a model as it is written, or raises `ModelNotFound`."""
        self._office = office
        self._rollouts = rollouts
        self._prompts = prompts
        self._engines = engines
        self._named = named

    def join(self, table: Routes, base: str) -> None:
        path = f"{base}/rollouts"
        table.add("GET", path, self.list, scope="admin")
        table.add("POST", path, self.create, scope="admin")
        table.under("GET", f"{path}/", self.get, scope="admin")
        table.under("PATCH", f"{path}/", self.amend, scope="admin")
        table.under("DELETE", f"{path}/", self.remove, scope="admin")
        table.under("POST", f"{path}/", self.move, scope="admin")
        table.add("GET", f"{base}/prompts", self.list_prompts, scope="admin")
        table.add("POST", f"{base}/prompts", self.add_prompt, scope="admin")
        table.under("GET", f"{base}/prompts/", self.get_prompt, scope="admin")

    # --- rollouts -----------------------------------------------------------------------------------------------------

    async def list(self, exchange: Exchange) -> None:
        page = query.page(exchange, ("model", "kind", "state"))

        def work() -> Sequence[Rollout]:
            return self._rollouts().list(after=page.after, limit=page.limit + 1, **page.filters)

        found = await self._asked(exchange, work)
        await exchange.respond(200, msgspec.json.encode(query.listing(found, page.limit)), headers=NO_STORE)

    async def create(self, exchange: Exchange) -> None:
        fields = decoded(await exchange.body(), NewRollout).fields()
        fields = {**fields, "model": self._named(fields["model"])}
        engines, by = self._engines(), signed(exchange)
        made = await self._asked(exchange, lambda: self._rollouts().create(fields, engines=engines, **by))
        await answered(exchange, 201, made, (b"location", f"{exchange.path}/{made.id}".encode()))

    async def get(self, exchange: Exchange, tail: str) -> None:
        """`{id}`, `{id}/history` and `{id}/report`."""
        id, _, what = tail.partition("/")
        if what == "history":
            turns = await self._asked(exchange, lambda: self._rollouts().history(self._found(id).id))
            told = {"object": "list", "data": turns}
            await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)
        elif what == "report":
            report = await self._asked(exchange, lambda: self._rollouts().report(self._found(id)))
            await exchange.respond(200, msgspec.json.encode(report), headers=NO_STORE)
        elif what:
            raise NotFound("no such path: GET …/rollouts/ID, …/ID/history and …/ID/report are there")
        else:
            await answered(exchange, 200, await self._asked(exchange, lambda: self._found(id)))

    async def amend(self, exchange: Exchange, id: str) -> None:
        change = decoded(await exchange.body(), RolloutChange)
        version, by = version_read(exchange, change), signed(exchange)

        def work() -> Rollout:
            return self._rollouts().amend(self._found(id).id, version, change.fields(), **by)

        await answered(exchange, 200, await self._asked(exchange, work))

    async def remove(self, exchange: Exchange, id: str) -> None:
        version, by = version_of(exchange), signed(exchange)
        await self._asked(exchange, lambda: self._rollouts().remove(self._found(id).id, version, **by))
        await exchange.respond(204)

    async def move(self, exchange: Exchange, tail: str) -> None:
        """`{id}/advance`, `pause`, `resume`, `finish` and `rollback`. Only who goes on has to say from where."""
        id, _, name = tail.partition("/")
        if name not in MOVES:
            raise NotFound(f"no such path: POST …/rollouts/ID/ with {', '.join(MOVES)} are there")
        asked = decoded(await exchange.body() or b"{}", Moving)
        version = (version_read if name == "advance" else version_of)(exchange, asked)
        by = signed(exchange)
        why = asked.why if isinstance(asked.why, str) and asked.why else f"{name} by {by['actor']}"

        def work() -> Rollout:
            return self._rollouts().move(self._found(id).id, version, MOVES[name], why=why, **by)

        await answered(exchange, 200, await self._asked(exchange, work))

    def _found(self, id: str) -> Rollout:
        if not ID.fullmatch(id):
            raise NotFound(f"there is no rollout {id[:100]!r}; list them to see their ids")
        return self._rollouts().get(id)

    # --- prompts ------------------------------------------------------------------------------------------------------

    async def list_prompts(self, exchange: Exchange) -> None:
        page = query.page(exchange, ("name",))

        def work() -> Sequence[Prompt]:
            return self._prompts().list(after=page.after, limit=page.limit + 1, **page.filters)

        found = await self._asked(exchange, work)
        told = query.listing(found, page.limit, by="reference")
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    async def add_prompt(self, exchange: Exchange) -> None:
        new, by = decoded(await exchange.body(), NewPrompt), signed(exchange)
        made = await self._asked(exchange, lambda: self._prompts().add(new.name, new.text, **by))
        place = f"{exchange.path}/{made.reference}".encode()
        await exchange.respond(201, msgspec.json.encode(made), headers=((b"location", place), *NO_STORE))

    async def get_prompt(self, exchange: Exchange, reference: str) -> None:
        """`{name}@{version}`, or `{name}` for the newest."""
        found = await self._asked(exchange, lambda: self._prompts().get(reference))
        await exchange.respond(200, msgspec.json.encode(found), headers=NO_STORE)

    async def _asked(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """On a thread, and for who sees everything alone."""

        def checked() -> T:
            Sight(self._office(), exchange.who).check_whole("rollouts and prompts")
            return work()

        return await asyncio.to_thread(checked)
