"""Whether a request that failed is tried again: by the kind of its failure, and as long as its model's budget lasts.

A budget bounds further attempts to a share of the requests of the last minute, so that engines in trouble are not
buried under repetitions. Decisions are pure; the clock and chance are handed in.
"""

import random
import time
from collections.abc import Callable

from drivetrain.config.schema import Retries as Rule
from drivetrain.errors import EngineError, EngineFailed, EngineOverloaded, EngineUnavailable
from drivetrain.policies.access import plain

SLICE_S = 5.0
SLICES = 12  # a minute
PAUSE_S = (0.05, 0.15)  # before the same engine is asked once more
MOST_PAUSE_S = 2.0  # an engine that wants to be left alone for longer is not waited for


class Budget:
    """What one model's requests and further attempts were in the last minute."""

    __slots__ = ("_requests", "_retries", "_slice")

    def __init__(self) -> None:
        self._slice = 0
        self._requests = [0] * SLICES
        self._retries = [0] * SLICES

    def asked(self, now_s: float) -> None:
        """A request has come."""
        self._requests[self._at(now_s)] += 1

    def left(self, rule: Rule, now_s: float) -> int:
        """Further attempts that may be made now."""
        self._at(now_s)
        allowed = max(rule.least, sum(self._requests) * rule.budget_percent // 100)
        return max(0, allowed - sum(self._retries))

    def take(self, rule: Rule, now_s: float) -> bool:
        if not self.left(rule, now_s):
            return False
        self._retries[self._slice % SLICES] += 1
        return True

    def _at(self, now_s: float) -> int:
        """The place of the slice that this moment falls into; those that are over are emptied."""
        now = int(now_s / SLICE_S)
        if now != self._slice:
            for old in range(max(self._slice, now - SLICES) + 1, now + 1):
                self._requests[old % SLICES] = self._retries[old % SLICES] = 0
            self._slice = max(now, self._slice)
        return self._slice % SLICES


class Retries:
    """Owns the budgets, one for each model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, draw: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self.draw = draw
        self._budgets: dict[str, Budget] = {}

    def asked(self, model: str) -> None:
        self._budget(model).asked(self._clock())

    def take(self, model: str, rule: Rule) -> bool:
        """Whether one more attempt is allowed, which is then counted."""
        return self._budget(model).take(rule, self._clock())

    def left(self, model: str, rule: Rule) -> int:
        return self._budget(model).left(rule, self._clock())

    def _budget(self, model: str) -> Budget:
        """Names match as in the catalog: nobody gets a budget of his own by another spelling."""
        if (budget := self._budgets.get(model)) is not None:
            return budget
        return self._budgets.setdefault(plain(model), Budget())


def retried(error: EngineError, rule: Rule, attempts: int) -> bool:
    """Whether a failure of this kind is tried again at all, after so many attempts."""
    return error.retryable and error.code in rule.on and attempts <= rule.max


def pause_s(error: EngineError, draw: Callable[[], float]) -> float | None:
    """How long to wait before the same engine is asked once more; None: it would not do better.

    One that let a deadline pass has had its time, and a model that could not be loaded will not load now.
    """
    if not isinstance(error, EngineFailed | EngineOverloaded | EngineUnavailable):
        return None
    asked_s = error.retry_after_s or 0.0
    if asked_s > MOST_PAUSE_S:
        return None
    least, most = PAUSE_S
    return asked_s + least + draw() * (most - least)
