"""The composition root: config → store → telemetry → library → engines → gateway → server. Only it knows them all."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from drivetrain import residency
from drivetrain.config import Config
from drivetrain.gateway import Gateway
from drivetrain.gateway.pool import retire
from drivetrain.gguf import Gguf
from drivetrain.library import Library
from drivetrain.server import App
from drivetrain.server.answer import Heartbeat
from drivetrain.server.inference import Inference
from drivetrain.server.models import Models
from drivetrain.server.ollama import Ollama
from drivetrain.server.operations import Operations
from drivetrain.server.relay import Relay
from drivetrain.server.routes import INFERENCE, routes
from drivetrain.store import Ledger, Store
from drivetrain.telemetry import Logs, Telemetry
from drivetrain.types import ModelSpec, Notice, Resident

EMBEDDED = "llamacpp"
KEEP_UP_S = 10.0


class EngineHost:
    """What the engines get of us."""

    def __init__(self, home: Path, library: Library, telemetry: Telemetry) -> None:
        self.home = home
        self.default_keep_alive_s = 300.0
        self.max_loaded = 0
        self._library = library
        self._telemetry = telemetry

    def lookup(self, model: str) -> ModelSpec:
        return self._library.lookup(model)

    def notify(self, notice: Notice) -> None:
        self._telemetry.notify(notice)

    def evictions(self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int) -> Sequence[str]:
        return residency.evictions(
            resident, need_bytes=need_bytes, budget_bytes=budget_bytes, max_loaded=self.max_loaded
        )


class Foresight:
    """What the library tells of a large model before it downloads it: how fast it will be on this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def wanted(self, size_bytes: int) -> bool:
        from drivetrain.engines.expertstream import outlook  # only a large model needs it

        return not outlook.fits(size_bytes)

    def told(self, headers: Sequence[Gguf]) -> str | None:
        from drivetrain.engines.expertstream import outlook, predict

        known = outlook.measured(self._home)
        prediction = outlook.of_headers(headers, known) if known and predict.shape(headers) else None
        return predict.told(prediction) if prediction else None


class Runtime:
    """A Drivetrain without its sockets. `assemble` makes one and runs what it does in the background."""

    def __init__(self, home: Path, config: Config, logs: Logs) -> None:
        self.store = Store.open(config.store.url, home)
        self.ledger = Ledger(self.store, home / "state")
        self.telemetry = Telemetry(home, logs, account=self.ledger.append)
        self.library = Library(home, config.downloads, self.telemetry.notify, outlook=Foresight(home))
        self._host = EngineHost(home, self.library, self.telemetry)
        self.gateway = Gateway(_with_residency(config), self.library, self._host, self.telemetry)
        self.hearts = Heartbeat()
        self.inference = Inference(self.gateway, self.hearts)
        self.operations = Operations(self.gateway, self.inference, self.telemetry)
        models = Models(self.gateway, self.library)
        self.routes = routes(self.inference, models, Ollama(self.inference, self.library), self.operations)
        self.app = App(config.server, self.routes)
        self._adopt(config)

    async def configure(self, config: Config) -> None:
        """Put a new configuration in force; requests under way keep the old one.

        Raises `BadRequest` and changes nothing if an engine cannot be opened.
        """
        gone = self.gateway.configure(_with_residency(config))
        self._adopt(config)
        self.app.configure(config.server)
        await retire(gone)

    def drain(self) -> None:
        """New requests are refused from now on; listeners of events are sent home."""
        self.inference.draining = True
        self.operations.drain()

    def _adopt(self, config: Config) -> None:
        self._host.default_keep_alive_s = config.residency.keep_alive_s
        self._host.max_loaded = config.residency.max_loaded
        self.telemetry.logs.set_level(config.logging.level)
        self.telemetry.logs.set_format(config.logging.format)
        self.know()

    def know(self) -> None:
        """Names that may label a metric."""
        models = [model.id for model in self.gateway.catalog.models()]
        self.telemetry.know(models=models, engines=self.gateway.pool.members)

    async def keep_up(self) -> None:
        """Models come and go, also by hand: hash new ones, clear leftovers away, and know their names."""
        while True:
            await self.library.settle()
            self.know()
            await asyncio.sleep(KEEP_UP_S)


@asynccontextmanager
async def assemble(
    home: Path, config: Config, logs: Logs, *, owner: Path | None = None
) -> AsyncGenerator[Runtime, None]:
    """A runtime at work: probing engines, writing the ledger. Leaving stops the engines and flushes the ledger.

    `owner`: the Unix socket of the process to which this one, a worker, relays what is not its own.
    """
    runtime = Runtime(home, config, logs)
    runtime.ledger.start(lambda rows, backlog: runtime.telemetry.drained(rows, backlog, runtime.ledger.lost))
    relay = Relay(owner, runtime.gateway) if owner else None
    if relay is not None:
        runtime.app.routes = relay.table(runtime.routes, INFERENCE)
    work = (runtime.gateway.pool.run, runtime.hearts.run, runtime.keep_up)
    try:
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(run()) for run in work]
            try:
                yield runtime
            finally:
                for task in background:
                    task.cancel()
    finally:
        if relay is not None:
            await relay.aclose()
        await runtime.gateway.pool.aclose()
        await runtime.ledger.close()
        runtime.telemetry.close()


def _with_residency(config: Config) -> Config:
    """The embedded engine gets the residency section as its options, unless it has its own."""
    section = config.residency
    options = {"memory_bytes": section.memory_bytes, "load_timeout_s": section.load_timeout_s}
    engines = {
        name: replace(engine, options={**options, **engine.options}) if engine.kind == EMBEDDED else engine
        for name, engine in config.engines.items()
    }
    return replace(config, engines=engines)
