"""Prices: the most specific one that is valid at the instant, and its cost to the micro-dollar."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.governance import Price
from drivetrain.policies import prices
from drivetrain.policies.prices import Cost, Table, cost
from drivetrain.types import Usage

JANUARY, FEBRUARY, MARCH = 100.0, 200.0, 300.0


def found(table: Table, engine: str = "box", model: str = "llama-8b", public: str = "chat", at_s: float = 1.0) -> str:
    price = table.find(engine, model, public, at_s)
    return price.id if price is not None else ""


# --- which one --------------------------------------------------------------------------------------------------------

ANYTHING = Price(id="anything")
ENGINE = Price(id="engine", engine="box")
MODEL = Price(id="model", model="llama-8b")
BOTH = Price(id="both", engine="box", model="llama-8b")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([ANYTHING, ENGINE, MODEL, BOTH], "both"),
        ([ANYTHING, ENGINE, MODEL], "model"),
        ([ANYTHING, ENGINE], "engine"),
        ([ANYTHING], "anything"),
        ([], ""),
        ([Price(id="elsewhere", engine="other", model="llama-8b"), Price(id="another", model="llama-70b")], ""),
    ],
)
def test_the_most_specific_price_holds(known: list[Price], expected: str) -> None:
    assert found(Table(known)) == expected
    assert found(Table(known[::-1])) == expected


def test_an_instance_that_was_discovered_costs_what_its_engine_does() -> None:
    assert found(Table([ANYTHING, ENGINE]), engine="box@10.0.0.5:8000") == "engine"
    assert found(Table([ANYTHING, ENGINE]), engine="boxes@10.0.0.5:8000") == "anything"


def test_a_model_is_meant_by_its_public_name_too() -> None:
    assert found(Table([ANYTHING, Price(id="public", model="chat")])) == "public"


def test_a_name_means_the_same_model_in_any_case_and_with_the_tag_latest() -> None:
    table = Table([Price(id="p", model="Llama3")])
    assert found(table, model="llama3:latest") == "p"
    assert found(table, model="llama3:8b") == ""


def test_of_two_that_are_as_specific_the_later_one_holds() -> None:
    table = Table([Price(id="new", from_s=FEBRUARY), Price(id="old", from_s=JANUARY)])
    assert found(table, at_s=FEBRUARY - 0.001) == "old"
    assert found(table, at_s=FEBRUARY) == "new"


def test_a_price_begins_with_its_first_instant_and_ends_before_its_last() -> None:
    table = Table([Price(id="p", from_s=JANUARY, until_s=MARCH)])
    assert [found(table, at_s=at_s) for at_s in (99.9, JANUARY, 299.9, MARCH)] == ["", "p", "p", ""]


def test_a_special_price_that_ends_leaves_the_general_one() -> None:
    table = Table([ANYTHING, Price(id="sale", model="chat", from_s=JANUARY, until_s=FEBRUARY)])
    instants = (JANUARY - 1, JANUARY, FEBRUARY - 1, FEBRUARY, JANUARY)
    assert [found(table, at_s=at_s) for at_s in instants] == ["anything", "sale", "sale", "anything", "sale"]


names = st.sampled_from(["*", "a", "b"])
instants = st.integers(0, 6).map(float)
validities = st.builds(
    Price, id=st.text("xyz", min_size=1), engine=names, model=names, from_s=instants, until_s=st.none() | instants
)


def naive(known: list[Price], engine: str, model: str, public: str, at_s: float) -> Price | None:
    """By the words of the rule, with nothing remembered."""

    def means(price: Price) -> bool:
        valid = price.from_s <= at_s and (price.until_s is None or at_s < price.until_s)
        return valid and price.engine in ("*", engine) and price.model in ("*", model, public)

    order = [(price.model != "*", price.engine != "*", price.from_s, price.id) for price in known]
    best = max((rank for rank, price in zip(order, known, strict=True) if means(price)), default=None)
    return None if best is None else known[order.index(best)]


@given(st.lists(validities, max_size=8), st.lists(st.tuples(names, names, names, st.integers(0, 7)), max_size=12))
def test_what_is_remembered_of_a_look_up_notices_when_a_price_begins_or_ends(
    known: list[Price], asked: list[tuple[str, str, str, int]]
) -> None:
    known = list({price.id: price for price in known}.values())
    table = Table(known)
    for engine, model, public, at_s in asked:
        assert table.find(engine, model, public, float(at_s)) == naive(known, engine, model, public, at_s)


def test_what_is_remembered_is_bounded() -> None:
    table = Table([ANYTHING])
    for number in range(prices.REMEMBERED + 10):
        table.find("box", f"made-up-{number}", "chat", 1.0)
    assert len(table._found) <= prices.REMEMBERED


# --- what it costs ----------------------------------------------------------------------------------------------------

MINI = Price(id="mini", input=150_000, cached_input=75_000, output=600_000)  # dollars 0.15, 0.075, 0.60 per million


@pytest.mark.parametrize(
    ("price", "usage", "expected"),
    [
        (MINI, Usage(prompt=1_000_000), 150_000),
        (MINI, Usage(prompt=1_000_000, cached=1_000_000), 75_000),
        (MINI, Usage(completion=1_000_000, reasoning=400_000), 600_000),
        (MINI, Usage(prompt=2006, cached=1920, completion=300), 337),  # 12.9 + 144 + 180
        (MINI, Usage(), 0),
        (Price(id="free", input=0, cached_input=0, output=0), Usage(prompt=10**9, cached=5, completion=10**9), 0),
        (Price(id="p", input=1, cached_input=0), Usage(prompt=1_000_000, cached=1_000_000), 0),
        (Price(id="p", input=4), Usage(prompt=1_000_000, cached=500_000, cache_write=250_000), 4),
        (Price(id="p", input=4, cache_write=8), Usage(prompt=1_000_000, cache_write=250_000), 5),
        (Price(id="p", output=4, reasoning=0), Usage(completion=1_000_000, reasoning=750_000), 1),
        (Price(id="p", request=250), Usage(), 250),
        (Price(id="p", input=1), Usage(prompt=499_999), 0),
        (Price(id="p", input=1), Usage(prompt=500_000), 1),  # half a micro-dollar is one
        (Price(id="p", input=1, output=1), Usage(prompt=300_000, completion=300_000), 1),  # rounded once, not twice
        (Price(id="p", input=4), Usage(prompt=10, cached=1_000_000), 4),  # more cached than there were
    ],
)
def test_tokens_cost(price: Price, usage: Usage, expected: int) -> None:
    assert cost(price, usage, 0.0) == Cost(micro_usd=expected)


def test_time_costs_what_a_second_does() -> None:
    gpu = Price(id="gpu", second=694)  # 2.50 dollars an hour
    assert cost(gpu, Usage(), 2.5) == Cost(micro_usd=1735, compute_micro_usd=1735)


def test_energy_costs_what_a_kilowatt_hour_does() -> None:
    box = Price(id="box", watts=350.0, kwh=300_000)  # 0.30 dollars
    assert cost(box, Usage(), 3600.0) == Cost(micro_usd=105_000, compute_micro_usd=105_000)


def test_time_energy_tokens_and_the_request_add_up() -> None:
    price = Price(id="p", input=1_000_000, request=7, second=10, watts=1000.0, kwh=3_600_000)
    assert cost(price, Usage(prompt=5), 2.0) == Cost(micro_usd=5 + 7 + 20 + 2000, compute_micro_usd=2020)


def test_no_time_and_time_that_ran_backwards_cost_nothing() -> None:
    price = Price(id="p", second=10, watts=1.0, kwh=1)
    assert cost(price, Usage(), 0.0) == Cost()
    assert cost(price, Usage(), -1.0) == Cost()


amounts = st.integers(0, 2_000_000)
tariffs = st.integers(0, 100_000_000)


@given(amounts, amounts, amounts, amounts, amounts, tariffs, st.none() | tariffs, st.none() | tariffs, tariffs)
def test_cost_is_the_exact_sum_rounded_half_up(
    fresh: int,
    cached: int,
    written: int,
    said: int,
    thought: int,
    input: int,
    cached_input: int | None,
    cache_write: int | None,
    output: int,
) -> None:
    price = Price(id="p", input=input, cached_input=cached_input, cache_write=cache_write, output=output)
    usage = Usage(
        prompt=fresh + cached + written,
        cached=cached,
        cache_write=written,
        completion=said + thought,
        reasoning=thought,
    )
    exact = (
        Fraction(fresh * input, 10**6)
        + Fraction(cached * (input if cached_input is None else cached_input), 10**6)
        + Fraction(written * (input if cache_write is None else cache_write), 10**6)
        + Fraction((said + thought) * output, 10**6)
    )
    expected = int((Decimal(exact.numerator) / exact.denominator).quantize(Decimal(1), ROUND_HALF_UP))
    assert cost(price, usage, 0.0).micro_usd == expected


@given(amounts, st.floats(0, 1e5), tariffs, st.floats(0, 1e5), tariffs)
def test_computing_is_part_of_the_cost(tokens: int, seconds: float, second: int, watts: float, kwh: int) -> None:
    price = Price(id="p", output=999_999, second=second, watts=watts, kwh=kwh)
    both = cost(price, Usage(completion=tokens), seconds)
    spoken = cost(price, Usage(completion=tokens), 0.0)
    assert 0 <= both.compute_micro_usd <= both.micro_usd
    assert abs(both.micro_usd - both.compute_micro_usd - spoken.micro_usd) <= 1
