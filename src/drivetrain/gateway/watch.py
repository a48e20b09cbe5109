"""Deadlines of one attempt: first token, silence, total. One timer, and two assignments per batch of events.

The timer looks at its deadlines when it fires and re-arms itself, so that an event costs no timer call. It cancels the
task only while that waits for the engine: a slow reader of the answer is not the engine's fault.
"""

import asyncio
import time

from drivetrain.config.schema import Timeouts
from drivetrain.errors import EngineTimeout


class Watch:
    """Use as a context around an attempt; `waits()` before and `heard()` after each wait for the engine."""

    def __init__(self, engine: str, timeouts: Timeouts) -> None:
        self._engine = engine
        self._timeouts = timeouts
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an attempt is watched inside the task that makes it")
        self._task = task
        self._period_s = min(timeouts.first_token_s, timeouts.idle_s, timeouts.total_s)
        self._loop = asyncio.get_running_loop()
        self._began = self._heard = time.monotonic()
        self._first = True  # no content yet
        self._waiting = False
        self._broken = ""  # which deadline passed

    def __enter__(self) -> "Watch":
        self._timer = self._loop.call_later(self._period_s, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._timer.cancel()
        if self._broken and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise EngineTimeout(f"engine {self._engine!r} {self._broken}") from error

    def waits(self) -> None:
        self._heard = time.monotonic()
        self._waiting = True

    def heard(self, *, content: bool) -> None:
        self._waiting = False
        self._first = self._first and not content

    def _left(self) -> tuple[float, str]:
        now = time.monotonic()
        if self._first:
            limit_s, what = self._timeouts.first_token_s, "gave no first token"
        else:
            limit_s, what = self._timeouts.idle_s, "fell silent"
        left = (self._heard + limit_s - now, f"{what} within {limit_s:g} s")
        total = (self._began + self._timeouts.total_s - now, f"did not finish within {self._timeouts.total_s:g} s")
        return min(left, total)

    def _look(self) -> None:
        left_s, what = self._left()
        if left_s > 0 or not self._waiting:
            self._timer = self._loop.call_later(min(max(left_s, 0.01), self._period_s), self._look)
            return
        self._broken = what
        self._task.cancel()
