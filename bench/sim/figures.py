"""What is counted of a day, and the figures that come of it."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sim.boxes import Box
from sim.traffic import GREEDY, HOUR_S, RUSH_HOUR, RUSH_HOURS, Asked

from drivetrain.policies import prices
from drivetrain.types import Usage

if TYPE_CHECKING:
    from sim.simulation import Journey

AWAY_S = 0.15  # there and back between two regions
IDEAL_PREFILL, IDEAL_PACE_S = 1500.0, 1 / 45  # what a caller may hope for, to compare unlike requests
PARTS = 24  # of the day, in charts


class Fared:
    """What one tenant asked for and got, in seconds that it might have hoped to wait."""

    __slots__ = ("asked_s", "got_s", "many", "refused")

    def __init__(self) -> None:
        self.asked_s = self.got_s = 0.0
        self.many = self.refused = 0


class Tally:
    """Of one strategy."""

    def __init__(self, hours: float, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        self._day_s = hours * HOUR_S
        self.first_s: tuple[array[float], ...] = tuple(array("d") for _ in range(PARTS))  # by part of the day
        self.total_s = array("d")
        self.outcomes: Counter[str] = Counter()
        self.retries = 0
        self._decisions = 0
        self._decided_s = 0.0
        self._micro_usd = 0
        self._prompt = self._cached = self._near = 0
        self._rush: Mapping[str, Fared] = defaultdict(Fared)  # of the greedy tenant's class
        self._urgent = array("d")  # first tokens of interactive requests in the rush

    def decided(self, took_s: float) -> None:
        self._decisions += 1
        self._decided_s += took_s

    def lost(self, journey: Journey, outcome: str) -> None:
        """`outcome`: refused at the door, failed at every engine that was asked, or broken off."""
        asked = journey.asked
        self.outcomes[outcome] += 1
        if self._in_rush(asked):
            self._fared(asked, got=False, refused=outcome == "refused")

    def answered(self, journey: Journey, box: Box, now_s: float) -> None:
        asked = journey.asked
        self.outcomes["answered"] += 1
        near = box.region == asked.region
        away_s = 0.0 if near else AWAY_S
        first_s, total_s = journey.first_s - asked.at_s + away_s, now_s - asked.at_s + away_s
        part = min(PARTS - 1, int(asked.at_s / self._day_s * PARTS))
        self.first_s[part].append(first_s)
        self.total_s.append(total_s)
        self._near += near
        self._prompt += asked.prompt_tokens
        self._cached += journey.cached
        usage = Usage(prompt=asked.prompt_tokens, cached=journey.cached, completion=asked.output_tokens)
        self._micro_usd += prices.cost(box.kind.price, usage, total_s).micro_usd
        if self._in_rush(asked):
            self._fared(asked, got=True)
            if asked.priority == "interactive":
                self._urgent.append(first_s)

    def _fared(self, asked: Asked, *, got: bool, refused: bool = False) -> None:
        if asked.priority != "default":
            return
        ideal_s = asked.prompt_tokens / IDEAL_PREFILL + asked.output_tokens * IDEAL_PACE_S
        tenant = self._rush[asked.tenant]
        tenant.asked_s += ideal_s
        tenant.got_s += ideal_s * got
        tenant.many += 1
        tenant.refused += refused

    def _in_rush(self, asked: Asked) -> bool:
        return RUSH_HOUR <= asked.at_s / self._day_s * 24 < RUSH_HOUR + RUSH_HOURS

    def figures(self) -> dict[str, float]:
        firsts = sorted(first_s for part in self.first_s for first_s in part)
        totals = sorted(self.total_s)
        requests = self.outcomes.total()
        answered = self.outcomes["answered"] or 1
        return {
            "first token p50 s": quantile(firsts, 0.5),
            "first token p95 s": quantile(firsts, 0.95),
            "first token p99 s": quantile(firsts, 0.99),
            "whole answer p50 s": quantile(totals, 0.5),
            "whole answer p95 s": quantile(totals, 0.95),
            "$ per 1,000 requests": self._micro_usd / answered / 1000,
            "cached %": 100 * self._cached / (self._prompt or 1),
            "own region %": 100 * self._near / answered,
            "fairness in the rush": jain([*self._rush.values()]),
            "modest refused in the rush %": self._modest_refused(),
            "urgent first token p95 in the rush s": quantile(sorted(self._urgent), 0.95),
            "imbalance": self._imbalance(),
            "refused %": 100 * self.outcomes["refused"] / (requests or 1),
            "failed %": 100 * self.outcomes["failed"] / (requests or 1),
            "broken off %": 100 * self.outcomes["broken off"] / (requests or 1),
            "retries %": 100 * self.retries / (requests or 1),
            "decisions a second": self._decisions / (self._decided_s or 1.0),
        }

    def by_part(self) -> list[float]:
        """The 95th percentile of first tokens, for each part of the day."""
        return [quantile(sorted(part), 0.95) for part in self.first_s]

    def _modest_refused(self) -> float:
        """Percent, of all but the greedy tenant."""
        modest = [tenant for name, tenant in self._rush.items() if name != GREEDY]
        return 100 * sum(tenant.refused for tenant in modest) / (sum(tenant.many for tenant in modest) or 1)

    def _imbalance(self) -> float:
        """How busy the busiest instance's slots were over the mean of all."""
        busy = [box.busy_s / box.kind.slots for box in self._boxes]
        return max(busy) * len(busy) / (sum(busy) or 1.0)


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def jain(tenants: Sequence[Fared]) -> float:
    """Jain's index of what each got over its fair share of all that was got, weighted by that share: 1 where nobody
    got more at the cost of somebody who wanted it."""
    shares = fair_shares([tenant.asked_s for tenant in tenants], sum(tenant.got_s for tenant in tenants))
    spread = sum(tenant.got_s**2 / share for tenant, share in zip(tenants, shares, strict=True) if share)
    return sum(shares) / spread if spread else 1.0


def fair_shares(asked: Sequence[float], room: float) -> Sequence[float]:
    """Max-min: whoever asked for less than an equal part has all of it, and the others share what is left."""
    found = [0.0] * len(asked)
    left = len(asked)
    for place in sorted(range(len(asked)), key=asked.__getitem__):
        found[place] = min(asked[place], room / left)
        room -= found[place]
        left -= 1
    return found
