"""Counts limits and budgets in this process: exact, and without a wait once a budget has heard from the ledger."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Refusal
from drivetrain.quota.counters import KINDS, REQUESTS, Counter, Purse, Rate, RollingPurse, costs, counter
from drivetrain.quota.seeds import PATIENCE_S, Seed, Seeds
from drivetrain.ulid import ulid

RETRY_S = 1.0  # between tries to hear from the ledger
BONDS = 1024  # are remembered
SWEEP_COUNTERS = 1024  # so many, and twice as many after each sweep, until those that count nothing are dropped


class _Place(NamedTuple):
    """Where a rule is counted."""

    counter: Counter
    kind: int  # of `KINDS`
    rule: Rule


class _Bond(NamedTuple):
    """The places of rules that come together."""

    rules: Sequence[Rule]
    places: Sequence[_Place]
    rates: Sequence[tuple[Rate, Rule]]  # what callers are told of
    owed: Sequence[_Place]  # those that may come to something else than was set aside


class _Live:
    """What one request has set aside, at each place of a bond."""

    __slots__ = ("at_s", "bond", "costs", "more")

    def __init__(self, at_s: float, bond: _Bond, costs: Sequence[int]) -> None:
        self.at_s = at_s
        self.bond = bond
        self.costs = costs  # by kind
        self.more: list[tuple[Counter, int]] = []  # money that was set aside later


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
        self._bonds: dict[int, _Bond] = {}  # by the identity of its rules, which it keeps; void when counters change
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
        bond = self._bond(rules, now_s)
        if self._seeds.awaited:
            await self._seeds.heard(rules)
            now_s = self._now_s()
            bond = self._bond(rules, now_s)
        cost = costs(demand)
        for number, (each, kind, rule) in enumerate(bond.places):
            if not each.take(now_s, rule.amount, cost[kind]):
                if rule.hard:
                    return self._refuse(bond, number, cost, now_s)
                each.force(now_s, cost[kind])
        return self._hold(bond, cost, demand, now_s)

    def force(self, rules: Sequence[Rule], demand: Demand) -> Hold:
        """Set aside, whether there is room or not."""
        now_s, cost = self._now_s(), costs(demand)
        bond = self._bond(rules, now_s)
        for each, kind, _ in bond.places:
            each.force(now_s, cost[kind])
        return self._hold(bond, cost, demand, now_s)

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        now_s = self._now_s()
        live = self._live[hold.id]
        money = [place for place in live.bond.places if _in_reach(place.counter, live.at_s, now_s)]
        refusal = None
        for place in money:
            refusal = self._longer(refusal, place, now_s, micro_usd)
        if refusal is not None:
            return refusal
        for place in money:
            place.counter.force(now_s, micro_usd)
            live.more.append((place.counter, micro_usd))
        return hold.with_more(micro_usd)

    def settle(self, hold: Hold, spent: Demand) -> None:
        live = self._live.pop(hold.id, None)
        if live is not None:
            at_s, cost, came_to = live.at_s, live.costs, costs(spent)
            bond, kept = live.bond, cost[REQUESTS] == came_to[REQUESTS]
            for each, kind, _ in bond.owed if kept else bond.places:
                each.settle(at_s, cost[kind], came_to[kind])
            for each, micro_usd in live.more:
                each.settle(at_s, micro_usd, 0)

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

    def _bond(self, rules: Sequence[Rule], now_s: float) -> _Bond:
        known = self._bonds.get(id(rules))
        if known is not None:
            return known
        if len(self._counters) >= self._sweep_at:
            self._sweep(now_s)
        places = [_Place(self._counter(rule, now_s), KINDS[rule.resource], rule) for rule in rules]
        rates = [(each, rule) for each, _, rule in places if isinstance(each, Rate)]
        made = _Bond(rules, places, rates, [place for place in places if place.kind != REQUESTS])
        if isinstance(rules, tuple):  # else it may change
            if len(self._bonds) >= BONDS:
                self._bonds.clear()
            self._bonds[id(rules)] = made
        return made

    def _counter(self, rule: Rule, now_s: float) -> Counter:
        found = self._counters.get(rule.id)
        if found is not None and found.fits(rule):
            found.rule = rule
            return found
        return self._new_counter(rule, now_s)

    def _new_counter(self, rule: Rule, now_s: float) -> Counter:
        self._bonds.clear()
        made = self._counters[rule.id] = counter(rule, now_s)
        if isinstance(made, Purse | RollingPurse):
            self._seeds.expect(rule, made)
        if self._prior is not None and (used := self._prior(rule)):
            made.force(now_s, used)
            made.settle(now_s, used, used)
        return made

    def _hold(self, bond: _Bond, cost: Sequence[int], demand: Demand, now_s: float) -> Hold:
        name = f"{self._name}.{next(self._numbers)}"
        self._live[name] = _Live(now_s, bond, cost)
        standings = [each.standing(now_s, rule) for each, rule in bond.rates]
        return Hold(id=name, rules=bond.rules, demand=demand, at_s=now_s, standings=standings)

    def _refuse(self, bond: _Bond, taken: int, cost: Sequence[int], now_s: float) -> Refusal:
        """`taken`: at so many places already, where it goes back."""
        for each, kind, _ in bond.places[:taken]:
            each.back(now_s, cost[kind])
        refusal = None
        for place in bond.places:
            refusal = self._longer(refusal, place, now_s, cost[place.kind])
        if refusal is None:
            raise RuntimeError("a rule refused that had room")
        return refusal

    def _longer(self, refusal: Refusal | None, place: _Place, now_s: float, cost: int) -> Refusal | None:
        rule = place.rule
        wait_s = place.counter.wait_s(now_s, rule.amount, cost) if rule.hard else 0.0
        return refusal if wait_s == 0.0 else longer(refusal, Refusal(rule=rule, wait_s=wait_s))

    def _sweep(self, now_s: float) -> None:
        """Rules come and go, with keys and with reloads."""
        for rule_id in [rule_id for rule_id, each in self._counters.items() if each.idle(now_s)]:
            del self._counters[rule_id]
            self._seeds.forget(rule_id)
        self._bonds.clear()
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
