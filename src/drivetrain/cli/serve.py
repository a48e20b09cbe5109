"""`drivetrain serve`: listens until SIGTERM, then lets running requests finish; takes a new configuration on SIGHUP."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from msgspec.structs import replace

from drivetrain import config as configuration
from drivetrain.background import lasting
from drivetrain.cli import earlier
from drivetrain.cli.child import leashed
from drivetrain.cli.command import Call, Misused, command
from drivetrain.cli.compose import Runtime, assemble
from drivetrain.cli.crew import Crew, orders
from drivetrain.cli.exports import Exporter, exporting
from drivetrain.cli.exports import secrets as sink_secrets
from drivetrain.config import Config, ConfigError
from drivetrain.engines import kinds, options_of
from drivetrain.errors import BadRequest, DrivetrainError, StoreAway
from drivetrain.server.admin.configuration import Return
from drivetrain.server.auth import open_door
from drivetrain.server.listen import Listener, tcp_socket, unix_socket, url_of
from drivetrain.sinks.kinds import check as check_sinks
from drivetrain.store import ConfigRevision
from drivetrain.telemetry import Logs, prepare
from drivetrain.types import Notice

OLLAMA_PORT = 11434
ADDRESS = "server.json"  # in the home's state folder while a server runs: {"pid", "url"}
OWNER = "owner.sock"  # there too, with several workers: where those reach the owner
# What a new configuration cannot change while the server runs.
AT_START = (
    *("server.host", "server.port", "server.workers", "server.drop_in"),
    *("server.notice_s", "server.drain_s"),
    *("store", "shared", "keys.pepper", "downloads"),
)
LOOK_S = 0.5  # between two looks whether the store is back
COLLECT_AFTER = 20_000  # new containers, instead of 700
FIRST_KEY = """
The first API key, for administrators. It is shown this once; keep it:

    {key}

'drivetrain keys create --name NAME' makes further ones.
"""
log = logging.getLogger("drivetrain.serve")


@command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: server.host, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one. [default: 11435]")
@click.option("--workers", type=click.IntRange(1), help="Processes that answer requests. [default: server.workers, 1]")
@click.option("--drop-in", is_flag=True, default=None, help="Also listen where Ollama would: 127.0.0.1:11434.")
def serve(call: Call, host: str | None, port: int | None, workers: int | None, drop_in: bool | None) -> None:
    """Start the server."""
    flags = {"server.host": host, "server.port": port, "server.workers": workers, "server.drop_in": drop_in}
    uvloop.run(Server(call.home, call.environ, flags).run())


def settle_down() -> None:
    """What start-up made stays for good: the collector need not look at it again, nor so often at what is new.

    Every asynchronous generator of ours is closed by who iterates it: the loop need not know of each one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
    sys.set_asyncgen_hooks(firstiter=None)


class Server:
    """One serving process: its configuration, sockets and signals."""

    def __init__(self, home: Path, environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
        self._home = home
        self._environ = environ
        self._flags = flags
        self._logs = Logs()
        self._logs.install()
        self._config = self._at_start = self._load()
        self._exports: Exporter | None = None
        self._opened = False  # it was said who may come in
        self._changing = asyncio.Lock()  # one new configuration at a time

    def _resolved(self, path: Path | None) -> configuration.Resolved:
        return configuration.resolve(
            path, self._environ, flags=self._flags, kinds=frozenset(kinds()), options_of=options_of
        )

    def _load(self) -> Config:
        resolved = self._resolved(configuration.find(self._home))
        self._logs.know_secrets(secrets_of(resolved.config))
        for warning in resolved.warnings:
            log.warning("%s", warning)
        return resolved.config

    def _load_again(self) -> Config:
        """What stays as it was at the start is told. Whether keys are asked for depends on the address that is open."""
        fresh = self._load()
        held = [name for name in AT_START if attrgetter(name)(fresh) != attrgetter(name)(self._at_start)]
        if held:
            log.warning("a change of %s takes a restart", ", ".join(held))
        return replace(fresh, server=replace(fresh.server, host=self._at_start.server.host))

    async def _open_up(self, runtime: Runtime) -> None:
        """Say who may come in: nobody without a key, whose first one is shown once, or everybody."""
        self._opened = True
        if warning := open_door(self._config.server):
            log.warning("%s", warning)
            return
        try:
            key = await asyncio.to_thread(runtime.first_admin_key)
        except StoreAway as error:
            log.warning("nobody can come in before the store can be asked: %s", error)
            self._opened = False
            return
        if key is not None:
            click.echo(FIRST_KEY.format(key=key), err=True)

    async def _make_up(self, runtime: Runtime) -> None:
        """What a start does with the store, as soon as it can be asked."""
        while True:
            if not runtime.directory.away:
                if not self._opened:
                    await self._open_up(runtime)
                if self._opened:
                    break
            await asyncio.sleep(LOOK_S)
        await self._keep_config(runtime, "start")

    async def _keep_config(self, runtime: Runtime, actor: str) -> None:
        """The file as it is in force now, as a numbered revision."""
        path = configuration.find(self._home)
        if path is None:
            return
        try:
            await asyncio.to_thread(runtime.store.keep_config, path.read_text("utf-8"), actor=actor, at_s=time.time())
        except (DrivetrainError, OSError) as error:
            log.warning("this configuration is in force, and is not kept as a revision: %s", error)

    async def run(self) -> None:
        """The whole server: alone, or as the owner of workers."""
        (self._home / "state").mkdir(parents=True, exist_ok=True)
        prepare(self._home)
        server = self._config.server
        with ExitStack() as stack:
            sockets = [stack.enter_context(tcp_socket(server.host, server.port, advice="choose another with --port"))]
            if server.drop_in:
                sockets.append(
                    stack.enter_context(
                        tcp_socket("127.0.0.1", OLLAMA_PORT, advice="stop Ollama, or do without --drop-in")
                    )
                )
            async with (
                exporting(self._home, self._config) as self._exports,  # outside: the ledger's last rows go out too
                assemble(self._home, self._config, self._logs) as runtime,
            ):
                await self._open_up(runtime)
                if server.workers == 1:
                    await self._serve(runtime, sockets, started=lambda: self._publish(url_of(sockets[0])))
                else:
                    await self._own(runtime, sockets)

    async def _own(self, runtime: Runtime, sockets: Sequence[socket.socket]) -> None:
        """Serve the workers, who serve the callers. They stop first."""
        path = self._home / "state" / OWNER
        flags = {**self._flags, "server.host": self._config.server.host}  # of the sockets, whatever the file says later
        crew = Crew(self._config.server.workers, orders(self._home, path, sockets, flags))
        with unix_socket(path) as bound:
            async with asyncio.TaskGroup() as group:
                working = asyncio.Event()
                group.create_task(self._after(working, crew.run))
                await self._serve(runtime, [bound], started=lambda: self._open(working, sockets), crew=crew)

    async def _after(self, working: asyncio.Event, run: Callable[[], Any]) -> None:
        await working.wait()
        await run()

    def _open(self, working: asyncio.Event, sockets: Sequence[socket.socket]) -> None:
        working.set()
        self._publish(url_of(sockets[0]))

    async def work(self, sockets: Sequence[socket.socket], owner: Path) -> None:
        """One worker: as `run`, on sockets that are open already, until its owner says so or is gone."""
        async with assemble(self._home, self._config, self._logs, owner=owner) as runtime:
            await self._serve(runtime, sockets, started=lambda: None, leash=True)

    async def _serve(
        self,
        runtime: Runtime,
        sockets: Sequence[socket.socket],
        *,
        started: Callable[[], None],
        crew: Crew | None = None,
        leash: bool = False,
    ) -> None:
        settle_down()
        listener = Listener(runtime.app, self._config.server, started=started, closing=runtime.drain)
        loop = asyncio.get_running_loop()
        stop = _Stop(runtime, listener, crew, self._config.server.notice_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        if leash:
            leashed(stop)
        reload = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        heed = partial(self._look_after_config, reload, runtime, crew, leash=leash)
        work = [loop.create_task(lasting("the configuration", heed))]
        if not leash:
            runtime.put_back = partial(self._put_back, runtime, crew)
            if runtime.directory.away or not self._opened:
                make_up = partial(self._make_up, runtime)
                work.append(loop.create_task(lasting("what waits for the store", make_up)))
        try:
            await listener.serve(sockets=list(sockets))
        finally:
            for task in work:
                task.cancel()
            self._withdraw()

    def _publish(self, url: str) -> None:
        address = self._home / "state" / ADDRESS
        fresh = address.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode({"pid": os.getpid(), "url": url}))
        fresh.replace(address)
        log.info("listening on %s", url, extra={"home": str(self._home)})

    def _withdraw(self) -> None:
        address = self._home / "state" / ADDRESS
        try:
            if msgspec.json.decode(address.read_bytes())["pid"] == os.getpid():
                address.unlink()
        except (OSError, msgspec.DecodeError, KeyError):
            return  # another server's, or gone already

    async def _look_after_config(
        self, reload: asyncio.Event, runtime: Runtime, crew: Crew | None, *, leash: bool
    ) -> None:
        """Keep the configuration as a revision, now and whenever a new one was put in force."""
        if not leash and not runtime.directory.away:
            await self._keep_config(runtime, "start")
        while True:
            await reload.wait()
            reload.clear()
            async with self._changing:
                with suppress(DrivetrainError, Misused):  # which was told
                    await self._take(runtime, crew, None if leash else "reload")

    async def _take(self, runtime: Runtime, crew: Crew | None, actor: str | None) -> None:
        """Put in force what stands in the file. Raises what is wrong with it, and the old configuration stays.

        `actor`: who wants it, for the revision; `None`: it is not for this process to keep one.
        """
        try:
            fresh = self._load_again()
            check_sinks(fresh.sinks)
            await runtime.configure(fresh)
            if self._exports is not None:
                self._exports.configure(fresh)
        except (DrivetrainError, Misused) as error:
            log.error("the new configuration is refused, the old one stays: %s", error)
            runtime.telemetry.notify(Notice(name="config.refused", error=str(error)))
            raise
        was, self._config = self._config, fresh
        log.info("a new configuration is in force")
        if actor is not None:
            await self._keep_config(runtime, actor)
            if fresh.server.auth != was.server.auth:
                await self._open_up(runtime)
        runtime.telemetry.notify(Notice(name="config.updated"))
        if crew is not None:
            crew.reload()

    async def _put_back(self, runtime: Runtime, crew: Crew | None, wish: Return) -> ConfigRevision:
        """An earlier configuration in force again. Raises `NotFound`, `Conflict` and `BadRequest`, and all stays."""
        async with self._changing:
            wanted = await asyncio.to_thread(earlier.wanted, runtime.store, wish.revision, wish.newest)
            work = partial(earlier.write, runtime.store, self._home, wanted, check=self._resolved, actor=wish.actor)
            try:
                before = await asyncio.to_thread(work)
                try:
                    await self._take(runtime, crew, f"{wish.actor}, back to {wish.revision}")
                except (DrivetrainError, Misused):
                    await asyncio.to_thread(earlier.restore, self._home, before)
                    raise
            except (ConfigError, BadRequest, Misused) as error:
                raise BadRequest(f"revision {wish.revision} cannot be put in force: {error}") from error
            by = {"actor": wish.actor, "request_id": wish.request_id}
            return await asyncio.to_thread(partial(earlier.sign, runtime.store, wanted, before, **by))


class _Stop:
    """Ends a server: it is not ready any more, then it takes no new requests, the running ones finish. Called a second
    time, it does not wait for others to take notice; a third time, it cuts requests off."""

    def __init__(self, runtime: Runtime, listener: Listener, crew: Crew | None, notice_s: float) -> None:
        self._runtime = runtime
        self._listener = listener
        self._crew = crew
        self._notice_s = notice_s
        self._later: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        notice_s, self._notice_s = self._notice_s, 0.0
        if notice_s:
            self._runtime.leave()
            log.info("stopping in %g s; requests are to go elsewhere", notice_s)
            self._later = asyncio.get_running_loop().call_later(notice_s, self._end)
        if self._crew is not None:
            self._crew.stop()
        if not notice_s:
            self._end()

    def _end(self) -> None:
        if self._later is not None:
            self._later.cancel()
        log.info("stopping; running requests may finish")
        self._listener.stop()


def secrets_of(config: Config) -> Iterator[str]:
    """What no log line may show."""
    yield from (engine.api_key for engine in config.engines.values() if engine.api_key)
    yield from sink_secrets(config.sinks)
    if config.keys.pepper:
        yield config.keys.pepper
