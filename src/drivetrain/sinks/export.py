"""One sink at work: rows from the store, batch after batch, to its target, for as long as the process lives."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from drivetrain.config.schema import Sink
from drivetrain.errors import DrivetrainError, ServerError
from drivetrain.sinks import batches
from drivetrain.sinks.batches import Batch, Progress, Row
from drivetrain.sinks.deadletters import DeadLetters
from drivetrain.sinks.target import Answer, Moved, Refused, Taken, Target
from drivetrain.types import Value

PAUSE_S = (1.0, 60.0)  # before a target that is away is tried again: at first, and at most
HISTORIANS = ("bigquery", "parquet")  # kinds that want all there ever was; to others, old news is none
log = logging.getLogger("drivetrain.sinks")


class Source(Protocol):
    """What a sink needs of the store. All may raise `DrivetrainError` while the database is away."""

    def after(self, seq: int, limit: int) -> list[Row]:
        """Rows behind `seq`, in the order of their commits."""

    def newest(self) -> int:
        """The seq of the newest row, 0 if there is none."""

    def checkpoint(self, name: str) -> str | None:
        """The state that was kept last, None if none was."""

    def check(self, name: str, seq: int, state: str, *, was: str | None) -> bool:
        """Keep how far a sink is, if `was` is the state that is kept now (None: if none is). False, and nothing is
        changed, if somebody else has kept another since."""


class Standing(Value, frozen=True, kw_only=True):
    """How a sink fares."""

    name: str
    lag_rows: int = 0  # that wait
    lag_s: float = 0.0  # for how long the first of them has
    taken: int = 0  # rows that went out since this was told last
    dead: int = 0  # rows that were refused since then
    wrong: str = ""  # why it waits, "" if all is well


class Superseded(ServerError):
    """Another process exports this sink now."""

    code = "superseded"


def _tell_nobody(standing: Standing) -> None:
    pass


class Export:
    """The loop of one sink. Its checkpoint and its dead letters are all that outlives it."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        source: Source,
        target: Target,
        state: Path,
        *,
        told: Callable[[Standing], None] = _tell_nobody,
        clock: Callable[[], float] = time.time,
        stop: asyncio.Event | None = None,
        sleep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """`state`: the home's folder for what outlives a process. `stop`: set, it ends `run`."""
        self.name = name
        self._sink = sink
        self._source = source
        self._target = target
        self._dead = DeadLetters(state / "sinks" / f"{name}.dead.jsonl")
        self._told = told
        self._clock = clock
        self._stop = stop or asyncio.Event()
        self._sleep = sleep or self._until_stopped
        self._taken = 0  # since it was told
        self._buried = 0
        self._limit = sink.batch_rows
        self._progress: Progress | None = None
        self._kept: str | None = None  # the state in the checkpoint

    async def run(self) -> None:
        """Until it is stopped, with one more look at the end."""
        pause_s = PAUSE_S[0]
        while True:
            last = self._stop.is_set()
            wrong = await self.catch_up()
            if last:
                return
            if wrong:
                log.warning("sink %s tries again in %g s: %s", self.name, pause_s, wrong)
                await self._sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S[1])
            else:
                pause_s = PAUSE_S[0]
                await self._sleep(self._sink.every_s)

    async def _until_stopped(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stop.wait()

    async def catch_up(self) -> str:
        """Send what there is. Returns what is wrong with the target or the store, "" if all went well."""
        wrong = ""
        try:
            while await self.step():
                await self._tell("")
        except (DrivetrainError, OSError) as error:
            wrong = str(error)
        await self._tell(wrong)
        if wrong:
            self._progress = None  # whether the last step was kept is not known: the checkpoint tells
        return wrong

    async def step(self) -> bool:
        """One try of one batch. Whether there may be more to send."""
        kept = self._progress or await self._resume()
        progress = kept if kept.intent else await self._begin(kept)
        if progress is None:
            return False
        intent = batches.begun(progress)
        sent = batches.batch(progress, await self._rows(intent.first - 1, intent.count))
        answer = await self._target.send(sent) if sent.rows else Taken(place=progress.place)
        await self._keep(await self._after(answer, progress, sent))
        return True

    async def _begin(self, progress: Progress) -> Progress | None:
        """Write down what will be sent. None if there is nothing to send."""
        rows = await self._rows(progress.seq, self._limit)
        if not rows:
            return None
        place = await self._target.prepare(progress.place)
        return await self._keep(batches.planned(progress, batches.fitting(rows), place))

    async def _after(self, answer: Answer, progress: Progress, sent: Batch) -> Progress:
        match answer:
            case Taken(place=place):
                self._limit = min(self._limit * 2, self._sink.batch_rows)
                self._taken += len(sent.rows)
                return batches.done(progress, place)
            case Moved(place=place):
                return batches.moved(progress, place)
            case Refused(rows=rows, why=why):
                if not rows and len(sent.rows) > 1:
                    self._limit = len(sent.rows) // 2
                    return batches.halved(progress, sent.rows)
                rows = rows or {sent.rows[0][0]: why}
                await self._bury(sent.rows, rows)
                return batches.refused(progress, rows.keys())

    async def _bury(self, sent: tuple[Row, ...], reasons: Mapping[int, str]) -> None:
        await run_sync(self._dead.add, sent, reasons)
        self._buried += len(reasons)
        log.warning("sink %s: %d rows were refused, and are in %s", self.name, len(reasons), self._dead.path)

    async def _rows(self, seq: int, limit: int) -> list[Row]:
        return await run_sync(self._source.after, seq, limit)

    async def _resume(self) -> Progress:
        """What the checkpoint says. A sink that is new begins with the first row there is, or with the next to come."""
        kept = await run_sync(self._source.checkpoint, self.name)
        if kept is None:
            self._kept = None
            seq = 0 if self._sink.kind in HISTORIANS else await run_sync(self._source.newest)
            progress = await self._keep(Progress(seq=seq))
        else:
            self._kept = kept
            progress = self._progress = batches.decode(kept)
        await run_sync(self._dead.open, progress.seq)
        return progress

    async def _keep(self, progress: Progress) -> Progress:
        """Write the checkpoint; nothing goes on before it is written."""
        state = batches.encode(progress)
        if not await run_sync(partial(self._source.check, self.name, progress.seq, state, was=self._kept)):
            raise Superseded(f"sink {self.name!r}: another process exports it now")
        self._kept, self._progress = state, progress
        return progress

    async def _tell(self, wrong: str) -> None:
        lag_rows, lag_s = await self._lag()
        self._told(
            Standing(name=self.name, lag_rows=lag_rows, lag_s=lag_s, taken=self._taken, dead=self._buried, wrong=wrong)
        )
        self._taken = self._buried = 0

    async def _lag(self) -> tuple[int, float]:
        """Rows that wait, and for how long the first has; nobody knows while the store is away."""
        if self._progress is None:
            return 0, 0.0
        try:
            first = await self._rows(self._progress.seq, 1)
            newest = await run_sync(self._source.newest)
        except DrivetrainError:
            return 0, 0.0
        waits_s = [self._clock() - row.started_s - row.total_s for _, row in first]
        return newest - self._progress.seq if first else 0, max(0.0, *waits_s, 0.0)
