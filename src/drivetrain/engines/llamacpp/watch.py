"""One request at a worker: what its failure means, what its leaving stops, what it cost in experts."""

import asyncio
from types import TracebackType
from typing import Final, Self

from drivetrain.engines.llamacpp.fleet import Lease
from drivetrain.engines.llamacpp.resident import Running
from drivetrain.errors import EngineFailed, EngineUnavailable
from drivetrain.types import Experts

DEATH_S: Final = 0.5  # a broken connection and the end of the process come at once, in either order


class Watch:
    """Use as a context around the exchange. Raises `EngineFailed` that tells more than the error of the exchange."""

    def __init__(self, running: Running, lease: Lease) -> None:
        self._running = running
        self._lease = lease
        self._before = Experts()
        self.answered = False  # something of the answer has come

    async def __aenter__(self) -> Self:
        if self._running.flow:
            await self._running.flow.settled(self._running.upstream)
            self._before = self._running.flow.experts()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        match error:
            case EngineFailed() | EngineUnavailable():
                await self._explain(error)
            case asyncio.CancelledError() | GeneratorExit():
                self._stop()

    def experts(self) -> Experts | None:
        """What this request did with those of a streamed model, and whoever else was served beside it."""
        return self._running.flow.experts().since(self._before) if self._running.flow else None

    async def _explain(self, error: EngineFailed | EngineUnavailable) -> None:
        """An error of the drive tells more than that the calculation failed, and what became of a worker that has died
        more than a broken connection."""
        model, worker, flow = self._running.model, self._running.worker, self._running.flow
        if flow and flow.experts().failures > self._before.failures:
            raise EngineFailed(f"model {model!r}: {flow.error()}") from error
        if await worker.ended(DEATH_S):
            raise EngineFailed(f"model {model!r}: {worker.obituary()}") from error

    def _stop(self) -> None:
        """A block of a long prompt takes seconds: if nobody else waits for it, it is given up. Later, in an answer,
        a pass is short, and what the worker keeps of the conversation would be lost."""
        if self._running.flow and not self.answered and self._lease.alone:
            self._running.flow.stop()
