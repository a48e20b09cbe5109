"""The engines of a migration as the command line reaches them itself: what they have, and what they answer.

No server need run, and nobody is charged for what is asked here. The embedded engine is in a server alone: that one is
asked by its OpenAI API, with the key of `DRIVETRAIN_API_KEY` where it wants one.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from drivetrain import web
from drivetrain.cli.client import is_local, running
from drivetrain.cli.command import Call, Failure, Misused
from drivetrain.cli.migrating.judging import Made, Side
from drivetrain.config import Config
from drivetrain.config.problems import suggestion
from drivetrain.config.schema import Downloads
from drivetrain.config.schema import Engine as Entry
from drivetrain.dialects.ollama import options
from drivetrain.engines import Engine, EngineSettings, open_engine
from drivetrain.errors import BadRequest, DrivetrainError, EngineError, ModelNotFound
from drivetrain.gateway import discovery
from drivetrain.library import Library
from drivetrain.types import Model, ModelSpec, Notice, Resident

EMBEDDED = "llamacpp"
SHOW_S = 10.0


class Alone:
    """A host of engines outside a server."""

    default_keep_alive_s = 300.0

    def __init__(self, home: Path) -> None:
        self.home = home

    def lookup(self, model: str) -> ModelSpec:
        raise ModelNotFound(f"model {model!r} not found")

    def notify(self, notice: Notice) -> None:
        """Nobody listens."""

    def pinned(self, model: str) -> bool:
        return False

    def evictions(
        self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> NoReturn:
        raise RuntimeError("an engine behind a URL has no memory of ours")


def stored(call: Call) -> Sequence[ModelSpec]:
    """The models of the library."""
    return Library(call.home, Downloads(), lambda notice: None).list()


def entry_of(config: Config, name: str) -> Entry:
    """Raises `Misused`, which tells similar names."""
    if (entry := config.engines.get(name)) is None:
        raise Misused(f"there is no engine {name!r}{suggestion(name, config.engines)}; they are in drivetrain.yaml")
    return entry


@asynccontextmanager
async def reached(call: Call, name: str, entry: Entry) -> AsyncGenerator[Engine, None]:
    """An engine to ask, or one of its instances."""
    engine = open_engine(name, await _settings(call, name, entry), Alone(call.home))
    try:
        yield engine
    finally:
        await engine.aclose()


async def _settings(call: Call, name: str, entry: Entry) -> EngineSettings:
    given = {member: getattr(entry, member) for member in EngineSettings.__struct_fields__}
    if entry.kind == EMBEDDED:
        if (url := await running(call)) is None:
            raise Failure(f"engine {name!r} runs inside the server, and none runs: start it with `drivetrain serve`")
        return EngineSettings(kind="openai", url=url, api_key=call.environ.get("DRIVETRAIN_API_KEY"))
    if entry.discover is not None:
        given["url"] = (await _instances(name, entry, call.home))[0]
    return EngineSettings(**given)


async def _instances(name: str, entry: Entry, home: Path) -> Sequence[str]:
    if entry.discover is None:
        return (entry.url or "",)
    try:
        found = await discovery.addresses(entry.discover, home)
    except discovery.Unknown as error:
        raise Failure(f"engine {name!r}: {error}") from error
    if not found:
        raise Failure(f"engine {name!r} has no instance")
    return found


async def side(call: Call, config: Config, name: str, library: Sequence[ModelSpec]) -> Side:
    """An engine of a migration with its models. Raises `Failure` if it cannot be asked."""
    entry = entry_of(config, name)
    if entry.kind == EMBEDDED:
        return _embedded(name, library)
    try:
        async with reached(call, name, entry) as engine:
            models = tuple(await engine.models())
    except EngineError as error:
        raise Failure(f"engine {name!r} does not tell its models: {error.message}") from error
    return Side(name=name, kind=entry.kind, models=models, made=await _made(call, name, entry, models))


def _embedded(name: str, library: Sequence[ModelSpec]) -> Side:
    own = [spec for spec in library if spec.engine == name]
    made = {
        spec.id: Made(system=spec.system or "", parameters=dict(spec.parameters), messages=len(spec.messages))
        for spec in own
    }
    models = tuple(_named(spec) for spec in own)
    return Side(name=name, kind=EMBEDDED, models=models, made=made)


def _named(spec: ModelSpec) -> Model:
    return Model(
        id=spec.id,
        engine=spec.engine,
        capabilities=spec.model.capabilities,
        context_length=spec.model.context_length,
        family=spec.model.family,
        parameter_size=spec.model.parameter_size,
        quantization=spec.model.quantization,
    )


async def listed(call: Call, engines: Mapping[str, Entry], known: Sequence[Side]) -> Mapping[str, Sequence[Model]]:
    """What each of these that is behind a URL lists, in their order; of one that is away, nothing."""
    have = {one.name: one.models for one in known}
    found: dict[str, Sequence[Model]] = {}
    for name, entry in engines.items():
        if entry.kind == EMBEDDED:
            continue
        found[name] = have[name] if name in have else await _models_of(call, name, entry)
    return found


async def _models_of(call: Call, name: str, entry: Entry) -> Sequence[Model]:
    """What an engine behind a URL lists; nothing if it is away."""
    try:
        async with reached(call, name, entry) as engine:
            return await engine.models()
    except (EngineError, BadRequest, Failure):
        return ()


# --- what only Ollama tells -------------------------------------------------------------------------------------------


async def _made(call: Call, name: str, entry: Entry, models: Sequence[Model]) -> Mapping[str, Made]:
    """The Modelfiles of an Ollama server's models, as far as it tells them."""
    if entry.kind != "ollama":
        return {}
    url = (await _instances(name, entry, call.home))[0]
    if not url.startswith("http"):
        return {}
    key = {"authorization": f"Bearer {entry.api_key}"} if entry.api_key else {}
    base = url.rstrip("/").removesuffix("/api")
    async with web.open_client(base, headers=key, idle_s=SHOW_S, proxies=not is_local(url)) as http:
        return {model.id: await _shown(http, url, model.id) for model in models}


async def _shown(http: web.Client, url: str, model: str) -> Made:
    try:
        with web.translated(url):
            answer = await http.post("/api/show", json={"model": model})
        said = json.loads(answer.content) if answer.status_code == 200 else {}
    except (DrivetrainError, ValueError):
        return Made()
    if not isinstance(said, dict):
        return Made()
    return Made(
        system=str(said.get("system") or ""),
        parameters=parameters(str(said.get("parameters") or "")),
        messages=len(said.get("messages") or ()),
    )


def parameters(text: str) -> Mapping[str, Any]:
    """The lines `name value` in which Ollama shows a model's parameters. What nobody knows is left out."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        name, _, written = line.strip().partition(" ")
        if (kind := options.KINDS.get(name)) is None:
            continue
        try:
            value = options.parameter(name, _unquoted(written.strip()))
        except BadRequest:
            continue
        if kind == "array":
            found[name] = (*found.get(name, ()), value)
        else:
            found[name] = value
    return found


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
