"""One piece of work that several callers watch: it runs once, for as long as somebody watches.

Each watcher sees every step and the newest progress of each; a slow one misses intermediate numbers, never a step.
The last to leave stops the work and waits until it has stopped.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio

from drivetrain.library.status import Status

Report = Callable[[Status], None]


class _Watcher:
    def __init__(self, seen: dict[tuple[str, str | None], Status]) -> None:
        self.pending = dict(seen)
        self.woken = anyio.Event()

    def tell(self, key: tuple[str, str | None], status: Status) -> None:
        self.pending[key] = status  # newer progress takes the place of older
        self.woken.set()


class Flight:
    """`work` gets a function to report with, and is started by the first watcher."""

    def __init__(self, work: Callable[[Report], Awaitable[None]]) -> None:
        self._work = work
        self._seen: dict[tuple[str, str | None], Status] = {}
        self._watchers: set[_Watcher] = set()
        # The one task that outlives its creator: it belongs to all the watchers, and the last of them ends it.
        self._task: asyncio.Task[None] | None = None
        self.over = False

    async def watch(self) -> AsyncGenerator[Status, None]:
        """What happens, until it is over. Raises what the work raised."""
        watcher = _Watcher(self._seen)
        self._watchers.add(watcher)
        task = self._task = self._task or asyncio.create_task(self._run())
        try:
            while watcher.pending or not self.over:
                while watcher.pending:
                    yield watcher.pending.pop(next(iter(watcher.pending)))
                if not self.over:
                    await watcher.woken.wait()
                    watcher.woken = anyio.Event()
            await asyncio.wait([task])
            task.result()
        finally:
            self._watchers.discard(watcher)
            if not self._watchers:
                await self._stop(task)

    async def _run(self) -> None:
        try:
            await self._work(self._report)
        finally:
            self._end()

    def _report(self, status: Status) -> None:
        key = (status.status, status.digest)
        self._seen[key] = status
        for watcher in self._watchers:
            watcher.tell(key, status)

    def _end(self) -> None:
        self.over = True
        for watcher in self._watchers:
            watcher.woken.set()

    async def _stop(self, task: "asyncio.Task[None]") -> None:
        self._end()
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
