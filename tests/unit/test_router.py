"""The choice among equal engines: by tier, by weight, by load, with the unready ones last."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Target
from drivetrain.router import UNKNOWN, Candidate, Roster, Standing, candidates

READY, AWAY = Standing(), Standing(ready=False)


def target(engine: str, *, weight: int = 1, tier: int = 0) -> Target:
    return Target(engine=engine, model="m", weight=weight, tier=tier)


def chosen(targets: list[Target], standings: dict[str, Standing], seed: int = 0) -> list[Candidate]:
    known = {each.engine: standings.get(each.engine, UNKNOWN) for each in targets}
    return list(candidates(Roster(targets), lambda each: known[each.engine], Random(seed).random).order)


def names(targets: list[Target], standings: dict[str, Standing], seed: int = 0) -> list[str]:
    return [candidate.engine for candidate in chosen(targets, standings, seed)]


def test_a_single_target_is_the_only_candidate_even_if_it_is_away() -> None:
    assert names([target("a")], {"a": AWAY}) == ["a"]


def test_an_engine_that_is_away_comes_after_all_that_are_ready() -> None:
    assert names([target("a"), target("b"), target("c")], {"a": AWAY, "b": READY, "c": READY})[-1] == "a"


def test_a_pool_whose_engines_are_all_away_is_tried_all_the_same() -> None:
    assert sorted(names([target("a"), target("b")], {"a": AWAY, "b": AWAY})) == ["a", "b"]


def test_a_higher_tier_comes_after_the_whole_lower_one() -> None:
    targets = [target("spare", tier=1), target("a"), target("b")]
    assert names(targets, {"spare": READY, "a": READY, "b": READY})[-1] == "spare"


def test_an_engine_that_is_away_is_not_waited_for_before_a_higher_tier() -> None:
    targets = [target("spare", tier=1), target("a"), target("b")]
    assert names(targets, {"spare": READY, "a": READY, "b": AWAY}) == ["a", "spare", "b"]


def test_weight_zero_takes_a_target_out() -> None:
    assert names([target("a", weight=0), target("b")], {}) == ["b"]


def test_of_two_drawn_the_less_loaded_goes_first() -> None:
    standings = {"busy": Standing(outstanding=5), "idle": Standing(outstanding=0)}
    firsts = Counter(names([target("busy"), target("idle")], standings, seed)[0] for seed in range(400))
    assert firsts["busy"] < 140  # only if both draws fall on it: a quarter of the time


def test_without_load_first_places_follow_the_weights() -> None:
    targets = [target("big", weight=3), target("small", weight=1)]
    standings = {"big": Standing(outstanding=3), "small": Standing(outstanding=1)}  # equal load per weight
    firsts = Counter(names(targets, standings, seed)[0] for seed in range(4000))
    assert 0.70 < firsts["big"] / 4000 < 0.80


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_every_weighted_target_appears_once_and_ready_ones_lead_tier_by_tier(
    rows: list[tuple[int, int, bool, int]], seed: int
) -> None:
    targets = [target(f"e{i}", weight=weight, tier=tier) for i, (weight, tier, _, _) in enumerate(rows)]
    standings = {f"e{i}": Standing(ready=ready, outstanding=load) for i, (_, _, ready, load) in enumerate(rows)}
    found = chosen(targets, standings, seed)
    if len(targets) == 1:
        assert [candidate.engine for candidate in found] == ["e0"]
        return
    by_name = {t.engine: t for t in targets}
    assert sorted(candidate.engine for candidate in found) == sorted(t.engine for t in targets if t.weight)
    order = [(not standings[c.engine].ready, by_name[c.engine].tier) for c in found]
    assert order == sorted(order)
