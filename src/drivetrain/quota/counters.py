"""How much of one rule is used: a counter for each kind of rule. No clock and no I/O: whoever asks says what time it
is, and never an earlier one than before.

A counter does not know its rule's amount, so raising a limit forgets nothing.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from drivetrain.governance import Resource, Rule
from drivetrain.policies import calendars, windows
from drivetrain.policies.windows import Window
from drivetrain.quota import Demand, Standing

REQUESTS, TOKENS, SLOTS, MONEY = range(4)  # places in `costs`
KINDS: Mapping[Resource, int] = {"requests": REQUESTS, "tokens": TOKENS, "concurrency": SLOTS, "money": MONEY}


def costs(demand: Demand) -> tuple[int, int, int, int]:
    """What it is at a rule of each of the `KINDS`."""
    return demand.requests, demand.tokens, 1, demand.micro_usd


class Counter(Protocol):
    rule: Rule  # the one it was last asked about

    def take(self, now_s: float, limit: int, cost: int) -> bool:
        """Whether there was room."""

    def force(self, now_s: float, cost: int) -> None:
        """As `take`, with room or without."""

    def back(self, at_s: float, cost: int) -> None:
        """What was taken was not needed at all."""

    def settle(self, at_s: float, cost: int, spent: int) -> None:
        """What was taken at an instant is over, and this is what it came to."""

    def wait_s(self, now_s: float, limit: int, cost: int) -> float | None:
        """Until there is room, if nobody else takes any: exact; None if no time would help, or none is known."""

    def used(self, now_s: float) -> int: ...
    def fits(self, rule: Rule) -> bool:
        """Whether it counts what this rule is about: one that was changed may not."""

    def idle(self, now_s: float) -> bool:
        """Whether a new one would count the same."""


class Rate:
    """So many requests, or tokens, in any period."""

    __slots__ = ("_counted_s", "_period_s", "_width_s", "_window", "rule")

    def __init__(self, rule: Rule, now_s: float) -> None:
        self.rule = rule
        self._period_s = calendars.ROLLING_S[rule.per]
        self._width_s = self._period_s / windows.BUCKETS
        self._counted_s = self._period_s + self._width_s  # from its bucket's beginning on
        self._window = Window()

    def take(self, now_s: float, limit: int, cost: int) -> bool:
        return not windows.take(self._window, now_s, limit=limit, period_s=self._period_s, cost=cost)

    def force(self, now_s: float, cost: int) -> None:
        windows.add(self._window, now_s, period_s=self._period_s, cost=cost)

    def back(self, at_s: float, cost: int) -> None:
        windows.give(self._window, at_s, period_s=self._period_s, cost=cost)

    def settle(self, at_s: float, cost: int, spent: int) -> None:
        if cost != spent:
            windows.add(self._window, at_s, period_s=self._period_s, cost=spent - cost)

    def wait_s(self, now_s: float, limit: int, cost: int) -> float | None:
        return windows.wait_s(self._window, now_s, limit=limit, period_s=self._period_s, cost=cost)

    def used(self, now_s: float) -> int:
        windows.remaining(self._window, now_s, limit=0, period_s=self._period_s)  # forgets what is too old
        return self._window.total

    def standing(self, now_s: float, rule: Rule) -> Standing:
        """What callers are told of it, just after something was taken."""
        reset_s = self._counted_s - now_s % self._width_s
        return Standing(rule=rule, remaining=rule.amount - self._window.total, reset_s=reset_s)

    def fits(self, rule: Rule) -> bool:
        return rule.resource == self.rule.resource and rule.per == self.rule.per

    def idle(self, now_s: float) -> bool:
        return not self.used(now_s)


class Slots:
    """So many at once."""

    __slots__ = ("_taken", "rule")

    def __init__(self, rule: Rule, now_s: float) -> None:
        self.rule = rule
        self._taken = 0

    def take(self, now_s: float, limit: int, cost: int) -> bool:
        if self._taken + cost > limit:
            return False
        self._taken += cost
        return True

    def force(self, now_s: float, cost: int) -> None:
        self._taken += cost

    def back(self, at_s: float, cost: int) -> None:
        self._taken -= cost

    def settle(self, at_s: float, cost: int, spent: int) -> None:
        self._taken -= cost

    def wait_s(self, now_s: float, limit: int, cost: int) -> float | None:
        return 0.0 if self._taken + cost <= limit else None  # nobody knows how long the others will take

    def used(self, now_s: float) -> int:
        return self._taken

    def fits(self, rule: Rule) -> bool:
        return rule.resource == "concurrency"

    def idle(self, now_s: float) -> bool:
        return not self._taken


class Purse:
    """The money of an hour, day, week or month of a calendar, or of all time. What was reserved in a window is booked
    in it; once that is over, only the ledger has it."""

    __slots__ = ("_reserved", "_spent", "born_s", "from_s", "rule", "until_s")

    def __init__(self, rule: Rule, now_s: float) -> None:
        self.rule = rule
        self.born_s = now_s  # what was spent before, only the ledger knows
        self._open(now_s)

    def _open(self, now_s: float) -> None:
        self.from_s, self.until_s = calendars.window(self.rule.per, self.rule.zone, now_s)
        self._spent = 0
        self._reserved = 0

    def take(self, now_s: float, limit: int, cost: int) -> bool:
        if now_s >= self.until_s:
            self._open(now_s)
        if self._spent + self._reserved + cost > limit:
            return False
        self._reserved += cost
        return True

    def force(self, now_s: float, cost: int) -> None:
        if now_s >= self.until_s:
            self._open(now_s)
        self._reserved += cost

    def back(self, at_s: float, cost: int) -> None:
        self.settle(at_s, cost, 0)

    def settle(self, at_s: float, cost: int, spent: int) -> None:
        if at_s >= self.from_s:
            self._reserved -= cost
            self._spent += spent

    def learn(self, at_s: float, micro_usd: int) -> None:
        """The ledger tells what was spent at an instant."""
        if at_s >= self.from_s:
            self._spent += micro_usd

    def wait_s(self, now_s: float, limit: int, cost: int) -> float | None:
        if self.used(now_s) + cost <= limit:
            return 0.0
        return self.until_s - now_s if cost <= limit and self.rule.per != "total" else None

    def used(self, now_s: float) -> int:
        if now_s >= self.until_s:
            self._open(now_s)
        return self._spent + self._reserved

    def fits(self, rule: Rule) -> bool:
        mine = self.rule
        return rule.resource == "money" and not rolls(rule) and rule.per == mine.per and rule.zone == mine.zone

    def idle(self, now_s: float) -> bool:
        return now_s >= self.until_s


class RollingPurse:
    """The money of the last hour, day, week, or 30 days. What is reserved counts until it is settled, what was spent
    from the instant at which it was reserved."""

    __slots__ = ("_reserved", "_window", "born_s", "period_s", "rule")

    def __init__(self, rule: Rule, now_s: float) -> None:
        self.rule = rule
        self.born_s = now_s
        self.period_s = calendars.ROLLING_S[rule.per]
        self._reserved = 0
        self._window = Window()

    def take(self, now_s: float, limit: int, cost: int) -> bool:
        if self.used(now_s) + cost > limit:
            return False
        self._reserved += cost
        return True

    def force(self, now_s: float, cost: int) -> None:
        self._reserved += cost

    def back(self, at_s: float, cost: int) -> None:
        self._reserved -= cost

    def settle(self, at_s: float, cost: int, spent: int) -> None:
        self._reserved -= cost
        self.learn(at_s, spent)

    def learn(self, at_s: float, micro_usd: int) -> None:
        windows.add(self._window, at_s, period_s=self.period_s, cost=micro_usd)

    def wait_s(self, now_s: float, limit: int, cost: int) -> float | None:
        limit -= self._reserved
        if cost > limit:
            return None  # nobody knows when the others will have settled
        return windows.wait_s(self._window, now_s, limit=limit, period_s=self.period_s, cost=cost)

    def used(self, now_s: float) -> int:
        windows.remaining(self._window, now_s, limit=0, period_s=self.period_s)  # forgets what is too old
        return self._window.total + self._reserved

    def fits(self, rule: Rule) -> bool:
        return rule.resource == "money" and rolls(rule) and rule.per == self.rule.per

    def idle(self, now_s: float) -> bool:
        return not self.used(now_s)


def rolls(rule: Rule) -> bool:
    return rule.rolling and rule.per != "total"


def _money(rule: Rule, now_s: float) -> Counter:
    return RollingPurse(rule, now_s) if rolls(rule) else Purse(rule, now_s)


_COUNTERS: Mapping[Resource, Callable[[Rule, float], Counter]] = {
    "requests": Rate,
    "tokens": Rate,
    "concurrency": Slots,
    "money": _money,
}


def counter(rule: Rule, now_s: float) -> Counter:
    return _COUNTERS[rule.resource](rule, now_s)
