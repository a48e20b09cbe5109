"""Turns between the tenants of one class: by tokens, not by requests, and nobody saves them up."""

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.policies.fairness import MOST_TENANTS, Fair


class One(NamedTuple):
    number: int
    tenant: str


def line_of(*tenants: str) -> Fair[One]:
    fair: Fair[One] = Fair()
    for number, tenant in enumerate(tenants):
        fair.add(One(number, tenant))
    return fair


def take(fair: Fair[One], tokens: float) -> One:
    """Whose turn it is gets it, for so many tokens."""
    first = fair.first()
    assert first is not None
    fair.remove(first)
    fair.serve(first.tenant, tokens)
    return first


def test_a_tenants_own_requests_keep_their_order() -> None:
    fair = line_of("a", "a", "a")
    assert [take(fair, 10).number for _ in range(3)] == [0, 1, 2]


def test_who_rejoins_has_the_place_that_its_number_says() -> None:
    fair = line_of("a", "a")
    early = take(fair, 0)
    fair.add(early)
    assert fair.first() == early


def test_tenants_that_were_served_the_same_go_in_the_order_in_which_they_came() -> None:
    assert [take(line, 0).tenant for line in [line_of("b", "a")] for _ in range(2)] == ["b", "a"]


def test_a_greedy_tenant_waits_for_a_modest_one() -> None:
    fair = line_of(*["greedy"] * 6, *["modest"] * 3)
    assert [take(fair, 100).tenant for _ in range(6)] == ["greedy", "modest"] * 3


def test_shares_are_of_tokens_and_not_of_requests() -> None:
    fair = line_of(*["long"] * 200, *["short"] * 200)
    served: Counter[str] = Counter()
    for _ in range(110):
        first = fair.first()
        assert first is not None
        tokens = 1000 if first.tenant == "long" else 100
        served[take(fair, tokens).tenant] += tokens
    assert served == {"long": 10_000, "short": 10_000}


def test_what_an_answer_really_took_is_charged_in_the_end() -> None:
    fair = line_of("a", "b", "a", "b")
    assert [take(fair, 10).tenant, take(fair, 10).tenant] == ["a", "b"]
    fair.charge("a", 90)
    assert take(fair, 10).tenant == "b"


def test_who_comes_anew_begins_where_the_others_are() -> None:
    fair = line_of(*["old"] * 10)
    for _ in range(5):
        take(fair, 100)
    fair.add(One(10, "new"))
    fair.add(One(11, "new"))
    assert [take(fair, 100).tenant for _ in range(3)] == ["new", "old", "new"]


def test_staying_away_saves_no_turns() -> None:
    fair = line_of("away", *["busy"] * 20)
    take(fair, 1)
    for _ in range(10):
        take(fair, 100)
    for number in range(21, 31):
        fair.add(One(number, "away"))
    assert Counter(take(fair, 100).tenant for _ in range(10)) == {"away": 5, "busy": 5}


def test_the_newest_of_the_tenant_with_most_waiting_goes_first() -> None:
    assert line_of("a", "b", "b", "a", "b").last() == One(4, "b")


def test_who_would_have_most_waiting_makes_no_room_for_itself() -> None:
    fair = line_of("greedy", "greedy", "modest")
    assert fair.last(joining="greedy") is None
    assert fair.last(joining="modest") is None
    assert fair.last(joining="other") == One(1, "greedy")


def test_a_million_tenants_that_come_and_go_take_bounded_memory() -> None:
    fair = line_of("stays")
    for number in range(1, 5 * MOST_TENANTS):
        fair.add(One(number, f"tenant {number}"))
        fair.remove(One(number, f"tenant {number}"))
    assert len(fair._served) <= MOST_TENANTS + 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
def test_everybody_is_served_once_and_the_line_empties(asked: list[tuple[str, int]]) -> None:
    fair = line_of(*(tenant for tenant, _ in asked))
    served = [take(fair, asked[0][1]) for _ in asked]
    assert sorted(one.number for one in served) == list(range(len(asked)))
    assert (fair.size, fair.first(), list(fair)) == (0, None, [])


@given(st.integers(1, 40), st.integers(1, 40))
def test_two_tenants_with_enough_waiting_get_the_same_within_one_answer(long: int, short: int) -> None:
    fair = line_of(*["long"] * 100, *["short"] * 100)
    served = {"long": 0, "short": 0}
    for _ in range(100):
        first = fair.first()
        assert first is not None
        tokens = long if first.tenant == "long" else short
        served[take(fair, tokens).tenant] += tokens
    assert abs(served["long"] - served["short"]) <= max(long, short)
