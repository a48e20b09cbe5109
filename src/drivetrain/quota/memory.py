"""Counts limits and budgets in this process: exact, and without a wait once a budget has heard from the ledger."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Refusal, Standing
from drivetrain.quota.counters import Counter, Purse, RollingPurse, counter
from drivetrain.quota.seeds import PATIENCE_S, Seed, Seeds
from drivetrain.ulid import ulid

RETRY_S = 1.0  # between tries to hear from the ledger
SWEEP_COUNTERS = 1024  # so many, and twice as many after each sweep, until those that count nothing are dropped


class _Live:
    """What one request has set aside, at counters of the same order."""

    __slots__ = ("at_s", "costs", "counters")

    def __init__(self, at_s: float, counters: list[Counter], costs: list[int]) -> None:
        self.at_s = at_s
        self.counters = counters
        self.costs = costs


class MemoryQuota:
    """Owns the counters of this process. `seed` tells what a budget had spent before it was first used here."""

    def __init__(
        self,
        seed: Seed | None = None,
        clock: Callable[[], float] = time.time,
        *,
        patience_s: float = PATIENCE_S,
        prior: Callable[[Rule], int] | None = None,
    ) -> None:
        """`patience_s`: how long the first request under a budget waits for the ledger. `prior`: what is taken for used
        when a rule is first counted."""
        self._clock = clock
        self._latest_s = 0.0
        self._prior = prior
        self._counters: dict[str, Counter] = {}  # by the rule's id
        self._seeds = Seeds(seed, patience_s)
        self._live: dict[str, _Live] = {}  # by the hold's id
        self._sweep_at = SWEEP_COUNTERS
        self._name = ulid()
        self._numbers = itertools.count(1)

    @property
    def away(self) -> bool:
        """Never: it counts here."""
        return False

    async def reserve(self, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        now_s = self._now_s()
        counters = self._counters_of(rules, now_s)
        if self._seeds.awaited:
            await self._seeds.heard(rules)
            now_s = self._now_s()
            counters = self._counters_of(rules, now_s)
        costs: list[int] = []
        for rule, each in zip(rules, counters, strict=True):
            cost = each.cost(demand)
            if not each.take(now_s, rule.amount, cost):
                if rule.hard:
                    return self._refuse(rules, counters, costs, demand, now_s)
                each.force(now_s, cost)
            costs.append(cost)
        return self._hold(rules, counters, costs, demand, now_s)

    def force(self, rules: Sequence[Rule], demand: Demand) -> Hold:
        """Set aside, whether there is room or not."""
        now_s = self._now_s()
        counters = self._counters_of(rules, now_s)
        costs = [each.cost(demand) for each in counters]
        for each, cost in zip(counters, costs, strict=True):
            each.force(now_s, cost)
        return self._hold(rules, counters, costs, demand, now_s)

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        now_s = self._now_s()
        live = self._live[hold.id]
        money = [number for number, each in enumerate(live.counters) if _in_reach(each, live.at_s, now_s)]
        refusal = None
        for number in money:
            refusal = self._longer(refusal, hold.rules[number], live.counters[number], now_s, micro_usd)
        if refusal is not None:
            return refusal
        for number in money:
            live.counters[number].force(now_s, micro_usd)
            live.costs[number] += micro_usd
        return hold.with_more(micro_usd)

    def settle(self, hold: Hold, spent: Demand) -> None:
        live = self._live.pop(hold.id, None)
        if live is not None:
            at_s = live.at_s
            for each, cost in zip(live.counters, live.costs, strict=True):
                each.settle(at_s, cost, spent)

    async def spent(self, rules: Sequence[Rule]) -> Mapping[str, int]:
        for rule in rules:
            self._counter(rule, self._now_s())
        if self._seeds.awaited:
            await self._seeds.heard(rules)
        now_s = self._now_s()
        return {rule.id: self._counter(rule, now_s).used(now_s) for rule in rules}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            await self.retry()

    async def retry(self) -> None:
        """Ask the ledger again for what it could not tell."""
        await self._seeds.retry()

    def _now_s(self) -> float:
        """A clock that was put back is taken for one that stands still."""
        now_s = self._clock()
        if now_s < self._latest_s:
            return self._latest_s
        self._latest_s = now_s
        return now_s

    def _counters_of(self, rules: Sequence[Rule], now_s: float) -> list[Counter]:
        found, counters = self._counters, []
        for rule in rules:
            each = found.get(rule.id)
            if each is None or each.rule is not rule:
                each = self._counter(rule, now_s)
            counters.append(each)
        return counters

    def _counter(self, rule: Rule, now_s: float) -> Counter:
        found = self._counters.get(rule.id)
        if found is not None and found.fits(rule):
            found.rule = rule
            return found
        return self._new_counter(rule, now_s)

    def _new_counter(self, rule: Rule, now_s: float) -> Counter:
        if len(self._counters) >= self._sweep_at:
            self._sweep(now_s)
        made = self._counters[rule.id] = counter(rule, now_s)
        if isinstance(made, Purse | RollingPurse):
            self._seeds.expect(rule, made)
        if self._prior is not None and (used := self._prior(rule)):
            made.force(now_s, used)
            made.settle(now_s, used, Demand(requests=used, tokens=used, micro_usd=used))
        return made

    def _hold(
        self, rules: Sequence[Rule], counters: list[Counter], costs: list[int], demand: Demand, now_s: float
    ) -> Hold:
        name = f"{self._name}.{next(self._numbers)}"
        self._live[name] = _Live(now_s, counters, costs)
        standings: list[Standing] = []
        for rule, each in zip(rules, counters, strict=True):
            if (standing := each.standing(now_s, rule)) is not None:
                standings.append(standing)
        return Hold(id=name, rules=rules, demand=demand, at_s=now_s, standings=standings)

    def _refuse(
        self, rules: Sequence[Rule], counters: list[Counter], costs: list[int], demand: Demand, now_s: float
    ) -> Refusal:
        """`costs`: what was taken already, and goes back."""
        for each, cost in zip(counters, costs, strict=False):
            each.back(now_s, cost)
        refusal = None
        for rule, each in zip(rules, counters, strict=True):
            refusal = self._longer(refusal, rule, each, now_s, each.cost(demand))
        if refusal is None:
            raise RuntimeError("a rule refused that had room")
        return refusal

    def _longer(self, refusal: Refusal | None, rule: Rule, each: Counter, now_s: float, cost: int) -> Refusal | None:
        wait_s = each.wait_s(now_s, rule.amount, cost) if rule.hard else 0.0
        return refusal if wait_s == 0.0 else longer(refusal, Refusal(rule=rule, wait_s=wait_s))

    def _sweep(self, now_s: float) -> None:
        """Rules come and go, with keys and with reloads."""
        for rule_id in [rule_id for rule_id, each in self._counters.items() if each.idle(now_s)]:
            del self._counters[rule_id]
            self._seeds.forget(rule_id)
        self._sweep_at = max(SWEEP_COUNTERS, 2 * len(self._counters))


def _in_reach(each: Counter, at_s: float, now_s: float) -> bool:
    """Whether it counts money, and what was set aside then is in a window that is not over."""
    if isinstance(each, Purse):
        each.used(now_s)
        return each.from_s <= at_s
    return isinstance(each, RollingPurse)


def longer(one: Refusal | None, other: Refusal) -> Refusal:
    """The one that has to be waited for longer. A slot comes last: it is waited for in a line, which would be in vain
    if another rule refused at its end."""
    return other if one is None or _rank(other) > _rank(one) else one


def _rank(refusal: Refusal) -> tuple[int, float]:
    if refusal.wait_s is not None:
        return 1, refusal.wait_s
    return (0, 0.0) if refusal.rule.resource == "concurrency" else (2, 0.0)
