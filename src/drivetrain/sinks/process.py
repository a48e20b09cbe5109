"""All sinks of a server at work, in a process of their own: one of several replicas exports, the others stand by."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec
from anyio.to_thread import run_sync

from drivetrain.background import lasting
from drivetrain.config.schema import Logging, Sink
from drivetrain.errors import DrivetrainError
from drivetrain.sinks.export import Export, Standing
from drivetrain.sinks.kinds import target
from drivetrain.store import Store
from drivetrain.store.exporting import Lead, Rows

STAND_BY_S = 2.0  # between two looks whether the export is ours to do, or still is
AGAIN_S, MOST_S = 10.0, 60.0  # before a sink that broke is started again: at first, and at most
LAST_S = 5.0  # at the end, for rows that came since the last look
log = logging.getLogger("drivetrain.sinks")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told by its owner."""

    home: str
    store: str  # its URL
    sinks: Mapping[str, Sink]
    logging: Logging = Logging()


class Exports:
    """`run` until `stop`."""

    def __init__(self, orders: Orders, told: Callable[[Standing], None]) -> None:
        self._orders = orders
        self._home = Path(orders.home)
        self._told = told
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Finish what is being sent, send what is there, for a moment, and end."""
        self._stop.set()

    async def run(self) -> None:
        """Until it is stopped. What nobody expected is raised, for the owner to start all of it again."""
        work, stopped = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([work], timeout=LAST_S)
        finally:
            work.cancel()
            stopped.cancel()
            await asyncio.wait([work, stopped])
        if not work.cancelled():
            work.result()

    async def _work(self) -> None:
        while not self._stop.is_set():
            try:
                await self._lead()
            except DrivetrainError as error:
                log.warning("the sinks wait for the store: %s", error)
            await self._pause(STAND_BY_S)

    async def _lead(self) -> None:
        """Export, as long as it is ours to do."""
        store = await run_sync(Store.open, self._orders.store, self._home)
        lead = Lead(store)
        try:
            while not await run_sync(lead.take):
                await self._pause(STAND_BY_S)
                if self._stop.is_set():
                    return
            log.info("exporting to %s", ", ".join(self._orders.sinks))
            async with AsyncExitStack() as stack:
                exports = [await self._open(stack, name, store) for name in self._orders.sinks]
                await self._export(exports, lead)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(lead.release)
                store.close()

    async def _open(self, stack: AsyncExitStack, name: str, store: Store) -> Export:
        sink = self._orders.sinks[name]
        far_end = await run_sync(target, name, sink, self._home)
        stack.push_async_callback(far_end.aclose)
        return Export(name, sink, Rows(store), far_end, self._home / "state", told=self._told, stop=self._stop)

    async def _export(self, exports: Sequence[Export], lead: Lead) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(export)) for export in exports]
                while await run_sync(lead.held) and not self._stop.is_set():
                    await self._pause(STAND_BY_S)
                if not self._stop.is_set():
                    log.warning("another process may export now: standing by")
                    for keeper in keepers:
                        keeper.cancel()
        finally:
            for export in exports:
                self._told(Standing(name=export.name))  # how far behind it is, somebody else will tell

    async def _keep(self, export: Export) -> None:
        pauses_s, ended = (AGAIN_S, MOST_S), self._stop.is_set
        await lasting(f"sink {export.name}", export.run, pauses_s=pauses_s, sleep=self._pause, ended=ended)

    async def _pause(self, seconds: float) -> None:
        """Until then, or until it is time to end."""
        with anyio.move_on_after(seconds):
            await self._stop.wait()
