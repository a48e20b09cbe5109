"""The composition root: config → store → telemetry → library → engines → gateway → server. Only it knows them all."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread
from msgspec.structs import replace

from drivetrain import residency
from drivetrain.background import Work, lasting
from drivetrain.cli.steering import Steering, moves
from drivetrain.config import Config
from drivetrain.errors import BadRequest, StoreAway
from drivetrain.gateway import Gateway
from drivetrain.gateway.hearsay import Hearsay
from drivetrain.gateway.pool import retire
from drivetrain.gguf import Gguf
from drivetrain.governance import Price, Rule
from drivetrain.library import Library
from drivetrain.policies.prices import Table
from drivetrain.quota import Quota
from drivetrain.quota.memory import MemoryQuota
from drivetrain.server import App
from drivetrain.server.admin import Admin
from drivetrain.server.admin.configuration import PutBack, no_file
from drivetrain.server.admin.reports import Reports
from drivetrain.server.admin.rollouts import Control
from drivetrain.server.answer import Heartbeat
from drivetrain.server.auth import Auth, auth_wanted
from drivetrain.server.bodies import Bodies
from drivetrain.server.inference import Inference
from drivetrain.server.media import Media
from drivetrain.server.models import Models
from drivetrain.server.ollama import Ollama
from drivetrain.server.operations import Operations
from drivetrain.server.relay import Relay
from drivetrain.server.routes import INFERENCE, routes
from drivetrain.store import Ledger, Store, pepper
from drivetrain.store.directory import Directory
from drivetrain.telemetry import Logs, Telemetry
from drivetrain.types import ModelSpec, Notice, Resident

if TYPE_CHECKING:
    from drivetrain.quota.board import Board
    from drivetrain.store.administration import Administration
    from drivetrain.store.prompts import Prompts
    from drivetrain.store.rollouts import Rollouts

EMBEDDED = "llamacpp"
KEEP_UP_S = 10.0
LEAST_BOARD_S = 0.5  # for an answer that no request waits for
SWEEP_S = 600.0  # between two looks for what has been kept long enough


class EngineHost:
    """What the engines get of us."""

    def __init__(self, home: Path, library: Library, telemetry: Telemetry) -> None:
        self.home = home
        self.default_keep_alive_s = 300.0
        self.terms = residency.Terms()
        self.pins: Callable[[str], bool] = lambda model: False
        self._library = library
        self._telemetry = telemetry

    def lookup(self, model: str) -> ModelSpec:
        return self._library.lookup(model)

    def notify(self, notice: Notice) -> None:
        self._telemetry.notify(notice)

    def pinned(self, model: str) -> bool:
        return self.pins(model)

    def evictions(
        self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> Sequence[str]:
        return residency.evictions(
            resident,
            need_bytes=need_bytes,
            budget_bytes=budget_bytes,
            terms=self.terms,
            pinned=self.pinned,
            now_s=time.monotonic(),
            waited_s=waited_s,
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
        self.store = Store.open(config.store.url, home, patient=True)
        self.ledger = Ledger(self.store, home / "state")
        self.pepper = pepper.read(config.keys.pepper, home / "state")
        self.directory = Directory(self.store, self.pepper)
        self._table: tuple[Sequence[Price], Table] = ((), Table())
        self._told = self.directory.plan  # the plan whose rollouts listeners know of
        self.quota = _quota(config, self.store)
        self.telemetry = Telemetry(home, logs, account=self.ledger.append, keep=self.ledger.keep)
        self.library = Library(home, config.downloads, self.telemetry.notify, outlook=Foresight(home))
        self._host = EngineHost(home, self.library, self.telemetry)
        self.gateway = Gateway(
            _with_residency(config),
            self.library,
            self._host,
            self.telemetry,
            self.quota,
            self._prices,
            lambda: self.directory.plan,
        )
        self.steering = Steering(self.store, lambda: self.directory.plan, lambda: self.gateway.config.rollouts)
        self.put_back: PutBack = no_file  # for whoever runs it on a file
        self._host.pins = self.gateway.residence.pinned
        self.directory.on_change = self._heed_drains
        self.board = _board(config)
        if self.board is not None:
            self.gateway.pool.hearsay = Hearsay(self.board)
        self.hearts = Heartbeat()
        self.inference = Inference(self.gateway, self.hearts, Bodies(self.ledger.keep, logs.redactor.text))
        self.operations = Operations(self.gateway, self.inference, self.telemetry, self._troubles)
        self.media = Media(config.server)
        self.routes = routes(
            self.inference,
            Models(self.gateway, self.library),
            Ollama(self.inference, self.library),
            self.operations,
            self.media,
            self._admin(),
        )
        self.app = App(config.server, self.routes, self._auth(config), self.telemetry.key_refused)
        self._adopt(config)

    async def configure(self, config: Config) -> None:
        """Put a new configuration in force; requests under way keep the old one.

        Raises `BadRequest` and changes nothing if an engine cannot be opened, or tokens cannot be verified.
        """
        auth = self._auth(config)
        gone = self.gateway.configure(_with_residency(config))
        self._adopt(config)
        self.app.configure(config.server)
        self.app.auth = auth
        self.media.configure(config.server)
        await retire(gone)

    def _admin(self) -> Admin:
        reports = Reports(
            self._administration,
            self.store,
            lambda: self.gateway.config,
            self.gateway,
            self._spent,
            lambda wish: self.put_back(wish),
        )
        return Admin(self._administration, lambda: self.gateway.config, reports, self._control())

    def _control(self) -> Control:
        return Control(
            self._administration,
            self._rollouts,
            self._prompts,
            engines=lambda: self.gateway.config.engines,
            named=lambda model: self.gateway.catalog.resolve(model).name,
        )

    async def _spent(self) -> Mapping[str, int]:
        """What limits and budgets have used, by the id of each rule."""
        bound = {**self.directory.rules(), **self.gateway.rules()}
        return await self.quota.spent(tuple(bound.values()))

    def _administration(self) -> "Administration":
        """Made when it is first needed: it brings SQLAlchemy."""
        from drivetrain.store.administration import Administration

        return Administration(self.store, self.pepper)

    def _rollouts(self) -> "Rollouts":
        from drivetrain.store.rollouts import Rollouts

        return Rollouts(self.store)

    def _prompts(self) -> "Prompts":
        from drivetrain.store.prompts import Prompts

        return Prompts(self.store)

    def first_admin_key(self) -> str | None:
        """Its text, if nobody has one yet. Blocks."""
        return self._administration().first_admin_key()

    def _auth(self, config: Config) -> Auth | None:
        """`None` where nobody has to show a key. Raises `BadRequest` for tokens that cannot be verified here."""
        if not auth_wanted(config.server):
            return None
        tokens = None
        if config.oidc.issuer:
            try:
                from drivetrain.server.oidc import Oidc
            except ModuleNotFoundError as error:
                message = f"oidc needs {error.name}, which is not installed; pip install 'drivetrain[oidc]'"
                raise BadRequest(message, param="oidc.issuer") from error

            tokens = Oidc(config.oidc, self.directory.user_of)
        return Auth(self.directory, self.pepper.secret, tokens)

    def _troubles(self) -> Mapping[str, str]:
        """What is away though requests are answered without it."""
        found = {}
        if self.directory.away or self.ledger.away:
            found["store"] = "keys that are not known cannot be looked up, rows wait in the journal"
        if self.quota.away:
            found["shared"] = "limits and budgets are counted here alone, as `on_loss` of each says"
        return found

    async def watch(self) -> None:
        """Show in the metrics what is away; delete what was kept long enough."""
        sweep_s = 0.0
        while True:
            self.telemetry.store_away(away=self.directory.away or self.ledger.away)
            self.telemetry.shared_state_away(away=self.quota.away)
            if time.monotonic() >= sweep_s:  # also what was kept under policies that do not say so any more
                sweep_s = time.monotonic() + SWEEP_S
                with suppress(StoreAway):
                    await to_thread.run_sync(self._sweep, time.time())
            await asyncio.sleep(1.0)

    def _sweep(self, now_s: float) -> None:
        self.store.sweep_bodies(now_s)
        self.store.sweep_comparisons(now_s - self.gateway.config.rollouts.keep_comparisons_s)

    def _prices(self) -> Table:
        """The price table in force; made anew when the store's has changed."""
        known = self.directory.prices
        if self._table[0] is not known:
            self._table = (known, Table(known))
        return self._table[1]

    def tell_moves(self) -> None:
        """From now on, listeners hear of rollouts that move."""
        self._told = self.directory.plan
        self.directory.on_change = self._tell_moves

    def _heed_drains(self) -> None:
        self.gateway.pool.drain(self.directory.drained)

    def _tell_moves(self) -> None:
        self._heed_drains()
        was, self._told = self._told, self.directory.plan
        for notice in moves(was, self._told) if self._told is not was else ():
            self.telemetry.notify(notice)

    def leave(self) -> None:
        """New requests are still taken, but they are to go elsewhere."""
        self.inference.leaving = True
        self.app.leaving = True

    def drain(self) -> None:
        """New requests are refused from now on, but for the few that still come although notice was given; listeners of
        events are sent home."""
        self.inference.draining = not self.inference.leaving
        self.operations.drain()

    def _adopt(self, config: Config) -> None:
        self._host.default_keep_alive_s = config.residency.keep_alive_s
        section = config.residency
        self._host.terms = residency.Terms(
            max_loaded=section.max_loaded, least_resident_s=section.least_resident_s, patience_s=section.patience_s
        )
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


def _beside(runtime: Runtime, *, alone: bool) -> Iterator[tuple[str, Work]]:
    """What goes on beside the requests, each by its name in the log. `alone`: there is no owner who does some of it."""
    if runtime.board is not None:
        yield "the board", runtime.board.run
    yield "probes of engines", runtime.gateway.pool.run
    yield "residency", runtime.gateway.residence.run
    yield "copies of requests", runtime.gateway.shadows.run
    yield "signs of life", runtime.hearts.run
    yield "the library", runtime.keep_up
    yield "the directory", runtime.directory.run
    yield "limits and budgets", runtime.quota.run
    yield "the watch", runtime.watch
    if alone:
        yield "rollouts", runtime.steering.run


@asynccontextmanager
async def assemble(
    home: Path, config: Config, logs: Logs, *, owner: Path | None = None
) -> AsyncGenerator[Runtime, None]:
    """A runtime at work: probing engines, writing the ledger. Leaving stops the engines and flushes the ledger.

    `owner`: the Unix socket of the process to which this one, a worker, relays what is not its own.
    """
    runtime = Runtime(home, config, logs)
    runtime.ledger.start(lambda rows, backlog: runtime.telemetry.drained(rows, backlog, runtime.ledger.lost))
    relay = Relay(owner, runtime.gateway, counts=config.shared.url is not None) if owner else None
    if relay is not None:
        runtime.gateway.residence.embedded = False  # the owner has that one
        runtime.app.routes = relay.table(runtime.routes, INFERENCE)
    try:
        await runtime.gateway.pool.seek()
        await runtime.directory.refresh()  # prices, rollouts, and the keys that are used
        if owner is None:
            runtime.tell_moves()
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(lasting(name, run)) for name, run in _beside(runtime, alone=owner is None)]
            try:
                yield runtime
            finally:
                await runtime.gateway.cut()  # while there is a quota to settle with
                for task in background:
                    task.cancel()
    finally:
        if relay is not None:
            await relay.aclose()
        await runtime.gateway.aclose()
        await runtime.ledger.close()
        runtime.store.close()
        runtime.telemetry.close()


def _quota(config: Config, store: Store) -> Quota:
    """Counts in this process, or with others where the configuration names a place for that."""

    async def seed(rule: Rule, from_s: float, until_s: float) -> int:
        return await to_thread.run_sync(store.spent, rule, from_s, until_s)

    if config.shared.url is None:
        return MemoryQuota(seed=seed)
    from drivetrain.quota.redis import RedisQuota  # only where there is one

    shared = config.shared
    if shared.mode == "exact":
        return RedisQuota(config.shared.url, deadline_s=shared.deadline_s, lease_s=shared.lease_s, seed=seed)
    from drivetrain.quota.leased import opened

    percent, deadline_s, lease_s = shared.lease_percent, shared.deadline_s, shared.lease_s
    return opened(config.shared.url, percent=percent, deadline_s=deadline_s, lease_s=lease_s, seed=seed)


def _board(config: Config) -> "Board | None":
    """Where replicas tell each other how engines are, if there is such a place."""
    if config.shared.url is None:
        return None
    from drivetrain.quota.board import Board  # only where there is one

    return Board(config.shared.url, deadline_s=max(config.shared.deadline_s, LEAST_BOARD_S))


def _with_residency(config: Config) -> Config:
    """The embedded engine gets the residency section as its options, unless it has its own."""
    section = config.residency
    options = {"memory_bytes": section.memory_bytes, "load_timeout_s": section.load_timeout_s}
    engines = {
        name: replace(engine, options={**options, **engine.options}) if engine.kind == EMBEDDED else engine
        for name, engine in config.engines.items()
    }
    return replace(config, engines=engines)
