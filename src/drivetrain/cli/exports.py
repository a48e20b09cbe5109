"""The owner's side of the sinks: their process is started, restarted, given a new configuration, stopped."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from drivetrain.background import lasting
from drivetrain.cli.child import Child
from drivetrain.config import Config
from drivetrain.sinks import kinds

if TYPE_CHECKING:
    from drivetrain.config.schema import Sink

PAUSE_S = 30.0  # at most, before a process that ended is started again
STOP_S = 10.0  # for the last rows


class Exporter:
    """Keeps one process at work for all sinks of the configuration, or none if there are none."""

    def __init__(self, home: Path, config: Config) -> None:
        """Raises `BadRequest` if a sink needs what is not installed."""
        kinds.check(config.sinks)
        self._home = home
        self._config = config
        self._child = Child("the process of the sinks", self._start, most_s=PAUSE_S)
        self.run = self._child.run  # until `stop`
        self.stop = self._child.stop  # what is there is sent

    def configure(self, config: Config) -> None:
        """Put a new configuration in force, whose sinks have what they need."""
        changed = _orders(self._home, config) != _orders(self._home, self._config)
        self._config = config
        if changed:
            self._child.renew()

    async def _start(self) -> asyncio.subprocess.Process | None:
        """Its orders hold secrets, and go where no list of processes shows them."""
        if not self._config.sinks:
            return None
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "drivetrain.cli.sinks", stdin=asyncio.subprocess.PIPE
        )
        if process.stdin is not None:
            process.stdin.write(_orders(self._home, self._config) + b"\n")
        return process

    def kill(self) -> None:
        """What it has begun is in its checkpoint."""
        self._child.signal(signal.SIGKILL)


@asynccontextmanager
async def exporting(home: Path, config: Config) -> AsyncGenerator[Exporter, None]:
    """Sinks at work, in a process of their own. Leaving sends what is in the store by then, for a moment, and ends it.

    Raises `BadRequest` if a sink needs what is not installed.
    """
    exporter = Exporter(home, config)
    running = asyncio.create_task(
        lasting("the keeper of the sinks", exporter.run)
    )  # in no group: what the block raises is to leave it as it is
    try:
        yield exporter
    finally:
        exporter.stop()
        await asyncio.wait([running], timeout=STOP_S)
        exporter.kill()
        await asyncio.wait([running])


def secrets(sinks: Mapping[str, "Sink"]) -> list[str]:
    """What of their configuration must not be logged."""
    told = [value for sink in sinks.values() for value in (sink.secret, *sink.headers.values())]
    return [value for value in told if value]


def _orders(home: Path, config: Config) -> bytes:
    told = {"home": str(home), "store": config.store.url, "sinks": config.sinks, "logging": config.logging}
    return msgspec.json.encode(told)
