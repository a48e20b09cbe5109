"""Simulated engine instances: a few slots each, a line before them, a cache of what prompts begin with, and faults."""

from __future__ import annotations

from collections import OrderedDict, deque
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple

from sim.traffic import REGIONS

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Target
from drivetrain.governance import Price
from drivetrain.router import Breaker, Speedometer, Standing, Traits

if TYPE_CHECKING:
    from sim.simulation import Journey

MODEL = "chat"
RULES = Rules()
BLOCK = 16  # tokens; caches hold whole blocks
BATCH_COST = 0.1  # of its pace that each further request at once costs an engine
SLOW = 10.0  # times, in a slow spell

Fault = Literal["crash", "hang", "slow"]
# How often an instance has each in a day, and for how long on average.
FAULTS: dict[Fault, tuple[float, float]] = {"crash": (0.2, 900.0), "hang": (0.2, 900.0), "slow": (0.3, 3600.0)}


class Kind(NamedTuple):
    """`slots` is also its weight, as its owner would write it."""

    name: str
    share: float  # of all instances
    slots: int
    prefill: float  # tokens a second
    decode: float  # tokens a second of one answer, alone
    cache: int  # tokens
    price: Price


KINDS = (
    Kind("small", 0.5, 1, 250.0, 20.0, 24_000, Price(id="s", input=100_000, cached_input=25_000, output=400_000)),
    Kind("middle", 0.3, 2, 800.0, 30.0, 64_000, Price(id="m", input=200_000, cached_input=50_000, output=900_000)),
    Kind("large", 0.2, 4, 3000.0, 55.0, 256_000, Price(id="l", input=500_000, cached_input=125_000, output=2_000_000)),
)


class PrefixCache:
    """Least recently used first out; a conversation is of use only while its system prompt is there too."""

    __slots__ = ("_held", "_room", "_size")

    def __init__(self, size: int) -> None:
        self._size = self._room = size
        self._held: OrderedDict[int, int] = OrderedDict()  # beginning → tokens of it, in whole blocks

    def clear(self) -> None:
        self._held.clear()
        self._room = self._size

    def found(self, shared: int, own: int) -> int:
        """Tokens that need not be read again."""
        held = self._held
        if shared not in held:
            return 0
        return held[shared] + held.get(own, 0)

    def keep(self, shared: int, shared_tokens: int, own: int, tokens: int) -> None:
        self._put(own, tokens - shared_tokens)
        self._put(shared, shared_tokens)

    def _put(self, key: int, tokens: int) -> None:
        self._room += self._held.pop(key, 0)
        blocks = tokens // BLOCK * BLOCK
        if blocks > self._size:
            return
        while blocks > self._room:
            self._room += self._held.popitem(last=False)[1]
        self._held[key] = blocks
        self._room -= blocks


class Box:
    """One instance. What the router knows of it is kept by the router's own breaker and measures."""

    __slots__ = (
        "breaker",
        "busy_s",
        "cache",
        "faults",
        "hung",
        "kind",
        "meter",
        "outstanding",
        "place",
        "queue",
        "ready",
        "region",
        "running",
        "slow",
        "target",
        "traits",
        "trials",
        "up",
    )

    def __init__(self, place: int, kind: Kind, region: str) -> None:
        self.place = place
        self.kind = kind
        self.region = region
        self.traits = Traits(region=region)
        self.target = Target(engine=f"box-{place}", model=MODEL, weight=kind.slots)
        self.cache = PrefixCache(kind.cache)
        self.breaker = Breaker(RULES)
        self.meter = Speedometer()
        self.outstanding = 0
        self.queue: deque[Journey] = deque()
        self.running: set[Journey] = set()
        self.trials: list[Journey] = []
        self.busy_s = 0.0  # of its slots, summed up
        self.ready = True  # its last probe said so
        self.up, self.hung, self.slow = True, False, False

    def standing(self, now_s: float) -> Standing:
        """As the gateway's pool tells it."""
        if self.trials:
            self._prove(now_s)
        breaker = self.breaker
        return Standing(
            ready=self.ready,
            outstanding=self.outstanding,
            state=breaker.state(now_s),
            share=1.0 if breaker.whole_s < now_s else breaker.share(now_s),
            speed=self.meter.speed(now_s),
        )

    def _prove(self, now_s: float) -> None:
        """A trial that has begun to answer has succeeded."""
        for journey in self.trials:
            if journey.begun and journey.first_s <= now_s:
                self.trials.remove(journey)
                self.breaker.succeeded(now_s, trial=True)
                return

    def begins(self, journey: Journey) -> None:
        self.outstanding += 1
        self.meter.began()
        if self.breaker.began():
            self.trials.append(journey)

    def ends(self, journey: Journey, now_s: float, *, worked: bool) -> None:
        self.outstanding -= 1
        trial = False
        if self.trials:
            self._prove(now_s)
            if trial := journey in self.trials:
                self.trials.remove(journey)
        if worked:
            self.breaker.succeeded(now_s, trial=trial)
            self._measure(journey, now_s)
        else:
            self.breaker.failed(now_s, trial=trial)
            if not journey.begun or journey.first_s > now_s:
                self.meter.silent(now_s, waited_s=now_s - journey.sent_s)
        self.meter.ended(now_s)

    def _measure(self, journey: Journey, now_s: float) -> None:
        asked = journey.asked
        self.meter.answered(
            now_s,
            prompt_tokens=asked.prompt_tokens - journey.cached,
            first_token_s=journey.first_s - journey.sent_s,
            tokens=asked.output_tokens,
            rest_s=now_s - journey.first_s,
        )

    def run(self, journey: Journey, now_s: float) -> None:
        """It has a slot: how long it takes is settled by what else runs here at this moment."""
        asked, kind = journey.asked, self.kind
        self.running.add(journey)
        slower = (SLOW if self.slow else 1.0) * (1 + BATCH_COST * (len(self.running) - 1))
        journey.cached = min(self.cache.found(asked.shared, asked.own), asked.prompt_tokens - 1)
        self.cache.keep(asked.shared, asked.shared_tokens, asked.own, asked.prompt_tokens)
        pace_s = slower / kind.decode
        journey.begun = True
        journey.began_s = now_s
        journey.first_s = now_s + slower * (asked.prompt_tokens - journey.cached) / kind.prefill + pace_s
        journey.end_s = journey.first_s + pace_s * (asked.output_tokens - 1)

    def forget(self, journey: Journey, now_s: float) -> None:
        """It has left this instance, whatever came of it."""
        if journey in self.running:
            self.running.remove(journey)
            self.busy_s += now_s - journey.began_s
        else:
            self.queue.remove(journey)


def boxes_of(many: int) -> list[Box]:
    """Each kind in each region, about as often as the shares say; always the same."""
    chance = Random(many)
    kinds = chance.choices(KINDS, [kind.share for kind in KINDS], k=many)
    regions = chance.choices(list(REGIONS), [share for share, _ in REGIONS.values()], k=many)
    return [Box(place, *each) for place, each in enumerate(zip(kinds, regions, strict=True))]


def pace(boxes: list[Box]) -> float:
    """Tokens a second of all slots at work, as if nothing but answers had to be computed."""
    return sum(box.kind.slots * box.kind.decode / (1 + BATCH_COST * (box.kind.slots - 1)) for box in boxes)


class Blow(NamedTuple):
    """A fault of one instance, and when it is over."""

    at_s: float
    until_s: float
    place: int
    fault: Fault


def blows(many: int, day_s: float, chance: Random) -> list[Blow]:
    """No two overlap at one instance."""
    found: list[Blow] = []
    for place in range(many):
        free_s = 0.0
        times = sorted(
            (chance.random() * day_s, fault) for fault, (rate, _) in FAULTS.items() for _ in range(_times(rate, chance))
        )
        for at_s, fault in times:
            if at_s < free_s:
                continue
            free_s = at_s + 1 + chance.expovariate(1 / FAULTS[fault][1]) * day_s / 86_400
            found.append(Blow(at_s, free_s, place, fault))
    return sorted(found)


def _times(rate: float, chance: Random) -> int:
    """Whole times, `rate` on average."""
    return int(rate) + (chance.random() < rate % 1)
