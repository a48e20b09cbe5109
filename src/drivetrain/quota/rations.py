"""What one process has at hand of a rule: batches that were taken from the shared state ahead of time. No I/O; whoever
asks says what time it is."""

import math
from collections.abc import Sequence

from drivetrain.governance import Rule
from drivetrain.policies import calendars
from drivetrain.quota import Demand, Hold, Refusal, Standing
from drivetrain.quota.counters import rolls

FRESH_S = 5.0  # what comes back to a batch of a rate within this time is used again; later it goes back
IDLE_S = 5.0  # after so long without a use what is left of a batch goes back
IDLE_SLOT_S = 1.0  # and a slot: somebody may wait for it
KEPT_S = 60.0  # but as much as one request takes stays so long
QUICK_S = 1.0  # what is used up sooner was too little
GRAIN_S = 1e-3  # a wait that is as good as over
REFUSED_S = 0.1  # so long a refusal is taken for true without asking again


class Batch:
    """What was taken at once. It is over when all of it is used and nobody is inside with a part of it."""

    __slots__ = ("born_s", "hold", "left", "out", "spent", "until_s", "used_s")

    def __init__(self, hold: Hold, size: int, now_s: float, until_s: float) -> None:
        self.hold = hold  # of the shared state
        self.left = size
        self.out = 0  # requests that are inside with a part of it
        self.spent = 0
        self.born_s = self.used_s = now_s
        self.until_s = until_s  # when the window of a budget ends, it cannot be used any more


Part = tuple[Batch, int]


class Ration:
    """Owns the batches of one rule. `left` is never above `most`, but for what somebody waits for."""

    __slots__ = (
        *("_cost", "_percent", "_refusal", "_refused_s", "asked_s", "batches", "left", "most", "reset_s", "room"),
        *("rate", "rule", "size", "used_s"),
    )

    def __init__(self, rule: Rule, percent: int, now_s: float) -> None:
        self.batches: list[Batch] = []  # oldest first
        self.left = 0  # in all of them
        self.size = 0  # how much is wanted at hand
        self.room = 0  # of the rule, when last heard of
        self.reset_s = now_s  # when all of it is free again
        self.used_s = self.asked_s = now_s
        self._refusal: tuple[int, Refusal] | None  # to a demand of so much
        self._refused_s = 0.0
        self._cost = 0  # of the last request
        self.bind(rule, percent)

    def bind(self, rule: Rule, percent: int) -> None:
        """The rule may be changed while it is in use."""
        self.rule = rule
        self._refusal = None
        self._percent = percent
        self.rate = rule.resource in ("requests", "tokens")  # parts of a batch can go back
        self.most = max(1, rule.amount * percent // 100)

    def fits(self, rule: Rule) -> bool:
        """Whether what is at hand counts for this rule too."""
        mine = self.rule
        return (rule.resource, rule.per, rule.zone, rule.rolling) == (mine.resource, mine.per, mine.zone, mine.rolling)

    def cost(self, demand: Demand) -> int:
        if self.rule.resource == "requests":
            return demand.requests
        if self.rule.resource == "tokens":
            return demand.tokens
        return demand.micro_usd if self.rule.resource == "money" else 1

    def demand(self, amount: int) -> Demand:
        """So much of it, as the shared state is asked for it."""
        if self.rule.resource == "requests":
            return Demand(requests=amount)
        return Demand(tokens=amount) if self.rule.resource == "tokens" else Demand(micro_usd=amount)

    # --- what requests take -------------------------------------------------------------------------------------------

    @property
    def unused(self) -> int:
        """What is at hand and counts as used for others."""
        return sum(batch.left for batch in self.batches if not batch.hold.degraded)

    def has(self, cost: int) -> bool:
        """Whether so much is at hand. What costs nothing is booked on a batch too."""
        return self.left >= cost and (cost > 0 or bool(self.batches))

    def draw(self, cost: int, now_s: float) -> Sequence[Part]:
        """Take what is at hand."""
        self.used_s = now_s
        self._cost = cost
        self.left -= cost
        parts: list[Part] = []
        for batch in self.batches:
            if batch.left or not cost:
                part = min(batch.left, cost)
                batch.left -= part
                batch.out += 1
                batch.used_s = now_s
                parts.append((batch, part))
                cost -= part
                if not cost:
                    break
        return parts

    def back(self, parts: Sequence[Part], spent: int, now_s: float) -> Sequence[Part]:
        """A request is over, and took so much. Returns what is not kept at hand; without it a batch ends the sooner."""
        returned: list[Part] = []
        last = len(parts) - 1
        for number, (batch, part) in enumerate(parts):
            took = spent if number == last else min(part, spent)
            spent -= took
            batch.spent += took
            batch.out -= 1
            batch.used_s = now_s
            if (rest := part - took) <= 0:
                continue
            self._refusal = None
            if self._again(batch, rest, now_s):
                batch.left += rest
                self.left += rest
            else:
                returned.append((batch, rest))
                self.room += rest if self.rate else 0
                if not batch.out:
                    self._empty(batch)
        return returned

    def _again(self, batch: Batch, amount: int, now_s: float) -> bool:
        """Whether what comes back stays at hand."""
        fresh = now_s - batch.born_s < FRESH_S or self.rule.resource == "concurrency"
        return fresh and self.left + amount <= self.most and now_s < batch.until_s

    # --- what is taken from the shared state --------------------------------------------------------------------------

    def wanted(self, need: int) -> int:
        """How much to ask for when so much is waited for: some more for those who come, but no more than half of what
        there is."""
        ahead = self.size - self.left
        return need + max(0, min(ahead, (self.room - need) // 2) if self.rule.hard else ahead)

    @property
    def low(self) -> bool:
        """Whether more should be at hand."""
        return 2 * self.left < self.size and (self.room > 1 or not self.rule.hard)

    def ask(self, need: int, now_s: float) -> None:
        """Somebody asks. What lasts less than a second is too little."""
        if now_s - self.asked_s < QUICK_S or not self.size:
            self.size = min(self.most, max(2 * self.size, need))
        self.asked_s = now_s

    def window_s(self, unix_s: float) -> float:
        """How long what is taken now may be used."""
        if self.rule.resource != "money" or rolls(self.rule):
            return math.inf
        return calendars.window(self.rule.per, self.rule.zone, unix_s)[1] - unix_s

    def add(self, hold: Hold, size: int, now_s: float, until_s: float) -> None:
        self.batches.append(Batch(hold, size, now_s, until_s))
        self.left += size
        self._refusal = None
        for standing in hold.standings:
            self.reset_s = now_s + standing.reset_s

    def over(self, now_s: float, *, alone: bool) -> Sequence[Part]:
        """Nothing is left of batches that are over, and little of those that were not used for long. Returns what goes
        back of batches that stay. `alone`: the shared state is away; what was taken without it is over when it is back.
        """
        returned: list[Part] = []
        idle_s = IDLE_SLOT_S if self.rule.resource == "concurrency" else IDLE_S
        keep = self._kept(now_s)
        for batch in self.batches:
            excess = min(batch.left, self.left - keep)
            if now_s >= batch.until_s or (batch.hold.degraded and not alone):
                self._empty(batch)
            elif batch.out or now_s - batch.used_s < idle_s or excess <= 0:
                continue
            elif excess == batch.left or not self.rate:
                self._empty(batch)
            else:
                batch.left -= excess
                self.left -= excess
                self.room += excess
                returned.append((batch, excess))
        if now_s - self.used_s >= idle_s:
            self.size = min(self.size, keep)
        elif now_s - self.asked_s >= IDLE_S:
            self.size = max(self.size // 2, keep)
        return returned

    def _kept(self, now_s: float) -> int:
        """How much stays at hand for a request that may come after a while, unless that would be a large part."""
        share = self.rule.amount * self._percent // 100
        return self._cost if self._cost <= share and now_s - self.used_s < KEPT_S else 0

    def spare(self) -> Sequence[Batch]:
        """Take out what nobody is inside with."""
        for batch in self.batches:
            if not batch.out:
                self._empty(batch)
        return self.finished()

    def finished(self) -> Sequence[Batch]:
        """Take out what is over."""
        done = [batch for batch in self.batches if not batch.left and not batch.out]
        if done:
            self.batches = [batch for batch in self.batches if batch.left or batch.out]
        return done

    def _empty(self, batch: Batch) -> None:
        self.left -= batch.left
        self.room += batch.left
        batch.left = 0

    # --- what callers are told ----------------------------------------------------------------------------------------

    def refused(self, cost: int, refusal: Refusal, now_s: float) -> None:
        self._refusal, self._refused_s = (cost, refusal), now_s

    def refusal(self, cost: int, now_s: float) -> Refusal | None:
        """The shared state's answer to as much or less, if it was given just now. A slot may come free at any time."""
        passed_s = now_s - self._refused_s
        if self._refusal is None or passed_s >= REFUSED_S or self.rule.resource == "concurrency":
            return None
        asked, refusal = self._refusal
        if cost < asked or refusal.wait_s is None:
            return None if cost < asked else refusal
        wait_s = refusal.wait_s - passed_s
        return Refusal(rule=self.rule, wait_s=wait_s, degraded=refusal.degraded) if wait_s > GRAIN_S else None

    def standing(self, now_s: float) -> Standing | None:
        if not self.rate:
            return None
        reset_s = max(0.0, self.reset_s - now_s)
        return Standing(rule=self.rule, remaining=max(0, self.room + self.left), reset_s=reset_s)
