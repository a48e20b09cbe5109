"""The owner's side of the sinks: their process is started, restarted, given a new configuration, stopped."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drivetrain.config import Config
from drivetrain.sinks import kinds

if TYPE_CHECKING:
    from drivetrain.config.schema import Sink

RESTART_S = (0.5, 30.0)  # pause before a process that ended is started again: at first, and at most
STOP_S = 10.0  # for the last rows
log = logging.getLogger("drivetrain.exports")


class Exporter:
    """Keeps one process at work for all sinks of the configuration, or none if there are none."""

    def __init__(self, home: Path, config: Config) -> None:
        """Raises `BadRequest` if a sink needs what is not installed."""
        kinds.check(config.sinks)
        self._home = home
        self._config = config
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    def configure(self, config: Config) -> None:
        """Put a new configuration in force. Raises `BadRequest`, and changes nothing, as the constructor does."""
        kinds.check(config.sinks)
        changed = _orders(self._home, config) != _orders(self._home, self._config)
        self._config = config
        if changed:
            self._changed.set()
            self._terminate()

    async def run(self) -> None:
        """Until `stop`."""
        pause_s = RESTART_S[0]
        while not self._stopping:
            self._changed.clear()
            if not self._config.sinks:
                await self._changed.wait()
                continue
            began = asyncio.get_running_loop().time()
            status = await self._once()
            if self._stopping:
                return
            if self._changed.is_set():
                continue
            lasted_s = asyncio.get_running_loop().time() - began
            pause_s = RESTART_S[0] if lasted_s > RESTART_S[1] else min(pause_s * 2, RESTART_S[1])
            log.warning("the process of the sinks ended with status %d and is started again", status)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause_s)

    def stop(self) -> None:
        """No process is started any more; the one that runs sends what is there, and ends."""
        self._stopping = True
        self._changed.set()
        self._terminate()

    async def _once(self) -> int:
        """One life of the process. Its orders hold secrets, and go where no list of processes shows them."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "drivetrain.cli.sinks", stdin=asyncio.subprocess.PIPE
        )
        self._process = process
        try:
            if process.stdin is not None:
                process.stdin.write(_orders(self._home, self._config) + b"\n")
            if self._changed.is_set():  # while it was being started
                self._terminate()
            return await process.wait()
        finally:
            self._process = None
            await _end(process)

    def _terminate(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()


@asynccontextmanager
async def exporting(home: Path, config: Config) -> AsyncGenerator[Exporter, None]:
    """Sinks at work, in a process of their own. Leaving sends what is in the store by then, for a moment, and ends it.

    Raises `BadRequest` if a sink needs what is not installed.
    """
    exporter = Exporter(home, config)
    running = asyncio.create_task(exporter.run())  # in no group: what the block raises is to leave it as it is
    try:
        yield exporter
    finally:
        exporter.stop()
        await asyncio.wait([running], timeout=STOP_S)
        running.cancel()
        await asyncio.wait([running])


def secrets(sinks: Mapping[str, "Sink"]) -> list[str]:
    """What of their configuration must not be logged."""
    told = [value for sink in sinks.values() for value in (sink.secret, *sink.headers.values())]
    return [value for value in told if value]


def _orders(home: Path, config: Config) -> bytes:
    told = {"home": str(home), "store": config.store.url, "sinks": config.sinks, "logging": config.logging}
    return msgspec.json.encode(told)


async def _end(process: asyncio.subprocess.Process) -> None:
    """A process that did not end when it was told to is killed: what it has begun is in its checkpoint."""
    if process.returncode is None:
        process.kill()
        await process.wait()
