"""Answers that are read to their end although the caller has gone, where a policy wants the true usage."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from drivetrain.errors import DrivetrainError
from drivetrain.gateway.receipt import Receipt
from drivetrain.types import Event

AHEAD = 8  # batches that may wait for a slow reader
Batches = AsyncGenerator[Sequence[Event], None]


class Drains:
    """Owns the tasks that read. `aclose` cuts off those that still do."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def relay(self, batches: Batches, receipt: Receipt) -> Batches:
        """`batches` as they come. When this generator is closed, the rest of them is read all the same."""
        waiting: asyncio.Queue[Sequence[Event] | None] = asyncio.Queue(AHEAD)
        task = asyncio.get_running_loop().create_task(_read(batches, waiting, receipt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ended = False
        try:
            while (events := await waiting.get()) is not None:
                yield events
            ended = True
        finally:
            if not ended:
                receipt.left = True
                while not waiting.empty():  # a reader that waits for room goes on
                    waiting.get_nowait()
                if not receipt.attempts:  # no engine has been asked yet, and none has to be
                    task.cancel()
        await task

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read(batches: Batches, waiting: "asyncio.Queue[Sequence[Event] | None]", receipt: Receipt) -> None:
    try:
        async with aclosing(batches):
            async for events in batches:
                if not receipt.left:
                    await waiting.put(events)
    except DrivetrainError:
        if not receipt.left:  # the row tells what became of it
            raise
    except asyncio.CancelledError:
        while not waiting.empty():  # a reader that takes nothing is not waited for
            waiting.get_nowait()
        raise
    finally:
        if not receipt.left:
            await waiting.put(None)
