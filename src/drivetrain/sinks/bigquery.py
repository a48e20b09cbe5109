"""BigQuery: each batch to a stream of kind COMMITTED at its offset, so that every row is in the table exactly once.

What is done for which answer is decided here; `bigquery_api` speaks to the service.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from anyio.to_thread import run_sync

from drivetrain.sinks import streams
from drivetrain.sinks.batches import Batch, Row
from drivetrain.sinks.streams import Answered, Place
from drivetrain.sinks.target import Answer, Moved, Refused, Taken
from drivetrain.web import Unreachable

log = logging.getLogger("drivetrain.sinks")


class Service(Protocol):
    """One table of BigQuery. Raises `Unreachable` for what may be better later."""

    def ensure(self) -> bool:
        """Make the table, or add the columns that it lacks. Whether it had to be changed."""

    def open_stream(self) -> str:
        """The name of a new stream of kind COMMITTED."""

    def append(self, place: Place, rows: Sequence[Row]) -> Answered:
        """Write rows to a stream at an offset. Whatever is answered is told, not raised."""

    def finalize(self, stream: str) -> int | None:
        """End a stream, for good: how many rows are in it. None if there is no such stream any more."""

    def holds(self, ids: Sequence[str]) -> bool:
        """Whether any row with one of these ids is in the table."""

    def close(self) -> None:
        """Let go of connections."""


class Table:
    """The target of one sink."""

    def __init__(self, name: str, service: Service, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._service = service
        self._clock = clock
        self._ready = False  # the table has been seen to be as it has to be

    async def prepare(self, place: str) -> str:
        return await run_sync(self._prepare, place)

    async def send(self, batch: Batch) -> Answer:
        return await run_sync(self._send, batch)

    async def aclose(self) -> None:
        await run_sync(self._service.close)

    def _prepare(self, place: str) -> str:
        changed = self._ensure()
        known = streams.decode(place)
        if known is None or changed or streams.too_old(known, self._clock()):
            return self._new_place()
        return place

    def _send(self, batch: Batch) -> Answer:
        self._ensure()
        place = streams.decode(batch.place)
        if place is None:
            return Moved(place=self._new_place())
        answered = self._service.append(place, batch.rows)
        match streams.verdict(answered):
            case "taken":
                return Taken(place=streams.encode(streams.further(place, len(batch.rows))))
            case "refused":
                rows = {batch.rows[position][0]: why for position, why in answered.rows.items()}
                return Refused(rows=rows, why=answered.message)
            case "doubtful":
                return self._settle(place, batch, answered)
            case "schema":
                self._ready = False
        raise Unreachable(f"BigQuery: {answered.message}")

    def _settle(self, place: Place, batch: Batch, answered: Answered) -> Answer:
        """The stream is of no more use. Whether the batch is in it: by its row count, else by what is in the table."""
        log.info("sink %s leaves the stream %s for another: %s", self._name, place.stream, answered.message)
        self._ready = False
        count = self._service.finalize(place.stream)
        self._ensure()
        if count is None:
            found = self._service.holds([attempt.id for _, attempt in batch.rows])
        else:
            found = streams.holds(count, place)
        return Taken() if found else Moved(place=self._new_place())

    def _new_place(self) -> str:
        return streams.encode(Place(stream=self._service.open_stream(), made_s=self._clock()))

    def _ensure(self) -> bool:
        changed = not self._ready and self._service.ensure()
        self._ready = True
        return changed
