"""The choice among engines that differ: in speed, in health, in what their breakers say. And the record of it."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Target
from drivetrain.router import USUAL, Decision, Facts, Roster, Speed, Standing, candidates

OPEN, TRIAL, TRYING = (Standing(state=state) for state in ("open", "trial", "trying"))
AWAY, RESTING = Standing(ready=False), Standing(wait_s=2.5)
FAST = Speed(prompt_s=0.001, token_s=0.01)
SLOW = Speed(prompt_s=0.01, token_s=0.1)


def targets(*names: str, **members: Any) -> list[Target]:
    return [Target(engine=name, model="m", **members) for name in names]


def decide(among: list[Target], known: Mapping[str, Standing], *, seed: int = 0, facts: Facts = USUAL) -> Decision:
    return candidates(Roster(among), lambda target: known.get(target.engine, Standing()), Random(seed).random, facts)


def names(decision: Decision) -> list[str]:
    return [candidate.engine for candidate in decision.order]


def firsts(among: list[Target], known: Mapping[str, Standing], *, times: int = 1000, **facts: Any) -> Counter[str]:
    found = [decide(among, known, seed=seed, facts=Facts(**facts)).first for seed in range(times)]
    return Counter(first.engine for first in found if first)


# --- speed ------------------------------------------------------------------------------------------------------------


def test_of_two_idle_engines_of_unlike_speed_the_faster_one_always_goes_first() -> None:
    known = {"fast": Standing(speed=FAST), "slow": Standing(speed=SLOW)}
    assert firsts(targets("fast", "slow"), known) == {"fast": 1000}


def test_the_slower_one_goes_first_once_the_faster_one_has_more_in_hand_than_it_is_faster() -> None:
    among = targets("fast", "slow")
    assert firsts(among, {"fast": Standing(speed=FAST, outstanding=8), "slow": Standing(speed=SLOW)}) == {"fast": 1000}
    assert firsts(among, {"fast": Standing(speed=FAST, outstanding=10), "slow": Standing(speed=SLOW)}) == {"slow": 1000}


def test_a_long_prompt_and_a_long_answer_go_to_different_engines() -> None:
    reader, writer = Speed(prompt_s=0.0001, token_s=0.1), Speed(prompt_s=0.01, token_s=0.01)
    known = {"reader": Standing(speed=reader), "writer": Standing(speed=writer)}
    among = targets("reader", "writer")
    assert firsts(among, known, prompt_tokens=8000, output_tokens=10) == {"reader": 1000}
    assert firsts(among, known, prompt_tokens=10, output_tokens=2000) == {"writer": 1000}


def test_engines_whose_times_are_within_half_are_equals_and_keep_the_shares_of_their_weights() -> None:
    known = {
        "big": Standing(speed=Speed(prompt_s=0.0014, token_s=0.014), outstanding=3),
        "small": Standing(speed=FAST, outstanding=1),
    }
    among = [*targets("big", weight=3), *targets("small")]
    assert 0.70 < firsts(among, known, times=4000)["big"] / 4000 < 0.80


def test_an_engine_that_is_not_measured_yet_is_compared_by_load() -> None:
    known = {"slow": Standing(speed=SLOW, outstanding=1), "new": Standing()}
    assert firsts(targets("slow", "new"), known)["new"] > 700


# --- health -----------------------------------------------------------------------------------------------------------


def test_an_engine_whose_breaker_is_open_comes_after_all_that_are_able() -> None:
    among = targets("a", "b", "c")
    for state in (OPEN, TRYING):
        assert {tuple(names(decide(among, {"a": state}, seed=seed))[2:]) for seed in range(50)} == {("a",)}


def test_an_engine_on_trial_gets_its_request_when_it_is_drawn() -> None:
    known = {"back": TRIAL, "busy": Standing(outstanding=3), "idle": Standing()}
    assert 450 < firsts(targets("back", "busy", "idle"), known)["back"] < 650  # five of nine pairs have it


def test_an_engine_that_asked_to_be_left_alone_is_the_very_last() -> None:
    known = {"resting": RESTING, "open": OPEN, "away": AWAY}
    among = targets("resting", "open", "away", "x", "y", "z")
    assert names(decide(among, known))[3:] == ["open", "away", "resting"]


def test_a_breaker_never_sets_aside_most_of_a_tier() -> None:
    among = targets("a", "b", "c")
    found = firsts(among, {"a": OPEN, "b": OPEN})
    assert set(found) == {"a", "b", "c"}
    assert "most of the tier fails" in str(decide(among, {"a": OPEN, "b": OPEN, "c": OPEN}).first)


def test_half_of_a_tier_may_be_set_aside() -> None:
    assert firsts(targets("a", "b"), {"a": OPEN}) == {"b": 1000}


def test_all_of_a_tier_may_be_set_aside_where_a_higher_one_can_answer() -> None:
    among = [*targets("a", "b"), *targets("spare", tier=1)]
    decision = decide(among, {"a": OPEN, "b": OPEN})
    assert names(decision)[0] == "spare"
    assert firsts(among, {"a": OPEN, "b": OPEN, "spare": AWAY})["spare"] == 0


def test_an_engine_that_is_away_is_no_reason_to_ask_one_that_is_set_aside() -> None:
    assert firsts(targets("a", "b", "c", "d"), {"a": AWAY, "b": AWAY, "c": OPEN}) == {"d": 1000}


def test_an_engine_that_warms_up_counts_as_loaded() -> None:
    known = {"cold": Standing(share=0.1), "warm": Standing(outstanding=8)}
    among = targets("cold", "warm")
    assert 200 < firsts(among, known)["cold"] < 300  # only if both draws fall on it
    assert firsts(among, {**known, "warm": Standing(outstanding=10)})["cold"] > 700


# --- the record -------------------------------------------------------------------------------------------------------


def test_the_record_has_every_target_with_its_state_and_reason() -> None:
    among = [*targets("a", "b", "c", "d"), *targets("spare", tier=1), *targets("off", weight=0)]
    known = {"a": Standing(outstanding=2), "b": OPEN, "c": AWAY, "d": RESTING}
    found = decide(among, known).considered
    assert [(each.engine, each.position, each.state, each.why) for each in found] == [
        ("a", 1, "able", "tier 0, load 2"),
        ("spare", 2, "able", "tier 1, next by load 0"),
        ("b", 3, "open", "tier 0, set aside after failures, last resort"),
        ("c", 4, "away", "tier 0, not ready, last resort"),
        ("d", 5, "resting", "tier 0, asked not to be asked, last resort"),
        ("off", None, "able", "weight 0, out of rotation"),
    ]


def test_the_record_says_what_else_is_known_of_an_engine_and_tells_a_drained_one_from_one_without_weight() -> None:
    notes = {"a": "asleep", "b": "down: refused", "drained": "drained"}
    among = [*targets("a", "b"), *targets("drained", "off", weight=0)]
    roster = Roster(among, note=lambda target: notes.get(target.engine, ""))
    known = {"b": AWAY, "drained": AWAY}
    found = candidates(roster, lambda target: known.get(target.engine, Standing()), Random(0).random).considered
    assert [(each.engine, each.why) for each in found] == [
        ("a", "tier 0, load 0 (asleep)"),
        ("b", "tier 0, not ready, last resort (down: refused)"),
        ("drained", "drained, out of rotation"),
        ("off", "weight 0, out of rotation"),
    ]


def test_the_record_tells_expected_times_and_scores() -> None:
    known = {"fast": Standing(speed=FAST, outstanding=1), "slow": Standing(speed=SLOW)}
    found = decide(targets("fast", "slow"), known, facts=Facts(prompt_tokens=744, output_tokens=100)).considered
    assert [each.engine for each in found] == ["fast", "slow"]
    assert [each.expected_s for each in found] == pytest.approx([2.0, 20.0])
    assert [each.score for each in found] == pytest.approx([4.0, 20.0])
    assert found[0].why == "tier 0, done in 4 s, load 1"


def test_a_single_target_is_looked_at_for_the_record_only() -> None:
    looked: list[str] = []

    def standing(target: Target) -> Standing:
        looked.append(target.engine)
        return OPEN

    decision = candidates(Roster(targets("only")), standing, Random(0).random)
    assert (names(decision), looked) == (["only"], [])
    assert [(each.position, each.state, each.why) for each in decision.considered] == [(1, "open", "only target")]


def test_a_choice_among_many_looks_at_two() -> None:
    looked: list[str] = []

    def standing(target: Target) -> Standing:
        looked.append(target.engine)
        return Standing()

    assert candidates(Roster(targets(*map(str, range(100)))), standing, Random(1).random).first is not None
    assert len(looked) == 2


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
ROWS = st.lists(st.tuples(STANDINGS, st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=9)


def pool(rows: list[tuple[Standing, int, int]]) -> tuple[list[Target], Callable[[Target], Standing]]:
    among = [Target(engine=f"e{n}", model="m", weight=weight, tier=tier) for n, (_, weight, tier) in enumerate(rows)]
    known = {target.engine: row[0] for target, row in zip(among, rows, strict=True)}
    return among, lambda target: known[target.engine]


@given(ROWS, st.integers(0, 2**32))
def test_everybody_in_rotation_is_asked_once_and_everybody_is_on_record(
    rows: list[tuple[Standing, int, int]], seed: int
) -> None:
    among, standing = pool(rows)
    decision = candidates(Roster(among), standing, Random(seed).random)
    assert sorted(names(decision)) == sorted(target.engine for target in among if target.weight)
    assert [each.engine for each in decision.considered if each.position] == names(decision)
    assert sorted(each.engine for each in decision.considered) == sorted(target.engine for target in among)


@given(ROWS, st.integers(0, 2**32))
def test_whoever_goes_first_is_able_if_anybody_is_or_most_of_its_tier_fails(
    rows: list[tuple[Standing, int, int]], seed: int
) -> None:
    among, standing = pool(rows)
    decision = candidates(Roster(among), standing, Random(seed).random)
    in_rotation = [target for target in among if target.weight]
    if decision.first is None or not any(standing(target).able for target in in_rotation):
        return
    first = next(target for target in among if target.engine == decision.first.engine)
    tier = [t for t in in_rotation if t.tier == first.tier and standing(t).ready and not standing(t).wait_s]
    assert first in tier
    assert standing(first).able or 2 * sum(standing(target).able for target in tier) < len(tier)


@given(ROWS, st.integers(0, 2**32))
def test_the_same_chance_makes_the_same_choice(rows: list[tuple[Standing, int, int]], seed: int) -> None:
    among, standing = pool(rows)
    one, two = (candidates(Roster(among), standing, Random(seed).random) for _ in range(2))
    assert one.considered == two.considered
