"""`/v1/models`: what can be called, as OpenAI lists it; models into memory and out of it; and the library's models:
import, pull, change, delete.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.dialects import ollama, openai
from drivetrain.errors import BadRequest, DrivetrainError, ModelNotFound, NotFound
from drivetrain.gateway import Gateway
from drivetrain.library import Layer, Library, Status, ids, sources
from drivetrain.server import errand
from drivetrain.server.auth import check_model, may_use
from drivetrain.server.exchange import Exchange
from drivetrain.server.reach import check_local, check_source


class NewModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/models: one of `import` (a path on the server's machine) and `pull` (a source)."""

    import_path: str | None = msgspec.field(default=None, name="import")
    pull: str | None = None
    name: str | None = None
    link: bool = False  # with `import`: refer to the file where it is
    stream: bool = False  # with `pull`: tell how it goes, line by line
    insecure: bool = False  # with `pull`: from a registry without TLS, or with an unknown certificate


class Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/models/NAME/load; there need not be one."""

    keep_alive: int | float | str | None = None  # how long it stays: seconds, or "10m"; negative: for ever
    settings: Mapping[str, Any] = {}  # load time, over those of its policy


def _hint(body: bytes) -> Hint:
    try:
        return msgspec.json.decode(body, type=Hint) if body else Hint()
    except msgspec.DecodeError as error:
        raise BadRequest(f"expected {{keep_alive, settings}} or nothing: {error}") from error


@contextmanager
def _as_sent(names: Mapping[str, str]) -> Iterator[None]:
    """An error names the member that this caller sent, not what the library calls it."""
    try:
        yield
    except DrivetrainError as error:
        error.param = names.get(error.param or "", error.param)
        raise


class Models:
    def __init__(self, gateway: Gateway, library: Library) -> None:
        self._gateway = gateway
        self._library = library

    async def list(self, exchange: Exchange) -> None:
        models = [model for model in self._gateway.catalog.models() if may_use(exchange.who, model.id)]
        await exchange.respond(200, openai.encode_models(models))

    async def get(self, exchange: Exchange, name: str) -> None:
        entry = await self._gateway.resolve(name)
        check_model(exchange.who, entry.name)
        if exchange.query("effective") in ("true", "1"):
            await exchange.respond(200, msgspec.json.encode(self._effective(name)))
        else:
            await exchange.respond(200, openai.encode_model(self._gateway.catalog.describe(entry.name)))

    def _effective(self, name: str) -> Mapping[str, Any]:
        """Each effective value of a model, and where it came from."""
        entry = self._gateway.catalog.resolve(name)
        target = entry.targets[0]
        spec = entry.spec or self._gateway.spec_behind(target.engine, target.model)
        origin, policy = f"policy {entry.policy_name!r}", entry.policy
        layer = Layer(origin=origin, settings=policy.settings, parameters=policy.parameters)
        effective = self._library.effective(spec.id, [layer]) if spec else {}
        values = {name: {"value": setting.value, "origin": setting.origin} for name, setting in effective.items()}
        return {"id": entry.name, "object": "model", "engine": target.engine, "effective": values}

    async def create(self, exchange: Exchange) -> None:
        try:
            wanted = msgspec.json.decode(await exchange.body(), type=NewModel)
        except msgspec.DecodeError as error:
            raise BadRequest(f"expected {{import, name, link}} or {{pull, name, stream, insecure}}: {error}") from error
        if wanted.import_path is not None and wanted.pull is None:
            name = await self._import(exchange, wanted, wanted.import_path)
        elif wanted.pull is not None and wanted.import_path is None:
            statuses = self._pulled(exchange, wanted, wanted.pull)
            if wanted.stream:
                await errand.told(exchange, statuses, openai.encode_error)
                return
            await errand.done(statuses)
            name = wanted.name or sources.parse(wanted.pull, insecure=wanted.insecure).id
        else:
            raise BadRequest("give either `import`, a path on the server's machine, or `pull`, a source")
        await exchange.respond(201, openai.encode_model(self._gateway.catalog.describe(name)))

    async def _import(self, exchange: Exchange, wanted: NewModel, path: str) -> str:
        check_local(exchange.who, path)
        name = wanted.name or Path(path).stem
        check_model(exchange.who, name)
        with _as_sent({"path": "import", "model": "name" if wanted.name else "import"}):
            return (await self._library.add(Path(path), name, link=wanted.link)).id

    async def _pulled(self, exchange: Exchange, wanted: NewModel, source: str) -> AsyncGenerator[Status, None]:
        check_source(exchange.who, source, name=wanted.name, insecure=wanted.insecure)
        with _as_sent({"model": "name"}):
            if wanted.name:
                ids.check(wanted.name)
        with _as_sent({"path": "pull", "model": "pull"}):
            statuses = self._library.pull(source, name=wanted.name, insecure=wanted.insecure)
            async with aclosing(statuses):
                async for status in statuses:
                    yield status

    async def update(self, exchange: Exchange, name: str) -> None:
        try:
            patch = msgspec.json.decode(await exchange.body(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise BadRequest(f"PATCH takes a JSON object with members of model.json: {error}") from error
        check_model(exchange.who, name)
        spec = await self._library.update(name, patch)
        await self._gateway.unload(spec.id)  # the next request loads it with its new settings
        await exchange.respond(200, openai.encode_model(self._gateway.catalog.describe(spec.id)))

    async def command(self, exchange: Exchange, tail: str) -> None:
        """`NAME/load` and `NAME/unload`: a hint that a model is going to be needed, or is not."""
        name, _, verb = tail.rpartition("/")
        if not name or verb not in ("load", "unload"):
            raise NotFound(f"no route POST {exchange.path}; there are /v1/models/NAME/load and /v1/models/NAME/unload")
        check_model(exchange.who, (await self._gateway.resolve(name)).name)
        if verb == "unload":
            await self._gateway.dismiss(name)
            answer: Mapping[str, Any] = {"id": name, "object": "model", "loaded": []}
        else:
            wanted = _hint(await exchange.body())
            keep_s = ollama.durations.keep_alive_s(wanted.keep_alive)
            engines = await self._gateway.preload(name, keep_alive_s=keep_s, options=wanted.settings)
            answer = {"id": name, "object": "model", "loaded": engines}
        await exchange.respond(200, msgspec.json.encode(answer))

    async def delete(self, exchange: Exchange, name: str) -> None:
        check_model(exchange.who, name)
        await delete(self._gateway, self._library, name)
        await exchange.respond(200, msgspec.json.encode({"id": name, "object": "model", "deleted": True}))


async def delete(gateway: Gateway, library: Library, name: str) -> None:
    """Take a model out of memory and out of the library. A broken one can be deleted too. Raises `ModelNotFound`."""
    with suppress(BadRequest, ModelNotFound):
        await gateway.forget(library.lookup(name).id)
    await library.delete(name)
