"""What is unloaded for a new model: the least recently used, idle ones first, none that has just come, none pinned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.errors import Busy, LoadFailed
from drivetrain.residency import Terms, evictions
from drivetrain.types import Resident


def resident(id: str, size: int, *, used: float, active: int = 0, since: float = 0.0) -> Resident:
    return Resident(id=id, size_bytes=size, active=active, last_used_s=used, since_s=since)


OLD, MIDDLE, NEW = resident("old", 4, used=1), resident("middle", 4, used=2), resident("new", 4, used=3)
WORKING = resident("old", 4, used=1, active=1)
TURNS = Terms(least_resident_s=5, patience_s=10)


def test_nothing_leaves_while_there_is_room() -> None:
    assert evictions([OLD, NEW], need_bytes=2, budget_bytes=10) == []


def test_the_least_recently_used_leaves_first_and_no_more_than_needed() -> None:
    assert evictions([NEW, OLD, MIDDLE], need_bytes=4, budget_bytes=12) == ["old"]
    assert evictions([NEW, OLD, MIDDLE], need_bytes=8, budget_bytes=12) == ["old", "middle"]


def test_a_model_with_running_requests_stays() -> None:
    assert evictions([WORKING, NEW], need_bytes=4, budget_bytes=8) == ["new"]


def test_no_room_beside_working_models_is_busy_and_names_them() -> None:
    with pytest.raises(Busy, match="'old' have running requests") as error:
        evictions([resident("old", 8, used=1, active=1)], need_bytes=4, budget_bytes=8)
    assert error.value.retry_after_s is None


def test_a_model_larger_than_the_budget_gets_the_memory_alone() -> None:
    assert evictions([OLD, NEW], need_bytes=100, budget_bytes=10) == ["old", "new"]


def test_the_number_of_models_is_limited_too() -> None:
    assert evictions([OLD, NEW], need_bytes=1, budget_bytes=100, terms=Terms(max_loaded=2)) == ["old"]
    with pytest.raises(Busy):
        evictions([resident("a", 1, used=1, active=1)], need_bytes=1, budget_bytes=100, terms=Terms(max_loaded=1))


# --- turns ------------------------------------------------------------------------------------------------------------


def test_a_model_that_has_just_come_stays_and_it_is_said_for_how_long() -> None:
    young = resident("young", 4, used=20, since=20)
    with pytest.raises(Busy, match="'young' have only just been loaded") as error:
        evictions([young], need_bytes=4, budget_bytes=4, terms=TURNS, now_s=22)
    assert error.value.retry_after_s == 3
    assert evictions([young], need_bytes=4, budget_bytes=4, terms=TURNS, now_s=25) == ["young"]


def test_an_older_model_goes_in_place_of_one_that_has_just_come() -> None:
    young = resident("young", 4, used=1, since=20)
    assert evictions([young, NEW], need_bytes=4, budget_bytes=8, terms=TURNS, now_s=22) == ["new"]


def test_a_busy_model_makes_room_once_it_was_waited_for_long_enough() -> None:
    with pytest.raises(Busy, match="'old' have running requests") as error:
        evictions([WORKING], need_bytes=4, budget_bytes=4, terms=TURNS, now_s=30, waited_s=4)
    assert error.value.retry_after_s == 6
    assert evictions([WORKING], need_bytes=4, budget_bytes=4, terms=TURNS, now_s=30, waited_s=10) == ["old"]


def test_an_idle_model_goes_before_a_busy_one_however_long_was_waited() -> None:
    assert evictions([WORKING, NEW], need_bytes=4, budget_bytes=8, terms=TURNS, now_s=30, waited_s=60) == ["new"]


def test_a_busy_model_that_has_just_come_has_its_turn_whole() -> None:
    young = resident("young", 4, used=20, since=20, active=1)
    with pytest.raises(Busy) as error:
        evictions([young], need_bytes=4, budget_bytes=4, terms=TURNS, now_s=21, waited_s=60)
    assert error.value.retry_after_s == 4


# --- pinned -----------------------------------------------------------------------------------------------------------


def test_a_pinned_model_stays_though_it_was_used_longest_ago() -> None:
    assert evictions([OLD, NEW], need_bytes=4, budget_bytes=8, pinned={"old"}.__contains__) == ["new"]


def test_no_room_beside_pinned_models_will_not_pass() -> None:
    with pytest.raises(LoadFailed, match=r"'old' are pinned \(`residency.pin`\)"):
        evictions([OLD, NEW], need_bytes=8, budget_bytes=8, pinned={"old"}.__contains__)


MODELS = st.lists(
    st.builds(
        Resident,
        id=st.uuids().map(str),
        size_bytes=st.integers(1, 50),
        active=st.integers(0, 2),
        last_used_s=st.floats(0, 100),
        since_s=st.floats(0, 100),
    ),
    max_size=8,
)


@given(models=MODELS, need=st.integers(1, 100), waited=st.floats(0, 20), pins=st.integers(0, 8))
def test_whoever_leaves_makes_enough_room_and_may_leave(
    models: list[Resident], need: int, waited: float, pins: int
) -> None:
    pinned = {model.id for model in models[:pins]}
    try:
        leaving = evictions(
            models,
            need_bytes=need,
            budget_bytes=100,
            terms=TURNS,
            pinned=pinned.__contains__,
            now_s=100,
            waited_s=waited,
        )
    except (Busy, LoadFailed):
        return
    gone = [model for model in models if model.id in leaving]
    staying = sum(model.size_bytes for model in models) - sum(model.size_bytes for model in gone)
    assert staying + need <= 100 or len(gone) == len(models)
    assert not pinned & set(leaving)
    assert all(model.since_s + TURNS.least_resident_s <= 100 for model in gone)
    assert waited >= TURNS.patience_s or not any(model.active for model in gone)
