"""A process of ours that is kept at work: started, started again when it ends, after growing pauses, told to stop.

It ends by itself when its owner is gone, who holds the other end of its standard input: see `leashed`.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from contextlib import suppress

LEAST_S = 0.5  # pause before a process that ended is started again, at first
log = logging.getLogger("drivetrain.child")


class Child:
    """`run` keeps one process at work until `stop`."""

    def __init__(self, name: str, start: Callable[[], Awaitable[Process | None]], *, most_s: float) -> None:
        """`start` makes a process, or tells that none is wanted before the next `renew`; `most_s` bounds the pauses."""
        self._name = name
        self._start = start
        self._most_s = most_s
        self._process: Process | None = None
        self._told = asyncio.Event()  # to end: for good, or for a new one
        self._stopping = False

    async def run(self) -> None:
        """Returns when the last process has ended."""
        pause_s = LEAST_S
        loop = asyncio.get_running_loop()
        while not self._stopping:
            self._told.clear()
            began_s = loop.time()
            end = await self._live()
            if self._told.is_set():
                continue
            pause_s = LEAST_S if loop.time() - began_s > self._most_s else min(pause_s * 2, self._most_s)
            log.warning("%s %s and is started again", self._name, end)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), pause_s)

    async def _live(self) -> str:
        """One life, and how it ended."""
        try:
            process = await self._start()
        except OSError as error:
            return f"could not be started ({error.strerror})"
        if process is None:
            await self._told.wait()
            return "is not wanted"
        self._process = process
        if self._told.is_set():  # while it was being started
            self.signal(signal.SIGTERM)
        status = await process.wait()
        self._process = None
        return f"ended with status {status}"

    def renew(self) -> None:
        """The process ends, and another is started at once."""
        self._told.set()
        self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """No process is started any more; the one that runs is told to end."""
        self._stopping = True
        self.renew()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def leashed(stop: Callable[[], None]) -> None:
    """Calls `stop` when the owner is gone: it holds the other end of our standard input, and writes nothing more."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(pipe, 1024):
            loop.remove_reader(pipe)
            stop()

    loop.add_reader(pipe, look)
