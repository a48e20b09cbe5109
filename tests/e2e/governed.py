"""A governed server in the test's own process, on a real port and a real store: keys, the admin API, an engine."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import msgspec

from drivetrain.config import Config
from drivetrain.config.schema import Engine, Keys, Route, Server, Target
from drivetrain.governance import SCOPES, Attempt, Key, Scope
from drivetrain.library import Library
from drivetrain.server import App
from drivetrain.server.admin import Admin
from drivetrain.server.admin.reports import Reports
from drivetrain.server.admin.rollouts import Control
from drivetrain.server.answer import Heartbeat
from drivetrain.server.auth import Auth, Tokens
from drivetrain.server.inference import Inference
from drivetrain.server.listen import Listener, tcp_socket
from drivetrain.server.media import Fetch, Media, Resolve
from drivetrain.server.models import Models
from drivetrain.server.ollama import Ollama
from drivetrain.server.operations import Operations
from drivetrain.server.protocol import Connection
from drivetrain.server.routes import routes
from drivetrain.store import Body, Store
from drivetrain.store.administration import Administration
from drivetrain.store.directory import Directory
from drivetrain.store.pepper import of as pepper_of
from drivetrain.store.prompts import Prompts
from drivetrain.store.rollouts import Rollouts
from tests.fakes.engine import ScriptedEngine, gateway_over

PEPPER = pepper_of(b"a pepper for tests")
BY = "test"
USUAL = Server()


class Governed:
    """The server. `office` is what administrators have; `client` speaks with a key, or without one."""

    def __init__(self, store: Store, office: Administration, directory: Directory, engine: ScriptedEngine) -> None:
        self.store = store
        self.office = office
        self.directory = directory
        self.engine = engine
        self.url = ""
        self.port = 0
        self.used: dict[str, int] = {}  # what /admin/v1/spent is to tell
        self.listener: Listener

    def key(self, *scopes: Scope, **fields: Any) -> tuple[Key, str]:
        name = f"key {len(self.office.list('key'))}"
        return self.office.create_key({"name": name, "scopes": scopes, **fields}, actor=BY)

    def secret(self, *scopes: Scope, **fields: Any) -> str:
        return self.key(*scopes, **fields)[1]

    def tenant(self, name: str) -> "Tenant":
        """An organisation with a team, a project and an administrator of its own."""
        org = self.office.create("org", {"name": name}, actor=BY)
        team = self.office.create("team", {"name": f"{name} team", "org": org.id}, actor=BY)
        project = self.office.create("project", {"name": f"{name} project", "team": team.id}, actor=BY)
        key, secret = self.key("admin", "inference", "usage", project=project.id)
        return Tenant(org=org.id, team=team.id, project=project.id, key=key.id, secret=secret)

    @asynccontextmanager
    async def client(self, secret: str | None = None) -> AsyncGenerator[httpx2.AsyncClient, None]:
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        async with httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30, trust_env=False) as client:
            yield client

    @asynccontextmanager
    async def root(self) -> AsyncGenerator[httpx2.AsyncClient, None]:
        """A client with a key of the default organisation that may do everything."""
        async with self.client(self.secret(*SCOPES)) as client:
            yield client

    async def says(self, *pieces: bytes) -> bytes:
        """Everything the server sends for these bytes until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.suppress(ConnectionError):  # it may have heard enough
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        return answer

    def connections(self) -> Sequence[Connection]:
        return [cast(Connection, connection) for connection in self.listener.server_state.connections]

    def record(self, *attempts: Attempt) -> None:
        """Rows of the ledger."""
        rows = self.store.rows()
        rows.insert(attempts)
        rows.close()

    def keep(self, *bodies: Body) -> None:
        """What was said in requests."""
        rows = self.store.rows()
        rows.keep(bodies)
        rows.close()

    async def spent(self) -> Mapping[str, int]:
        return self.used


class Tenant(msgspec.Struct, frozen=True):
    org: str
    team: str
    project: str
    key: str
    secret: str


@asynccontextmanager
async def governed(
    store: Store,
    home: Path,
    *,
    server: Server = USUAL,
    tokens: Tokens | None = None,
    auth: bool = True,
    models: Sequence[str] = ("chat",),
    resolve: Resolve | None = None,
    fetch: Fetch | None = None,
) -> AsyncGenerator[Governed, None]:
    office = Administration(store, PEPPER)
    directory = Directory(store, PEPPER)
    engine = ScriptedEngine("box")
    made = Governed(store, office, directory, engine)
    engines = {"box": Engine(kind="scripted")}
    config = Config(server=server, keys=Keys(pepper="not to be shown to anybody"), engines=engines)
    targets = {name: Route(targets=(Target(engine="box", model=f"{name}-model"),)) for name in models}
    gateway, notebook = gateway_over(engine, routes=targets)
    library = Library(home, config.downloads, notebook.notify)
    unused: Any = None
    inference = Inference(gateway, Heartbeat(), unused)
    table = routes(
        inference,
        Models(gateway, library),
        Ollama(inference, library),
        Operations(gateway, inference, unused),
        Media(server, resolve, fetch),
        Admin(
            lambda: office,
            lambda: config,
            Reports(lambda: office, store, lambda: config, gateway, made.spent),
            Control(
                lambda: office,
                lambda: Rollouts(store),
                lambda: Prompts(store),
                engines=lambda: gateway.pool.members,
                named=lambda model: gateway.catalog.resolve(model).name,
            ),
        ),
    )
    app = App(server, table, Auth(directory, PEPPER.secret, tokens) if auth else None)
    with tcp_socket("127.0.0.1", 0, advice="") as bound:
        made.port = bound.getsockname()[1]
        made.url = f"http://127.0.0.1:{made.port}"
        started = asyncio.Event()
        made.listener = listener = Listener(app, server, started=started.set)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(listener.serve(sockets=[bound]))
            looking = group.create_task(directory.run())
            await started.wait()
            try:
                yield made
            finally:
                looking.cancel()
                listener.stop()
                await serving
