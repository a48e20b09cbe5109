"""The class of a request: what it may ask for, what is kept free of it, and when its turn comes."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from drivetrain.config.schema import Reserved
from drivetrain.errors import BadRequest
from drivetrain.governance import Priority, Rule
from drivetrain.policies.classes import (
    AHEAD,
    CLASSES,
    RANKS,
    ceilings,
    class_of,
    for_engines,
    least,
    passing,
    turn,
    wait_s,
)
from drivetrain.types import Source

BULK, DEFAULT, INTERACTIVE, SYSTEM = range(4)
priorities = st.sampled_from(get_args(Priority))


def body(tier: str, dialect: str = "openai.chat") -> Source:
    return Source(dialect=dialect, fields={"model": Raw(b'"chat"'), "service_tier": Raw(tier.encode())})


def slots(amount: int) -> Rule:
    return Rule(id="R", owner="policy 'chat'", resource="concurrency", amount=amount)


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_who_asks_for_nothing_is_in_the_default_class() -> None:
    assert class_of(None, None, "system") == "default"


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ('"priority"', "interactive"),
        ('"flex"', "bulk"),
        ('"auto"', "default"),
        ('"default"', "default"),
        ('"scale"', "default"),
        ("null", "default"),
        ("7", "default"),
    ],
)
def test_the_tier_of_openai_is_a_class_of_ours(tier: str, expected: Priority) -> None:
    assert class_of(None, body(tier), "system") == expected


def test_only_openais_dialect_has_tiers() -> None:
    assert class_of(None, body('"flex"', "ollama.chat"), "system") == "default"


@pytest.mark.parametrize("header", [b"bulk", b" Bulk ", b"BULK"])
def test_the_header_counts_before_the_body(header: bytes) -> None:
    assert class_of(header, body('"priority"'), "system") == "bulk"


def named(priority: str, dialect: str = "openai.chat") -> Source:
    return Source(dialect=dialect, fields={"model": Raw(b'"chat"'), "priority": Raw(priority.encode())})


@pytest.mark.parametrize("dialect", ["openai.chat", "ollama.generate", "openai.embeddings"])
@pytest.mark.parametrize(("priority", "expected"), [('"bulk"', "bulk"), ('" Interactive"', "interactive")])
def test_a_body_of_any_dialect_may_name_its_class(dialect: str, priority: str, expected: Priority) -> None:
    source = named(priority, dialect)
    assert class_of(None, source, "system") == expected
    assert class_of(None, source, "bulk") == "bulk"
    assert class_of(b"default", source, "system") == "default"
    kept = for_engines(source)
    assert kept is not None
    assert list(kept.fields) == ["model"]


def test_the_class_in_a_body_counts_before_its_tier() -> None:
    fields = {**named('"bulk"').fields, **body('"priority"').fields}
    assert class_of(None, Source(dialect="openai.chat", fields=fields), "system") == "bulk"


@pytest.mark.parametrize("priority", ["-100", "null", "{}"])
def test_a_priority_that_is_no_text_is_for_the_engine(priority: str) -> None:
    source = named(priority)
    assert class_of(None, source, "system") == "default"
    assert for_engines(source) is source


@pytest.mark.parametrize("priority", ["urgent", "system"])
def test_a_class_that_a_body_may_not_have_is_refused_with_those_that_it_may(priority: str) -> None:
    with pytest.raises(
        BadRequest, match=f"priority takes one of interactive, default, bulk; got '{priority}'"
    ) as caught:
        class_of(None, named(f'"{priority}"'), "system")
    assert caught.value.param == "priority"


def test_a_class_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(BadRequest, match="takes one of system, interactive, default, bulk; got 'urgent'") as caught:
        class_of(b"urgent", None, "system")
    assert caught.value.param == "x-drivetrain-priority"


@pytest.mark.parametrize("header", [b"system", b"interactive", b"default", None])
def test_a_key_never_gets_more_than_it_may_have(header: bytes | None) -> None:
    assert class_of(header, None, "bulk") == "bulk"


@given(priorities, priorities)
def test_the_least_of_two_is_neither_above_the_one_nor_the_other(one: Priority, other: Priority) -> None:
    assert RANKS[least(one, other)] == min(RANKS[one], RANKS[other])


# --- what is kept free ------------------------------------------------------------------------------------------------


def test_bulk_leaves_a_fifth_of_the_slots_free_if_nothing_else_is_said() -> None:
    assert [(above, rule.amount) for above, rule in ceilings(slots(10), Reserved())] == [("default", 8)]


def test_what_higher_classes_have_for_themselves_adds_up_downwards() -> None:
    reserved = Reserved(system=5, interactive=10, default=20)
    found = ceilings(slots(100), reserved)
    assert [(above, rule.amount) for above, rule in found] == [("system", 95), ("interactive", 85), ("default", 65)]


@pytest.mark.parametrize("amount", [1, 2, 3])
def test_one_slot_is_left_to_the_lowest_whatever_is_reserved(amount: int) -> None:
    reserved = Reserved(system=100, interactive=100, default=100)
    assert [rule.amount for _, rule in ceilings(slots(amount), reserved)] == [1, 1, 1]


def test_each_ceiling_is_counted_by_itself() -> None:
    ids = {rule.id for _, rule in ceilings(slots(10), Reserved(system=1, interactive=1, default=1))}
    assert ids == {"R:below:system", "R:below:interactive", "R:below:default"}


def test_nothing_reserved_is_no_ceiling() -> None:
    assert ceilings(slots(10), Reserved(default=0)) == []


# --- whose turn it is -------------------------------------------------------------------------------------------------


def test_the_highest_class_that_waits_has_the_turn() -> None:
    assert turn([3, 2, 1, 0], [0, 0, 0, 0]) == INTERACTIVE


def test_nobody_has_the_turn_if_nobody_waits() -> None:
    assert turn([0, 0, 0, 0], [9, 9, 9, 9]) is None


def test_a_class_that_has_all_it_may_have_is_not_asked() -> None:
    assert turn([3, 2, 0, 0], [0, 0, 0, 0], lowest=DEFAULT) == DEFAULT
    assert turn([3, 0, 0, 0], [AHEAD, 0, 0, 0], lowest=DEFAULT) is None


def test_who_was_passed_often_enough_has_the_next_turn() -> None:
    assert turn([1, 0, 1, 0], [AHEAD - 1, 0, 0, 0]) == INTERACTIVE
    assert turn([1, 0, 1, 0], [AHEAD, 0, 0, 0]) == BULK


def test_who_has_as_much_as_it_may_was_not_passed() -> None:
    assert passing([5, 5, 1, 0], [2, 3, 0, 0], INTERACTIVE, lowest=DEFAULT) == [2, 4, 0, 0]


def turns(waiting: list[int], count: int) -> list[int]:
    """So many turns while nobody leaves a class for good."""
    passed, taken = [0] * len(CLASSES), []
    for _ in range(count):
        rank = turn(waiting, passed)
        assert rank is not None
        taken.append(rank)
        passed = passing(waiting, passed, rank)
    return taken


def test_a_flood_of_interactive_requests_leaves_every_ninth_turn_to_bulk() -> None:
    assert turns([99, 0, 99, 0], 27) == ([INTERACTIVE] * AHEAD + [BULK]) * 3


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any))
def test_every_class_that_waits_moves_and_the_highest_has_most_turns(waiting: list[int]) -> None:
    taken = turns(waiting, 120)
    present = [rank for rank in range(4) if waiting[rank]]
    assert set(taken) == set(present)
    assert taken.count(present[-1]) >= 120 * (1 - (len(present) - 1) / (AHEAD + 1)) - len(present)


# --- how long it takes ------------------------------------------------------------------------------------------------


def test_the_wait_is_the_work_ahead_over_the_slots_that_do_it() -> None:
    assert wait_s(9, 2, 3.0) == 15.0


def test_nobody_is_asked_back_within_a_second() -> None:
    assert wait_s(0, 8, 0.01) == 1.0
