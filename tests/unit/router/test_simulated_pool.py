"""A pool under load in simulated time: what the choice, the breakers and the estimates do together."""

from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import fmean

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Target
from drivetrain.router import Breaker, Roster, Speedometer, Standing, candidates

RULES = Rules()
TOKENS = 100
TIMEOUT_S = 10.0  # for the first token


class Box:
    """An engine that takes `first_s` and `rest_s` for each answer at `now_s`, or, where that is None, gives none."""

    def __init__(self, speed: Callable[[float], tuple[float, float] | None]) -> None:
        self.speed = speed
        self.breaker = Breaker(RULES)
        self.meter = Speedometer()
        self.outstanding = 0
        self.asked: list[float] = []

    def standing(self, now_s: float) -> Standing:
        return Standing(
            outstanding=self.outstanding,
            state=self.breaker.state(now_s),
            share=self.breaker.share(now_s),
            speed=self.meter.speed(now_s),
        )

    def begin(self, now_s: float) -> tuple[float, bool]:
        """When it will be over, and whether it is a trial."""
        self.outstanding += 1
        self.asked.append(now_s)
        speed = self.speed(now_s)
        return now_s + (sum(speed) if speed else TIMEOUT_S), self.breaker.began()

    def end(self, began_s: float, now_s: float, *, trial: bool) -> None:
        self.outstanding -= 1
        if (speed := self.speed(began_s)) is None:
            self.breaker.failed(now_s, trial=trial)
            self.meter.silent(now_s, waited_s=now_s - began_s)
            return
        self.breaker.succeeded(now_s, trial=trial)
        first_s, rest_s = speed
        self.meter.answered(now_s, prompt_tokens=512, first_token_s=first_s, tokens=TOKENS, rest_s=rest_s)


class Blind(Box):
    """One whose speed nobody knows."""

    def standing(self, now_s: float) -> Standing:
        return replace(super().standing(now_s), speed=None)


def standing(boxes: Mapping[str, Box], now_s: float, target: Target) -> Standing:
    return boxes[target.engine].standing(now_s)


def run(boxes: Mapping[str, Box], *, per_s: float, for_s: float, seed: int = 1) -> float:
    """Requests come at random, and nothing fails over. Returns the mean time of a request."""
    chance, order = Random(seed), count()
    roster = Roster([Target(engine=name, model="m") for name in boxes])
    running: list[tuple[float, int, str, float, bool]] = []
    waits_s: list[float] = []
    now_s = 0.0
    while now_s < for_s:
        now_s += chance.expovariate(per_s)
        while running and running[0][0] <= now_s:
            over_s, _, name, began_s, trial = heappop(running)
            boxes[name].end(began_s, over_s, trial=trial)
        decision = candidates(roster, partial(standing, boxes, now_s), chance.random)
        assert decision.first is not None
        name = decision.first.engine
        over_s, trial = boxes[name].begin(now_s)
        waits_s.append(over_s - now_s)
        heappush(running, (over_s, next(order), name, now_s, trial))
    return fmean(waits_s)


def share(boxes: Mapping[str, Box], name: str, since_s: float = 0.0, until_s: float = 1e9) -> float:
    asked = {each: sum(since_s <= at_s < until_s for at_s in box.asked) for each, box in boxes.items()}
    return asked[name] / sum(asked.values())


def steady(_: float) -> tuple[float, float]:
    return 0.3, 1.7


def slow(_: float) -> tuple[float, float]:
    return 3.0, 17.0


def broken_from_60_to_180(now_s: float) -> tuple[float, float] | None:
    return None if 60 <= now_s < 180 else (0.3, 1.7)


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_ten_times_slower_is_hardly_asked_while_the_others_are_done_sooner(seed: int) -> None:
    boxes = {"a": Box(steady), "b": Box(steady), "slow": Box(slow)}
    run(boxes, per_s=2.0, for_s=600.0, seed=seed)
    assert 0.0 < share(boxes, "slow", since_s=60.0) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_callers_of_a_mixed_pool_wait_less_than_by_load_alone(seed: int) -> None:
    mixed = {"a": Box(steady), "b": Box(steady), "slow": Box(slow)}
    blind = {"a": Blind(steady), "b": Blind(steady), "slow": Blind(slow)}
    assert run(mixed, per_s=5.0, for_s=600.0, seed=seed) < run(blind, per_s=5.0, for_s=600.0, seed=seed) / 1.5


@pytest.mark.parametrize("seed", range(3))
def test_equal_engines_get_equal_shares(seed: int) -> None:
    boxes = {name: Box(steady) for name in "abc"}
    run(boxes, per_s=5.0, for_s=600.0, seed=seed)
    assert [share(boxes, name) for name in "abc"] == pytest.approx([1 / 3] * 3, abs=0.04)


@pytest.mark.parametrize("seed", range(3))
def test_a_black_hole_takes_few_requests_and_comes_back_by_itself(seed: int) -> None:
    boxes = {"a": Box(steady), "b": Box(steady), "hole": Box(broken_from_60_to_180)}
    run(boxes, per_s=5.0, for_s=400.0, seed=seed)
    assert share(boxes, "hole", 60.0, 180.0) < 0.08
    assert share(boxes, "hole", 60.0 + 2 * TIMEOUT_S, 180.0) < 0.01  # trials only
    assert share(boxes, "hole", 330.0) > 0.25
