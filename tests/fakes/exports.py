"""Rows to export, a store in memory to export them from, and a BigQuery in memory with the service's rules."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from drivetrain.governance import Attempt
from drivetrain.sinks import streams
from drivetrain.sinks.batches import Row
from drivetrain.sinks.streams import Answered, Place

NOON_S = 1_796_040_000.0  # 2026-11-30T12:00:00Z


def attempt(number: int, **fields: Any) -> Attempt:
    """A row of a request that went well."""
    told: dict[str, Any] = {
        "id": f"{number:026}",
        "request_id": f"request-{number}",
        "position": 1,
        "started_s": NOON_S + number,
        "dialect": "openai",
        "model": "chat",
        "engine": "box-1",
        "engine_model": "org/name",
        "stream": True,
        "outcome": "ok",
        "status": 200,
        "prompt_tokens": 12,
        "completion_tokens": 30,
        "first_token_s": 0.25,
        "total_s": 1.5,
        "cost_micro_usd": 1234,
    }
    return Attempt(**told | fields)


class MemorySource:
    """A store. Its checkpoints are all that outlives a crash."""

    def __init__(self, rows: Sequence[Row] = (), effect: Callable[[], None] = lambda: None) -> None:
        self.rows = list(rows)
        self.checkpoints: dict[str, str] = {}
        self.effect = effect  # called before and after every change

    def after(self, seq: int, limit: int) -> list[Row]:
        return [row for row in self.rows if row[0] > seq][:limit]

    def newest(self) -> int:
        return self.rows[-1][0] if self.rows else 0

    def checkpoint(self, name: str) -> str | None:
        return self.checkpoints.get(name)

    def check(self, name: str, seq: int, state: str, *, was: str | None) -> bool:
        self.effect()
        if self.checkpoints.get(name) != was:
            return False
        self.checkpoints[name] = state
        self.effect()
        return True


class MemoryBigQuery:
    """A table and its streams. `poison`: seqs of rows that it refuses."""

    def __init__(self, poison: Mapping[int, str] | None = None, effect: Callable[[], None] = lambda: None) -> None:
        self.table: list[Row] = []
        self.streams: dict[str, int] = {}
        self.final: set[str] = set()
        self.names_rows = True  # whether it tells which rows it refuses
        self._poison = poison or {}
        self._effect = effect

    def ensure(self) -> bool:
        self._effect()
        return False

    def open_stream(self) -> str:
        self._effect()
        name = f"stream-{len(self.streams) + len(self.final) + 1}"
        self.streams[name] = 0
        self._effect()
        return name

    def append(self, place: Place, rows: Sequence[Row]) -> Answered:
        self._effect()
        answered = self._answer(place, rows)
        self._effect()
        return answered

    def _answer(self, place: Place, rows: Sequence[Row]) -> Answered:
        if place.stream not in self.streams:
            return Answered(code=streams.NOT_FOUND, message="no such stream")
        if place.stream in self.final:
            return Answered(code=streams.INVALID_ARGUMENT, storage=6, message="finalized")
        if place.offset < self.streams[place.stream]:
            return Answered(code=streams.ALREADY_EXISTS, message="already exists")
        if place.offset > self.streams[place.stream]:
            return Answered(code=streams.OUT_OF_RANGE, message="out of range")
        refused = {position: self._poison[seq] for position, (seq, _) in enumerate(rows) if seq in self._poison}
        if refused:
            code = streams.INVALID_ARGUMENT
            return Answered(code=code, message="refused", rows=refused if self.names_rows else {})
        self.table += rows
        self.streams[place.stream] += len(rows)
        return Answered()

    def finalize(self, stream: str) -> int | None:
        self._effect()
        if stream not in self.streams:
            return None
        self.final.add(stream)
        self._effect()
        return self.streams[stream]

    def holds(self, ids: Sequence[str]) -> bool:
        self._effect()
        return any(row.id in ids for _, row in self.table)

    def forget(self, stream: str) -> None:
        """As the service does with old ones: their rows stay in the table."""
        del self.streams[stream]
        self.final.add(stream)

    def close(self) -> None:
        return


class Crash(Exception):
    """The process is gone."""


def dying(after: int) -> Callable[[], None]:
    """An effect that kills its process once, when so many effects were seen."""
    return crashing(itertools.chain([False] * after, [True]))


def crashing(points: Iterator[bool]) -> Callable[[], None]:
    """An effect that kills its process wherever `points` says so, and no more when they are used up."""

    def effect() -> None:
        if next(points, False):
            raise Crash

    return effect
