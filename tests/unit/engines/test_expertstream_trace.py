"""Replaying a trace: how often an expert would have been in memory."""

import struct
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.engines.expertstream import trace
from drivetrain.engines.expertstream.trace import POLICIES, Policy, Trace, replay
from drivetrain.errors import BadRequest, NotFound


def one_by_one(*experts: int) -> Trace:
    return Trace(layers=1, experts=16, groups=[(expert,) for expert in experts])


def together(*groups: tuple[int, ...]) -> Trace:
    return Trace(layers=1, experts=16, groups=groups)


def record(layer: int, *experts: int) -> bytes:
    return struct.pack(f"<{2 + len(experts)}H", layer, len(experts), *experts)


HEADER = b"DRTTRC01" + struct.pack("<II", 2, 300)


def hits(asked: Trace, budget: int) -> dict[Policy, int]:
    return {policy: replay(asked, policy, budget).hits for policy in POLICIES}


def test_reads_what_the_engine_wrote(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(HEADER + record(0, 1, 299, 3) + record(1, 7))
    asked = trace.read(tmp_path / "trace")
    assert asked == Trace(layers=2, experts=300, groups=[(1, 299, 3), (307,)])
    assert (asked.accesses, asked.distinct) == (4, 4)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 7])
def test_what_a_crash_cut_off_is_left_out(cut: int) -> None:
    whole = HEADER + record(0, 1, 2) + record(1, 7, 8)
    assert trace.decode(whole[:-cut]).groups == [(1, 2)]


def test_an_empty_trace_misses_nothing() -> None:
    nothing = trace.decode(HEADER)
    assert (nothing.accesses, replay(nothing, "lru", 1).hit_rate) == (0, 1.0)


def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"DRTTRC02" + bytes(20))
    with pytest.raises(BadRequest, match="other is no trace"):
        trace.read(tmp_path / "other")
    with pytest.raises(NotFound, match="No such file"):
        trace.read(tmp_path / "none")


@pytest.mark.parametrize("bad", [record(2, 1), record(1, 300)])
def test_a_damaged_trace_is_refused_with_the_place(bad: bytes) -> None:
    with pytest.raises(BadRequest, match="damaged at byte 22"):
        trace.decode(HEADER + record(0, 5) + bad)


def test_lru_lets_go_what_was_used_longest_ago() -> None:
    assert replay(one_by_one(1, 2, 1, 3, 1, 2), "lru", 2).hits == 2


def test_lfu_keeps_what_was_used_most() -> None:
    asked = one_by_one(1, 1, 1, 2, 3, 1, 2)
    assert hits(asked, 2)["lfu"] == 3
    assert replay(one_by_one(1, 2, 3, 1), "lfu", 2).hits == 0  # of equals the oldest leaves


def test_lrfu_keeps_what_was_used_often_lately() -> None:
    asked = [1, 1, 1, 2, 3, 1]
    assert replay(one_by_one(*asked), "lru", 2).hits == 2
    assert replay(one_by_one(*asked), "lrfu", 2).hits == 3
    # Used in three passes on end, it is kept for 49 more than if it had been used in the last of them alone.
    for others, kept in ((50, 1), (51, 0)):
        once = Trace(layers=1, experts=64, groups=[(expert,) for expert in (1, 1, 1, *range(2, 2 + others), 1)])
        assert replay(once, "lrfu", 2).hits == 2 + kept


def test_belady_knows_the_future() -> None:
    asked = one_by_one(1, 2, 3, 1, 2, 3, 1, 2, 3)
    assert hits(asked, 2) == {"lru": 0, "lrfu": 0, "lfu": 0, "belady": 3}


def test_everything_is_loaded_once_where_everything_fits() -> None:
    asked = one_by_one(*[1, 2, 3, 4] * 5)
    for policy in POLICIES:
        assert replay(asked, policy, 4) == trace.Replay(policy=policy, budget=4, hits=16, misses=4, loaded=4)


def test_what_is_needed_together_does_not_push_itself_out() -> None:
    asked = together((1, 2), (3, 1), (4, 3))
    assert hits(asked, 2) == {"lru": 2, "lrfu": 2, "lfu": 2, "belady": 2}


def test_less_room_than_is_needed_at_once_only_misses_more() -> None:
    asked = together((1, 2, 3), (1, 2, 3))
    for policy in POLICIES:
        assert replay(asked, policy, 2).hits == 2
        assert replay(asked, policy, 0).hits == 0


def test_a_budget_in_bytes_counts_what_each_layer_takes() -> None:
    asked = Trace(layers=2, experts=4, groups=[(0,), (4,), (1,), (0,), (4,)])
    assert replay(asked, "lru", 40, [10, 20]) == trace.Replay(policy="lru", budget=40, hits=2, misses=3, loaded=40)
    assert replay(asked, "lru", 30, [10, 20]) == trace.Replay(policy="lru", budget=30, hits=0, misses=5, loaded=70)


def test_sizes_of_another_model_are_refused() -> None:
    with pytest.raises(BadRequest, match="of another model"):
        replay(Trace(layers=2, experts=4, groups=[]), "lru", 100, [10])


small = st.lists(st.integers(0, 5), max_size=12).map(lambda experts: one_by_one(*experts))


@given(small, st.integers(1, 4))
def test_lru_equals_a_plain_list(asked: Trace, budget: int) -> None:
    kept: list[int] = []
    expected = 0
    for (expert,) in asked.groups:
        expected += expert in kept
        kept = [*(other for other in kept if other != expert), expert][-budget:]
    assert replay(asked, "lru", budget).hits == expected


@given(small, st.integers(1, 4))
def test_belady_is_the_best_of_all_choices(asked: Trace, budget: int) -> None:
    @cache
    def best(time: int, kept: frozenset[int]) -> int:
        if time == len(asked.groups):
            return 0
        (expert,) = asked.groups[time]
        if expert in kept:
            return 1 + best(time + 1, kept)
        if len(kept) < budget:
            return best(time + 1, kept | {expert})
        return max(best(time + 1, kept - {other} | {expert}) for other in kept)

    assert replay(asked, "belady", budget).hits == best(0, frozenset())


groups = st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=4, unique=True).map(tuple), max_size=60)


@given(groups, st.integers(4, 12))
def test_no_policy_beats_belady_and_more_room_never_hurts_it(asked: list[tuple[int, ...]], budget: int) -> None:
    found = hits(together(*asked), budget)
    assert found["belady"] == max(found.values())
    assert replay(together(*asked), "belady", budget + 1).hits >= found["belady"]
