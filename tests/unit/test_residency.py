"""What is unloaded for a new model: the least recently used, never one that works."""

import pytest

from drivetrain.errors import Busy
from drivetrain.residency import evictions
from drivetrain.types import Resident


def resident(id: str, size: int, *, used: float, active: int = 0) -> Resident:
    return Resident(id=id, size_bytes=size, active=active, last_used_s=used)


OLD, MIDDLE, NEW = resident("old", 4, used=1), resident("middle", 4, used=2), resident("new", 4, used=3)


def test_nothing_leaves_while_there_is_room() -> None:
    assert evictions([OLD, NEW], need_bytes=2, budget_bytes=10) == []


def test_the_least_recently_used_leaves_first_and_no_more_than_needed() -> None:
    assert evictions([NEW, OLD, MIDDLE], need_bytes=4, budget_bytes=12) == ["old"]
    assert evictions([NEW, OLD, MIDDLE], need_bytes=8, budget_bytes=12) == ["old", "middle"]


def test_a_model_with_running_requests_stays() -> None:
    working = resident("old", 4, used=1, active=1)
    assert evictions([working, NEW], need_bytes=4, budget_bytes=8) == ["new"]


def test_no_room_beside_working_models_is_busy_and_names_them() -> None:
    with pytest.raises(Busy, match="'old' have running requests"):
        evictions([resident("old", 8, used=1, active=1)], need_bytes=4, budget_bytes=8)


def test_a_model_larger_than_the_budget_gets_the_memory_alone() -> None:
    assert evictions([OLD, NEW], need_bytes=100, budget_bytes=10) == ["old", "new"]


def test_the_number_of_models_is_limited_too() -> None:
    assert evictions([OLD, NEW], need_bytes=1, budget_bytes=100, max_loaded=2) == ["old"]
    with pytest.raises(Busy):
        evictions([resident("a", 1, used=1, active=1)], need_bytes=1, budget_bytes=100, max_loaded=1)
