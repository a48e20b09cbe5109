"""The worker processes of `serve --workers N`: started, restarted, told to reload, stopped. Run by their owner."""

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.background import lasting
from drivetrain.cli.child import Child

PAUSE_S = 10.0  # at most, before a worker that ended is started again


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told on its command line."""

    home: str
    owner: str  # path of the owner's Unix socket
    sockets: tuple[int, ...]  # file descriptors to listen on
    flags: Mapping[str, Any]


class Crew:
    """`run` keeps `size` workers alive until `stop`, and waits for them."""

    def __init__(self, size: int, orders: Orders) -> None:
        self._orders = orders
        self._workers = [Child(f"worker {number}", self._start, most_s=PAUSE_S) for number in range(size)]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, worker in enumerate(self._workers):
                group.create_task(lasting(f"the keeper of worker {number}", worker.run))

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "drivetrain.cli.worker",
            msgspec.json.encode(self._orders).decode(),
            stdin=asyncio.subprocess.PIPE,  # its leash
            pass_fds=self._orders.sockets,
        )

    def reload(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGHUP)

    def stop(self) -> None:
        """No worker is started any more; those that run finish their requests."""
        for worker in self._workers:
            worker.stop()


def orders(home: Path, owner: Path, sockets: Sequence[socket.socket], flags: Mapping[str, Any]) -> Orders:
    return Orders(home=str(home), owner=str(owner), sockets=tuple(bound.fileno() for bound in sockets), flags=flags)
