"""The worker processes of `serve --workers N`: started, restarted, told to reload, stopped. Run by their owner."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

RESTART_S = (0.5, 10.0)  # pause before a worker that ended is started again: at first, and at most
log = logging.getLogger("drivetrain.crew")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told on its command line."""

    home: str
    owner: str  # path of the owner's Unix socket
    sockets: tuple[int, ...]  # file descriptors to listen on
    flags: Mapping[str, Any]


class Crew:
    """`run` keeps `size` workers alive until it is cancelled, then stops them and waits."""

    def __init__(self, size: int, orders: Orders) -> None:
        self._size = size
        self._orders = orders
        self._processes: set[asyncio.subprocess.Process] = set()
        self._stopping = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._size):
                group.create_task(self._keep(number))

    async def _keep(self, number: int) -> None:
        pause_s = RESTART_S[0]
        while not self._stopping:
            began = asyncio.get_running_loop().time()
            status = await self._once()
            if self._stopping:
                return
            lasted_s = asyncio.get_running_loop().time() - began
            pause_s = RESTART_S[0] if lasted_s > RESTART_S[1] else min(pause_s * 2, RESTART_S[1])
            log.warning("worker %d ended with status %d and is started again", number, status)
            await asyncio.sleep(pause_s)

    async def _once(self) -> int:
        """One life of a worker. It reads its standard input: when that ends, its owner is gone, and it goes too."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "drivetrain.cli.worker",
            msgspec.json.encode(self._orders).decode(),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=self._orders.sockets,
        )
        self._processes.add(process)
        try:
            return await process.wait()
        finally:
            self._processes.discard(process)

    def reload(self) -> None:
        self._signal(signal.SIGHUP)

    def stop(self) -> None:
        """No worker is started any more; those that run finish their requests."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def orders(home: Path, owner: Path, sockets: Sequence[socket.socket], flags: Mapping[str, Any]) -> Orders:
    return Orders(home=str(home), owner=str(owner), sockets=tuple(bound.fileno() for bound in sockets), flags=flags)
