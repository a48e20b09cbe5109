"""Deadlines of one attempt: first token, silence, total. One timer, and two assignments per batch of events.

The timer looks at its deadlines when it fires and re-arms itself, so that an event costs no timer call. It cancels the
task only while that waits for the engine: a slow reader of the answer is not the engine's fault.
"""

import asyncio
import time

from drivetrain.config.schema import Timeouts
from drivetrain.errors import ConnectTimeout, DrivetrainError, EngineTimeout
from drivetrain.gateway.deadline import Deadline, Deadlines, unconnected
from drivetrain.policies.terms import Own


class Watch:
    """Use as a context around an attempt; `waits()` before and `heard()` after each wait for the engine."""

    def __init__(self, engine: str, timeouts: Timeouts, deadlines: Deadlines, own: Own | None = None) -> None:
        self._engine = engine
        self._timeouts = timeouts
        self._deadlines = deadlines  # of the whole request
        self._own = own  # whose some of the timeouts are; None: all are the policy's
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an attempt is watched inside the task that makes it")
        self._task = task
        self._heard = now = time.monotonic()
        left_s = max(deadlines.first.at_s - now, 0.001)
        self._period_s = min(timeouts.first_token_s, timeouts.idle_s, left_s)
        self._loop = task.get_loop()
        self._first = True  # no content yet
        self._waiting = False
        self._broken: DrivetrainError | None = None  # because this deadline passed

    def __enter__(self) -> "Watch":
        self._timer = self._loop.call_later(self._period_s, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._timer.cancel()
        if self._broken and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise self._broken from error
        if isinstance(error, ConnectTimeout) and (late := unconnected(self._own, error, self._engine)) is not None:
            raise late from error

    def waits(self) -> None:
        self._heard = time.monotonic()
        self._waiting = True

    def heard(self, *, content: bool) -> None:
        self._waiting = False
        self._first = self._first and not content

    def _left(self) -> tuple[float, str, Deadline]:
        """The deadline that comes first: seconds until then, what the engine did not do, and whose it is."""
        if self._first:
            limit_s, what, deadline = self._timeouts.first_token_s, "gave no first token", self._deadlines.first
        else:
            limit_s, what, deadline = self._timeouts.idle_s, "fell silent", self._deadlines.whole
        at_s = self._heard + limit_s
        if deadline.at_s < at_s:
            return deadline.left_s(), f"did not finish within {deadline.limit_s:g} s", deadline
        whose = self._own.whose("first_token_s" if self._first else "idle_s") if self._own is not None else ""
        deadline = Deadline(at_s=at_s, limit_s=limit_s, source=whose)
        return deadline.left_s(), f"{what} within {limit_s:g} s", deadline

    def _look(self) -> None:
        left_s, what, deadline = self._left()
        if left_s > 0 or not self._waiting:
            self._timer = self._loop.call_later(min(max(left_s, 0.01), self._period_s), self._look)
            return
        name = f"engine {self._engine!r}"
        if deadline.source:  # it was the caller who did not wait: the engine is not to blame
            self._broken = deadline.passed(f"{name} was asked and has not {'begun' if self._first else 'finished'}")
        else:
            self._broken = EngineTimeout(f"{name} {what}")
        self._task.cancel()
