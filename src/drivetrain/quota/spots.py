"""Where a rule is counted in Redis, and what the scripts are told of it. Pure."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from drivetrain.governance import Rule
from drivetrain.policies import calendars
from drivetrain.quota import Demand
from drivetrain.quota.counters import rolls

RATE, SLOT, PURSE, ROLLING = 1, 2, 3, 4  # as in counts.lua
TAKEN, REFUSED, OTHER_WINDOW, UNSEEDED = 0, 1, 2, 3  # as in reserve.lua

Row = tuple[float, int, float]  # how long to wait (below 0: nobody knows), what is used, until all is free


class Spot:
    """The keys of a rule, in the window that holds now. All keys of all rules have one hash tag: they are used
    together, and a cluster keeps those on one node."""

    __slots__ = ("a", "b", "from_s", "keys", "kind", "rule", "until_s")

    def __init__(self, tag: str, rule: Rule, now_s: float) -> None:
        self.rule = rule
        self.from_s, self.until_s = -math.inf, math.inf
        self.a: float = 0
        self.b: float = 0
        self.keys: Sequence[str]
        if rule.resource == "concurrency":
            self.kind, self.keys = SLOT, (f"{tag}:slots:{rule.id}",)
        elif rule.resource != "money":
            self.kind, self.a = RATE, calendars.ROLLING_S[rule.per]
            self.keys = (f"{tag}:{rule.resource}:{rule.per}:{rule.id}",)
        elif rolls(rule):
            self.kind, self.a = ROLLING, calendars.ROLLING_S[rule.per]
            self.keys = _money(f"{tag}:rolling:{rule.per}:{rule.id}")
        else:
            self.kind = PURSE
            self.from_s, self.until_s = self.a, self.b = calendars.window(rule.per, rule.zone, now_s)
            self.b = 0 if math.isinf(self.b) else self.b
            self.keys = _money(f"{tag}:{rule.per}:{rule.zone}:{self.a:.0f}:{rule.id}")

    def fits(self, rule: Rule, now_s: float) -> bool:
        """Whether it still is where this rule is counted."""
        if not self.from_s <= now_s < self.until_s:
            return False
        mine = self.rule
        return rule is mine or (
            rule.resource == mine.resource
            and rule.per == mine.per
            and rule.zone == mine.zone
            and rule.rolling == mine.rolling
        )

    def cost(self, demand: Demand) -> int:
        if self.kind >= PURSE:
            return demand.micro_usd
        if self.kind == SLOT:
            return 1
        return demand.tokens if self.rule.resource == "tokens" else demand.requests


def _money(key: str) -> Sequence[str]:
    return key, f"{key}:held"


encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(tuple[float, int, list[Row]]).decode
