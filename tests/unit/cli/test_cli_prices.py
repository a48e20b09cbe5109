"""`drivetrain prices`: exact amounts, from an instant on; a new price ends the one before it."""

import pytest

from tests.unit.cli.kit import Terminal

JAN, FEB, MAR = 1_798_761_600.0, 1_801_440_000.0, 1_803_859_200.0  # the first of each month of 2027, UTC


def spans(drivetrain: Terminal) -> list[tuple[int, float, float | None]]:
    prices = drivetrain("prices", "list", "--all", "--json").json["prices"]
    return [(one["input"], one["from_s"], one["until_s"]) for one in prices]


def test_a_price_has_exact_amounts(drivetrain: Terminal) -> None:
    price = drivetrain.type(
        "prices set chat --engine api --input 0.15 --cached-input 0.075 --cache-write 0.1875 --output 0.60 "
        "--reasoning 0.65 --request 0.001 --second 0.0002 --watts 300 --kwh 0.30 --from 2027-01-01 --json"
    ).json
    del price["id"]
    assert price == {
        "engine": "api",
        "model": "chat",
        "from_s": JAN,
        "until_s": None,
        "input": 150_000,
        "cached_input": 75_000,
        "cache_write": 187_500,
        "output": 600_000,
        "reasoning": 650_000,
        "request": 1_000,
        "second": 200,
        "watts": 300.0,
        "kwh": 300_000,
        "version": 1,
    }


def test_an_explicit_zero_is_one(drivetrain: Terminal) -> None:
    drivetrain.type("prices set chat --input 0.15 --cached-input 0 --output 0 --from 2027-01-01")
    [price] = drivetrain("prices", "list", "--json").json["prices"]
    assert (price["cached_input"], price["output"], price["reasoning"]) == (0, 0, None)


def test_a_new_price_ends_the_one_before_it(drivetrain: Terminal) -> None:
    drivetrain.type("prices set chat --input 1 --from 2027-01-01")
    drivetrain.type("prices set chat --input 3 --from 2027-03-01")
    drivetrain.type("prices set other --input 9 --from 2027-01-01")
    drivetrain.type("prices set chat --input 9 --engine box --from 2027-01-01")
    assert drivetrain.type("prices set chat --input 2 --from 2027-02-01").code == 0
    assert spans(drivetrain) == [
        (1_000_000, JAN, FEB),
        (2_000_000, FEB, MAR),
        (3_000_000, MAR, None),
        (9_000_000, JAN, None),
        (9_000_000, JAN, None),
    ]


def test_an_end_that_is_named_holds(drivetrain: Terminal) -> None:
    drivetrain.type("prices set chat --input 1 --from 2027-01-01 --until 2027-02-01")
    drivetrain.type("prices set chat --input 2 --from 2027-03-01")
    assert spans(drivetrain) == [(1_000_000, JAN, FEB), (2_000_000, MAR, None)]


def test_the_list_holds_what_has_not_ended(drivetrain: Terminal) -> None:
    drivetrain.type("prices set chat --input 1 --from 2020-01-01")
    drivetrain.type("prices set chat --input 2 --from 2021-01-01")
    drivetrain.type("prices set chat --input 3 --output 4.5 --request 0.01 --from 2120-01-01")

    def listed(words: str) -> list[int]:
        return [one["input"] // 1_000_000 for one in drivetrain.type(f"prices list {words} --json").json["prices"]]

    assert (listed(""), listed("--all"), listed("--at 2020-06-01"), listed("--at 2019-01-01")) == (
        [2, 3],
        [1, 2, 3],
        [1],
        [],
    )
    assert (listed("--model CHAT:latest"), listed("--model x")) == ([2, 3], [])
    assert drivetrain.type("prices list").out.splitlines()[2].rsplit("   ", 1)[0].split() == [
        "chat", "*", "$3.00", "-", "$4.50", "-", "$0.01", "per", "request", "2120-01-01", "-",
    ]  # fmt: skip


def test_a_price_is_removed_by_its_id(drivetrain: Terminal) -> None:
    made = drivetrain.type("prices set '*' --second 0.0002 --json").json
    assert drivetrain("prices", "remove", made["id"], "--json").json == {"removed": made["id"]}
    assert spans(drivetrain) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "a price needs amounts, such as --input 0.15 --output 0.60; zero is one, too"),
        ("--watts 300", "energy needs both --watts and --kwh"),
        ("--kwh 0.3", "energy needs both --watts and --kwh"),
        ("--input 0.0000001", "'0.0000001' has more than 6 decimals"),
        ("--input 1 --from 2027-02-01 --until 2027-01-01", "would end at 2027-01-01, before it begins at 2027-02-01"),
        ("--input 1 --from 2027-01-01", "a price of 'chat' begins at 2027-01-01 already; remove that one first"),
    ],
)
def test_what_is_no_price_changes_nothing(drivetrain: Terminal, words: str, message: str) -> None:
    drivetrain.type("prices set chat --input 5 --from 2027-01-01")
    outcome = drivetrain.type(f"prices set chat {words}")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert spans(drivetrain) == [(5_000_000, JAN, None)]
