"""Sets an engine aside that fails, and lets it back: closed, open, on trial.

It opens on so many failures in a row, or on a share of failures in a window with enough requests. After a pause one
request may try it; if that succeeds it is closed, and the engine takes up work slowly; if not, the next pause is twice
as long. Requests that begin all the same (nobody else was left) count as trials too. A caller's mistake and a request
that was given up count neither way. Every method is told the time.
"""

import math

from drivetrain.config.schema import Breaker as Rules
from drivetrain.router.standing import State

WEIGHT = 0.3  # of the last outcome in an engine's health
HEAL_S = 30.0  # in which two thirds of a failure are forgotten
FORGOTTEN_S = 7 * HEAL_S
LEAST_SHARE = 0.05
LONGEST = 8  # times the first pause


class Breaker:
    """Of one engine. `began` before an attempt, and one of `succeeded`, `failed`, `spared` at its end."""

    __slots__ = (
        "_bad",
        "_bad_before",
        "_closed_s",
        "_health",
        "_health_s",
        "_ok",
        "_ok_before",
        "_pauses",
        "_row",
        "_since_s",
        "_trials",
        "_tried",
        "_until_s",
        "opened",
        "rules",
        "whole_s",
    )

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.opened = False  # it has failed, and no trial has succeeded since
        self._until_s = 0.0  # open until then; then on trial
        self._pauses = 0  # in a row
        self._tried = 0  # pauses in a row before it last came back
        self._trials = 0  # going on
        self._closed_s = -math.inf  # when it last came back
        self._row = 0  # failures in a row
        self._since_s = 0.0  # when this half of the window began
        self._ok = self._bad = self._ok_before = self._bad_before = 0
        self._health = 1.0
        self._health_s = 0.0
        self.whole_s = -math.inf  # from then on it takes its whole share

    def state(self, now_s: float) -> State:
        if not self.opened:
            return "closed"
        if now_s < self._until_s:
            return "open"
        return "trying" if self._trials else "trial"

    def began(self) -> bool:
        """Whether this attempt is a trial; to be told again at its end."""
        if self.opened:
            self._trials += 1
        return self.opened

    def spared(self, *, trial: bool) -> None:
        """It ended without telling anything of the engine."""
        self._trials -= trial

    def succeeded(self, now_s: float, *, trial: bool) -> None:
        self._trials -= trial
        self._row = 0
        if now_s <= self.whole_s:
            self._mend(now_s, 1.0)
        if self.opened:
            if trial:
                self._close(now_s)
            return
        self._turn(now_s)
        self._ok += 1

    def failed(self, now_s: float, *, trial: bool) -> None:
        self._trials -= trial
        self._row += 1
        self._mend(now_s, 0.0)
        self.whole_s = max(self.whole_s, now_s + FORGOTTEN_S)
        if self.opened:
            if trial and now_s >= self._until_s:
                self._set_aside(now_s)
            return
        self._turn(now_s)
        self._bad += 1
        if self._row >= self.rules.failures or self._too_many():
            self._set_aside(now_s)

    def relapsed(self, now_s: float) -> None:
        """What was taken for a success of its last trial, for it had begun to answer, failed later: as if it had never
        come back."""
        self.failed(now_s, trial=False)
        if self._tried and not (self.opened and self._pauses > self._tried):
            self._pauses = self._tried
            self._set_aside(now_s)

    @property
    def failures_left(self) -> int:
        """So many more in a row, and it opens."""
        return self.rules.failures - self._row

    def warned(self) -> None:
        """Somebody else has set it aside: if the next request fails here too, that is enough."""
        self._row = max(self._row, self.rules.failures - 1)

    def returned(self, now_s: float) -> None:
        """A probe found it again after it was away: it may be tried at once, and takes up work slowly."""
        if self.opened:
            self._until_s = min(self._until_s, now_s)
        else:
            self._warm_up(now_s)

    def share(self, now_s: float) -> float:
        """Of its weight that it should take now: its health, and how far it has warmed up."""
        if now_s > self.whole_s:
            return 1.0
        share = self._healed(now_s)
        warm_s = now_s - self._closed_s
        if warm_s < self.rules.slow_start_s:
            share *= warm_s / self.rules.slow_start_s
        return max(share, LEAST_SHARE)

    def _too_many(self) -> bool:
        bad = self._bad + self._bad_before
        total = bad + self._ok + self._ok_before
        return total >= self.rules.least_requests and 100 * bad >= self.rules.percent * total

    def _turn(self, now_s: float) -> None:
        """The window is counted in halves: what falls out of it is forgotten by halves."""
        half_s = self.rules.window_s / 2
        passed = (now_s - self._since_s) / half_s
        if passed < 1:
            return
        self._ok_before, self._bad_before = (self._ok, self._bad) if passed < 2 else (0, 0)
        self._ok = self._bad = 0
        self._since_s = now_s

    def _mend(self, now_s: float, outcome: float) -> None:
        known = self._healed(now_s)
        self._health = known + WEIGHT * (outcome - known)
        self._health_s = now_s

    def _healed(self, now_s: float) -> float:
        return 1.0 - (1.0 - self._health) * math.exp((self._health_s - now_s) / HEAL_S)

    def _warm_up(self, now_s: float) -> None:
        self._closed_s = now_s
        self.whole_s = max(self.whole_s, now_s + self.rules.slow_start_s)

    def _set_aside(self, now_s: float) -> None:
        self.opened = True
        self._until_s = now_s + self.rules.open_s * min(2**self._pauses, LONGEST)
        self._pauses = min(self._pauses + 1, LONGEST)

    def _close(self, now_s: float) -> None:
        self.opened = False
        self._warm_up(now_s)
        self._tried = self._pauses
        self._pauses = self._row = 0
        self._ok = self._bad = self._ok_before = self._bad_before = 0
        self._health = 1.0
