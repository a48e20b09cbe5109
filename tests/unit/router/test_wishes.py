"""What a policy wants beside load and speed: rules, goals, prices, one's own region; and what a request needs."""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Goal, Routing, RoutingRule, Target, When
from drivetrain.router import (
    ORDINARY,
    Decision,
    Facts,
    Roster,
    Speed,
    Standing,
    Terms,
    Traits,
    Wish,
    Work,
    candidates,
    wish,
)
from drivetrain.router.wish import fits
from tests.unit.router.test_choice import AWAY, FAST, OPEN, RESTING, SLOW, targets

NOTHING = Wish()


def decide(
    among: list[Target],
    known: Mapping[str, Standing] = {},
    *,
    want: Wish = NOTHING,
    traits: Mapping[str, Traits] = {},
    prices: Mapping[str, float] = {},
    seed: int = 0,
    **facts: Any,
) -> Decision:
    roster = Roster(among, lambda target: traits.get(target.engine, ORDINARY))
    terms = Terms(want, lambda target: prices.get(target.engine, 0.0), lambda some: Work(0, 1, 1.0))
    return candidates(
        roster, lambda target: known.get(target.engine, Standing()), Random(seed).random, Facts(**facts), terms
    )


def firsts(among: list[Target], known: Mapping[str, Standing] = {}, *, times: int = 300, **more: Any) -> Counter[str]:
    found = [decide(among, known, seed=seed, **more).first for seed in range(times)]
    return Counter(first.engine for first in found if first)


def names(decision: Decision) -> list[str]:
    return [candidate.engine for candidate in decision.order]


def told(decision: Decision) -> dict[str, str]:
    return {each.engine: each.why for each in decision.considered}


# --- what a request needs ---------------------------------------------------------------------------------------------

CAN_ALL = Traits(capabilities=frozenset({"completion", "tools", "vision"}), context=8192)
CAN_TALK = Traits(capabilities=frozenset({"completion"}), context=2048)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"tools": True}, "its model has no tools"),
        ({"images": True}, "its model sees no images"),
        ({"prompt_tokens": 2000, "limit": 49}, "its context of 2048 tokens is too short"),
    ],
)
def test_a_model_that_lacks_what_a_request_needs_is_asked_last_and_the_record_says_why(
    needs: dict[str, Any], words: str
) -> None:
    among, traits = [*targets("talker"), *targets("able", tier=1)], {"talker": CAN_TALK, "able": CAN_ALL}
    decision = decide(among, traits=traits, **needs)
    assert names(decision) == ["able", "talker"]
    assert told(decision)["talker"] == f"tier 0, {words}, last resort"
    assert firsts(among, traits=traits) == {"talker": 300}  # what needs nothing of it stays in its tier


def test_of_what_a_model_can_do_nothing_is_held_against_it_where_nobody_tells() -> None:
    among = [*targets("silent"), *targets("able", tier=1)]
    assert firsts(among, traits={"able": CAN_ALL}, tools=True, images=True, prompt_tokens=100_000) == {"silent": 300}


def test_if_all_lack_it_the_request_goes_out_all_the_same() -> None:
    among = targets("a", "b")
    assert names(decide(among, traits={"a": CAN_TALK, "b": CAN_TALK}, tools=True)) == ["a", "b"]


def test_an_engine_that_is_away_is_asked_before_one_whose_model_cannot_do_it() -> None:
    known = {"away": AWAY, "resting": RESTING, "open": OPEN}
    among = targets("talker", "away", "resting", "open")
    assert names(decide(among, known, traits={"talker": CAN_TALK}, tools=True))[-1] == "talker"


def test_an_engine_that_would_take_longer_than_the_caller_waits_is_asked_last() -> None:
    known = {"slow": Standing(speed=SLOW), "fast": Standing(speed=FAST, outstanding=100)}
    decision = decide(targets("slow", "fast"), known, deadline_s=5.0, prompt_tokens=244, output_tokens=50)
    assert names(decision) == ["fast", "slow"]
    assert told(decision)["slow"] == "tier 0, 10 s is more than there is time for, last resort"


# --- rules ------------------------------------------------------------------------------------------------------------

BIG = Routing(rules=(RoutingRule(when=When(prompt_tokens_over=4000), engines=("big",)),))


def test_a_rule_sends_a_long_prompt_to_the_engine_that_it_names_whatever_its_tier() -> None:
    among = [*targets("small", "other"), *targets("big", tier=2)]
    long, short = Facts(prompt_tokens=4001), Facts(prompt_tokens=4000)
    assert firsts(among, want=wish(BIG, long), prompt_tokens=4001) == {"big": 300}
    assert firsts(among, want=wish(BIG, short), prompt_tokens=4000)["big"] == 0


def test_the_others_come_after_it_tier_by_tier() -> None:
    among = [*targets("spare", tier=1), *targets("small"), *targets("big", tier=2)]
    decision = decide(among, want=wish(BIG, Facts(prompt_tokens=9000)), prompt_tokens=9000)
    assert names(decision) == ["big", "small", "spare"]
    assert [each.why for each in decision.considered] == [
        "rule 1, tier 2, load 0",
        "tier 0, next by load 0",
        "tier 1, next by load 0",
    ]


def test_while_it_is_away_the_others_answer() -> None:
    among = [*targets("small"), *targets("big", tier=2)]
    assert firsts(among, {"big": AWAY}, want=wish(BIG, Facts(prompt_tokens=9000))) == {"small": 300}


def test_a_name_means_the_instances_that_were_discovered_under_it_too() -> None:
    among = targets("big@10.0.0.5:8000", "big@10.0.0.6:8000", "bigger")
    assert set(firsts(among, want=Wish(engines=("big",), rule=1))) == {"big@10.0.0.5:8000", "big@10.0.0.6:8000"}


def test_a_rule_may_prefer_a_tier_or_set_a_goal_only() -> None:
    routing = Routing(
        rules=(
            RoutingRule(when=When(priority=("bulk",)), tier=1, goal="cost"),
            RoutingRule(when=When(schema=True), goal="throughput"),
        )
    )
    assert wish(routing, Facts(priority="bulk", schema=True)) == Wish(goal="cost", tier=1, rule=1)
    assert wish(routing, Facts(schema=True)) == Wish(goal="throughput", rule=2)
    assert wish(routing, Facts()) == Wish()
    among = [*targets("a"), *targets("b", tier=1)]
    assert firsts(among, want=Wish(tier=1, rule=1)) == {"b": 300}


@pytest.mark.parametrize(
    ("when", "facts", "holds"),
    [
        (When(), Facts(), True),
        (When(prompt_tokens_over=100, prompt_tokens_under=200), Facts(prompt_tokens=150), True),
        (When(prompt_tokens_over=100, prompt_tokens_under=200), Facts(prompt_tokens=200), False),
        (When(output_tokens_over=500), Facts(limit=501), True),
        (When(output_tokens_over=500), Facts(limit=0), False),  # it names none
        (When(tools=True), Facts(tools=True), True),
        (When(tools=False), Facts(tools=True), False),
        (When(images=True, schema=True), Facts(images=True), False),
        (When(priority=("system", "interactive")), Facts(priority="interactive"), True),
        (When(priority=("bulk",)), Facts(), False),
        (When(deadline_under_s=5.0), Facts(deadline_s=4.0), True),
        (When(deadline_under_s=5.0), Facts(deadline_s=5.0), False),
        (When(deadline_under_s=5.0), Facts(), False),
    ],
)
def test_a_rule_is_for_requests_of_which_all_that_it_says_is_true(when: When, facts: Facts, holds: bool) -> None:
    assert fits(when, facts) is holds


# --- goals ------------------------------------------------------------------------------------------------------------

READER, WRITER = Speed(prompt_s=0.0001, token_s=0.1), Speed(prompt_s=0.001, token_s=0.01)


def test_latency_looks_at_the_first_tokens_and_throughput_at_the_pace() -> None:
    known = {"reader": Standing(speed=READER), "writer": Standing(speed=WRITER)}
    among, long = targets("reader", "writer"), {"prompt_tokens": 8000, "output_tokens": 1000}
    assert firsts(among, known, want=Wish(goal="latency"), **long) == {"reader": 300}
    assert firsts(among, known, want=Wish(goal="throughput"), **long) == {"writer": 300}
    assert firsts(among, known, **long) == {"writer": 300}  # balanced: the whole answer


def test_latency_finds_the_fastest_of_many_and_leaves_it_when_it_has_its_hands_full() -> None:
    known = {f"e{n}": Standing(speed=Speed(prompt_s=0.001 * (n + 1), token_s=0.01)) for n in range(6)}
    among = targets(*known)
    assert firsts(among, known, want=Wish(goal="latency"), prompt_tokens=4000) == {"e0": 300}
    busy = known | {"e0": Standing(speed=known["e0"].speed, outstanding=3)}
    assert firsts(among, busy, want=Wish(goal="latency"), prompt_tokens=4000) == {"e1": 300}


def test_an_engine_that_is_not_measured_yet_counts_as_the_fastest_one_known() -> None:
    known = {"known": Standing(speed=FAST, outstanding=1), "new": Standing()}
    for goal in ("latency", "throughput"):
        assert firsts(targets("known", "new"), known, want=Wish(goal=goal)) == {"new": 300}


def test_an_engine_on_trial_gets_one_whatever_the_goal() -> None:
    known = {"back": Standing(state="trial"), "fast": Standing(speed=FAST)}
    goals: tuple[Goal, ...] = ("latency", "throughput", "cost")
    for goal in goals:
        decision = decide(targets("back", "fast"), known, want=Wish(goal=goal))
        assert decision.first is not None
        assert (decision.first.engine, decision.first.why) == ("back", "tier 0, trial after failures")


# --- prices -----------------------------------------------------------------------------------------------------------

COST = Wish(goal="cost")


def test_a_price_twice_as_low_gets_four_times_as_many_requests() -> None:
    found = firsts(targets("cheap", "dear"), want=COST, prices={"cheap": 100.0, "dear": 200.0}, times=4000)
    assert 3.4 < found["cheap"] / found["dear"] < 4.8


def test_weights_still_count_among_equal_prices() -> None:
    among = [*targets("big", weight=3), *targets("small")]
    found = firsts(among, want=COST, prices={"big": 50.0, "small": 50.0}, times=4000)
    assert 0.70 < found["big"] / 4000 < 0.80


def test_an_engine_that_costs_nothing_gets_nearly_all() -> None:
    found = firsts(targets("own", "api"), want=COST, prices={"api": 300.0}, times=4000)
    assert found["own"] > 3900


def test_the_cheap_one_gives_some_up_when_it_is_much_slower_or_has_much_to_do() -> None:
    among, prices = targets("cheap", "dear"), {"cheap": 100.0, "dear": 200.0}
    idle = {"cheap": Standing(speed=FAST), "dear": Standing(speed=FAST)}
    busy = idle | {"cheap": Standing(speed=FAST, outstanding=30)}
    shares = [firsts(among, known, want=COST, prices=prices, times=1000)["dear"] for known in (idle, busy)]
    assert shares[0] < 300
    assert shares[1] > 900


def test_work_in_hand_is_shared_out_as_the_prices_say() -> None:
    """At four to one the next one may go to either; below that, to the cheap one."""
    among, prices = targets("cheap", "dear"), {"cheap": 100.0, "dear": 200.0}
    known = {"cheap": Standing(outstanding=3), "dear": Standing(outstanding=1)}
    assert firsts(among, known, want=COST, prices=prices)["dear"] < 40


def test_the_record_tells_what_a_request_would_cost() -> None:
    decision = decide(targets("cheap", "dear"), want=COST, prices={"cheap": 120.0, "dear": 900.0}, seed=1)
    assert {each.engine: each.micro_usd for each in decision.considered} == {"cheap": 120.0, "dear": 900.0}
    assert decision.first is not None
    assert decision.first.why == "tier 0, $0.00012 expected, load 0"


# --- regions ----------------------------------------------------------------------------------------------------------

HERE, THERE = Traits(region="eu"), Traits(region="us")
WORLD = {"eu-1": HERE, "eu-2": HERE, "us-1": THERE, "us-2": THERE}


def test_engines_of_the_own_region_go_first() -> None:
    assert set(firsts(targets(*WORLD), traits=WORLD, region="eu")) == {"eu-1", "eu-2"}
    assert set(firsts(targets(*WORLD), traits=WORLD, region="us")) == {"us-1", "us-2"}
    assert set(firsts(targets(*WORLD), traits=WORLD)) == set(WORLD)
    assert set(firsts(targets(*WORLD), traits=WORLD, region="mars")) == set(WORLD)


def test_work_spills_over_when_the_own_region_has_more_than_twice_as_much_in_hand() -> None:
    known = {"eu-1": Standing(outstanding=3), "eu-2": Standing(outstanding=3), "us-1": Standing(outstanding=1)}
    known["us-2"] = known["us-1"]
    assert set(firsts(targets(*WORLD), known, traits=WORLD, region="eu")) == {"eu-1", "eu-2"}
    more = known | {"eu-1": Standing(outstanding=4), "eu-2": Standing(outstanding=4)}
    assert set(firsts(targets(*WORLD), more, traits=WORLD, region="eu")) == {"us-1", "us-2"}
    decision = decide(targets(*WORLD), more, traits=WORLD, region="eu")
    assert decision.first is not None
    assert decision.first.why == "tier 0, load 1, spilled over to region us"


def test_work_spills_over_to_a_region_that_is_much_faster_all_its_way_included() -> None:
    known = {name: Standing(speed=SLOW if name.startswith("eu") else FAST) for name in WORLD}
    assert set(firsts(targets(*WORLD), known, traits=WORLD, region="eu")) == {"us-1", "us-2"}
    patient = Wish(spill_factor=20.0)
    assert set(firsts(targets(*WORLD), known, traits=WORLD, region="eu", want=patient)) == {"eu-1", "eu-2"}


@pytest.mark.parametrize("lost", [AWAY, OPEN, RESTING])
def test_a_region_that_is_lost_is_left_at_once_and_asked_last(lost: Standing) -> None:
    known = {"eu-1": lost, "eu-2": lost}
    assert set(firsts(targets(*WORLD), known, traits=WORLD, region="eu")) == {"us-1", "us-2"}
    decision = decide(targets(*WORLD), known, traits=WORLD, region="eu")
    assert decision.first is not None
    assert decision.first.why == "tier 0, load 0, nobody in region eu is able"
    assert set(names(decision)[2:]) == {"eu-1", "eu-2"}


def test_after_a_failure_the_other_engine_of_the_region_is_next() -> None:
    for seed in range(20):
        found = names(decide(targets(*WORLD), traits=WORLD, region="eu", seed=seed))
        assert set(found[:2]) == {"eu-1", "eu-2"}


def test_a_tier_counts_more_than_a_region() -> None:
    among = [*targets("us-1"), *targets("eu-1", tier=1)]
    assert firsts(among, traits=WORLD, region="eu") == {"us-1": 300}


# --- properties -------------------------------------------------------------------------------------------------------

STANDINGS = st.builds(
    Standing,
    ready=st.booleans(),
    outstanding=st.integers(0, 20),
    state=st.sampled_from(["closed", "open", "trial", "trying"]),
    wait_s=st.sampled_from([0.0, 0.0, 3.0]),
    share=st.floats(0.05, 1.0),
    speed=st.none() | st.builds(Speed, prompt_s=st.floats(0.0, 1.0), token_s=st.floats(0.0, 1.0)),
)
TRAITS = st.builds(
    Traits,
    capabilities=st.sampled_from([frozenset(), frozenset({"completion"}), frozenset({"completion", "tools"})]),
    context=st.sampled_from([None, 100, 10_000]),
    region=st.sampled_from(["", "eu", "us"]),
)
ROWS = st.lists(st.tuples(STANDINGS, TRAITS, st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=9)
WISHES = st.builds(
    Wish,
    goal=st.sampled_from(["balanced", "latency", "throughput", "cost"]),
    engines=st.sampled_from([(), ("e0",), ("e1", "e2")]),
    tier=st.sampled_from([None, None, 1]),
    rule=st.just(1),
    affinity=st.sampled_from(["none", "prefix", "session"]),
)
FACTS = st.builds(
    Facts,
    tools=st.booleans(),
    region=st.sampled_from(["", "eu", "us"]),
    own=st.integers(0, 2**64 - 1),
    shared=st.integers(0, 2**64 - 1),
    deadline_s=st.none() | st.floats(0.1, 100.0),
)


@given(ROWS, WISHES, FACTS, st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_whatever_is_wanted_everybody_in_rotation_is_asked_once_and_the_fit_and_able_ones_go_first(
    rows: list[tuple[Standing, Traits, int, int]], want: Wish, facts: Facts, share: float, seed: int
) -> None:
    among = [Target(engine=f"e{n}", model="m", weight=row[2], tier=row[3]) for n, row in enumerate(rows)]
    known = {target.engine: row for target, row in zip(among, rows, strict=True)}

    def standing(target: Target) -> Standing:
        return known[target.engine][0]

    def traits(target: Target) -> Traits:
        return known[target.engine][1]

    terms = Terms(want, lambda target: 7.0, lambda some: Work(3, 2, 1.0), share)
    decision = candidates(Roster(among, traits), standing, Random(seed).random, facts, terms)
    assert sorted(names(decision)) == sorted(target.engine for target in among if target.weight)
    assert [each.engine for each in decision.considered if each.position] == names(decision)
    if decision.first is not None and any(
        fit(row, facts) for target, row in zip(among, rows, strict=True) if target.weight
    ):
        first = known[decision.first.engine]
        assert fit(first, facts) or first[0].state in ("open", "trying")  # most of its rank fails


def fit(row: tuple[Standing, Traits, int, int], facts: Facts) -> bool:
    standing, traits = row[:2]
    late = standing.speed is not None and standing.speed.expected_s(512, 256) > (facts.deadline_s or 1e9)
    context = traits.context is None or traits.context >= facts.prompt_tokens
    return standing.able and context and not late and not (facts.tools and traits.capabilities == {"completion"})


# --- what is not known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("goal", "speed", "why"),
    [
        ("throughput", None, "tier 0, pace not measured yet, load 0"),
        ("throughput", Speed(prompt_s=0.001, token_s=0.0), "tier 0, pace not measured yet, load 0"),
        ("throughput", FAST, "tier 0, 0.01 s for a token, load 0"),
        ("latency", None, "tier 0, first token not measured yet, load 0"),
        ("latency", Speed(prompt_s=0.001, token_s=0.0), "tier 0, begins in 0.768 s, load 0"),
    ],
)
def test_a_reason_has_no_number_that_nobody_measured(goal: Goal, speed: Speed | None, why: str) -> None:
    known = {"a": Standing(speed=speed), "b": Standing(speed=speed, outstanding=9)}
    decision = decide(targets("a", "b"), known, want=Wish(goal=goal))
    assert decision.first is not None
    assert decision.first.why == why
