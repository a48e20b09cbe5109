"""Where a beginning is at home: the same everywhere, moved as little as can be, and in memory that never grows."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.config.schema import Target
from drivetrain.router.heat import CELLS, MEMORY, Heat
from drivetrain.router.ring import Ring, jump

KEYS = [Random(seed).getrandbits(64) for seed in range(4000)]


def boxes(*weights: int) -> list[Target]:
    return [Target(engine=f"box-{number}", model="m", weight=weight) for number, weight in enumerate(weights)]


def homes(targets: list[Target]) -> list[str]:
    ring = Ring(targets)
    return [targets[next(ring.walk(key))].engine for key in KEYS]


def test_a_key_has_the_same_home_in_every_process() -> None:
    ring = Ring(boxes(1, 1, 1))
    assert [list(ring.walk(key)) for key in (0, 2**61, 2**62, 3 * 2**62)] == [
        [0, 1, 2],
        [1, 2, 0],
        [0, 2, 1],
        [1, 2, 0],
    ]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 2**64 - 1))
def test_a_walk_meets_every_target_once(weights: list[int], key: int) -> None:
    assert sorted(Ring(boxes(*weights)).walk(key)) == list(range(len(weights)))


def test_keys_are_shared_out_by_weight() -> None:
    found = Counter(homes(boxes(1, 1, 2)))
    assert 0.40 < found["box-2"] / len(KEYS) < 0.60
    assert 0.18 < found["box-0"] / len(KEYS) < 0.32


def test_when_a_target_goes_only_its_own_keys_move() -> None:
    four = boxes(1, 1, 1, 1)
    before, after = homes(four), homes(four[:3])
    assert [old for old, new in zip(before, after, strict=True) if old != new and old != "box-3"] == []


def test_when_a_target_comes_keys_move_to_it_only() -> None:
    before, after = homes(boxes(1, 1, 1)), homes(boxes(1, 1, 1, 1))
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {"box-3"}


def test_one_more_place_takes_keys_from_the_others_and_moves_no_other() -> None:
    for many in range(1, 8):
        moved = [jump(key, many + 1) for key in KEYS if jump(key, many + 1) != jump(key, many)]
        assert set(moved) == {many}
        assert abs(len(moved) / len(KEYS) - 1 / (many + 1)) < 0.03


def test_a_thousand_targets_have_a_ring_of_bounded_size() -> None:
    ring = Ring(boxes(*[1] * 1000))
    assert len(ring._points) == 16 * 1000


def test_the_share_of_a_common_beginning_is_found_among_many_rare_ones() -> None:
    chance, heat, common = Random(1), Heat(), KEYS[0]
    shares = [heat.met(common if chance.random() < 0.25 else chance.getrandbits(64)) for _ in range(4 * MEMORY)]
    assert len(shares) == 4 * MEMORY
    assert 0.2 < heat.share(common) < 0.3
    assert heat.share(KEYS[1]) < 0.01


def test_what_was_common_once_is_forgotten() -> None:
    heat, chance = Heat(), Random(2)
    for _ in range(MEMORY):
        heat.met(KEYS[0])
    assert heat.share(KEYS[0]) > 0.99
    for _ in range(5 * MEMORY):
        heat.met(chance.getrandbits(64))
    assert heat.share(KEYS[0]) < 0.02


def test_the_first_requests_prove_nothing_yet() -> None:
    heat = Heat()
    assert heat.met(KEYS[0]) == 1 / 64


def test_counts_stay_finite_however_many_requests_there_were() -> None:
    heat = Heat()
    heat._one = 1e12
    heat.met(KEYS[0])
    assert heat._one < 2
    assert 0.0 < heat.share(KEYS[0]) <= 1.0
    assert [len(row) for row in heat._rows] == [CELLS, CELLS]
