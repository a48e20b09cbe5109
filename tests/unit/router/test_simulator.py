"""The simulator of `bench/sim`: the same seed gives the same day, and no request is lost or counted twice."""

from collections.abc import Iterable
from random import Random

import pytest
import simulator
from sim import boxes, traffic
from sim.boxes import BLOCK, PrefixCache
from sim.figures import Fared, fair_shares, jain
from sim.simulation import Simulation, World
from sim.strategies import STRATEGIES, Strategy

HOURS = 0.5


def world(seed: int = 1) -> World:
    """Twenty boxes of two models, with faults, more requests than they can take in the rush."""
    plan = traffic.Plan(requests=400, hours=HOURS, mean_output=1100, rush=120)
    return World(
        asked=traffic.day(plan, Random(seed)),
        blows=boxes.blows(20, HOURS * 3600, Random(seed)),
        boxes=20,
        models=2,
        hours=HOURS,
        seed=seed,
    )


def measured(found: dict[str, float]) -> dict[str, float]:
    """All but what depends on this machine."""
    return {name: value for name, value in found.items() if name != "decisions a second"}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[strategy.name for strategy in STRATEGIES])
def test_every_request_comes_to_one_end_and_leaves_nothing_behind(strategy: Strategy) -> None:
    simulation = Simulation(world(), strategy)
    tally = simulation.run()
    assert tally.outcomes.total() == len(world().asked)
    assert len(tally.total_s) == tally.outcomes["answered"] > 0
    assert (simulation.inside, simulation.waiting) == (0, {})
    assert [box.place for box in simulation.boxes if box.outstanding or box.running or box.queue] == []
    assert {box.place % 2 for box in simulation.boxes if box.busy_s} == {0, 1}  # both models were asked


@pytest.mark.parametrize("name", ["two choices", "balanced", "prefix in regions"])
def test_a_seed_tells_the_whole_day(name: str) -> None:
    (strategy,) = (strategy for strategy in STRATEGIES if strategy.name == name)
    first, again, other = (Simulation(world(seed), strategy).run().figures() for seed in (1, 1, 2))
    assert measured(first) == measured(again)
    assert measured(first) != measured(other)


def test_the_day_that_is_simulated_is_a_whole_one_of_a_thousand_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["simulator.py"])
    arguments = simulator.parse()
    assert (arguments.instances, arguments.hours) == (1_000, 24.0)
    assert arguments.requests / arguments.instances / arguments.hours >= 10  # each has one every six minutes


def test_each_strategy_in_a_process_of_its_own_finds_what_it_finds_here(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--instances", "20", "--models", "2", "--requests", "200", "--hours", "0.5", "--processes", "2"]
    monkeypatch.setattr("sys.argv", ["simulator.py", *small])
    arguments, names = simulator.parse(), ("balanced", "prefix in regions")
    found = simulator.results(arguments, names)
    here = simulator.world_of(arguments, simulator.plan_of(arguments))
    for strategy in STRATEGIES:
        if strategy.name in names:
            assert measured(found[strategy.name]["figures"]) == measured(Simulation(here, strategy).run().figures())


def test_requests_come_in_order_and_within_the_day() -> None:
    times = [asked.at_s for asked in world().asked]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < HOURS * 3600


def test_a_cache_holds_whole_blocks_and_forgets_what_was_used_least_recently() -> None:
    cache = PrefixCache(8 * BLOCK)
    cache.keep(1, 2 * BLOCK + 3, 11, 4 * BLOCK + 9)
    assert cache.found(1, 11) == 4 * BLOCK
    assert cache.found(1, 99) == 2 * BLOCK
    cache.keep(2, 3 * BLOCK, 22, 6 * BLOCK)
    assert (cache.found(2, 22), cache.found(1, 11)) == (
        6 * BLOCK,
        2 * BLOCK,
    )  # the conversation went, not its beginning


def test_a_conversation_is_of_no_use_without_what_stands_before_it() -> None:
    cache = PrefixCache(8 * BLOCK)
    cache.keep(1, 2 * BLOCK, 11, 4 * BLOCK)
    cache.keep(2, 4 * BLOCK, 22, 8 * BLOCK)
    assert cache.found(1, 11) == 0


def test_fair_is_who_takes_nothing_from_those_who_want_less() -> None:
    assert fair_shares([10, 100, 30], 80) == [10, 40, 30]
    assert jain(tenants((10, 10), (100, 40), (30, 30))) == pytest.approx(1.0)
    assert jain(tenants((10, 5), (100, 60), (30, 15))) == pytest.approx(80 / (2.5 + 90 + 7.5))


def tenants(*each: tuple[float, float]) -> list[Fared]:
    return list(_tenants(each))


def _tenants(each: Iterable[tuple[float, float]]) -> Iterable[Fared]:
    for asked_s, got_s in each:
        tenant = Fared()
        tenant.asked_s, tenant.got_s = asked_s, got_s
        yield tenant
