"""Money on the command line is exact, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.cli.amounts import decimal, dollars, micro_usd


@pytest.mark.parametrize(
    ("typed", "amount"),
    [
        ("50", 50_000_000),
        ("0.015", 15_000),
        ("0.000001", 1),
        ("0", 0),
        ("$1_000.50", 1_000_500_000),
        ("0.10000000", 100_000),  # zeros are no decimals that could be lost
        ("1e-3", 1_000),
    ],
)
def test_dollars_become_micro_dollars(typed: str, amount: int) -> None:
    assert micro_usd(typed) == amount


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("0.0000001", "'0.0000001' has more than 6 decimals; money is counted in millionths of a dollar"),
        ("-1", "'-1' is no amount of dollars; it must be 0 or more"),
        ("nan", "'nan' is no amount of dollars; it must be 0 or more"),
        ("inf", "'inf' is no amount of dollars; it must be 0 or more"),
        ("fifty", "'fifty' is no amount of dollars; write it as 50 or 0.015"),
        ("1,5", "'1,5' is no amount of dollars; write it as 50 or 0.015"),
        ("", "'' is no amount of dollars; write it as 50 or 0.015"),
        ("1e30", "'1e30' is more than can be counted"),
    ],
)
def test_what_is_no_exact_amount_is_refused(typed: str, problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        micro_usd(typed)
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0, "$0.00"), (1, "$0.000001"), (15_000, "$0.015"), (1_234_500_000, "$1,234.50"), (-250_000, "-$0.25")],
)
def test_an_amount_is_shown_with_all_its_decimals(amount: int, shown: str) -> None:
    assert dollars(amount) == shown


@given(st.integers(0, 2**53 - 1))
def test_what_is_shown_can_be_typed_again(amount: int) -> None:
    assert micro_usd(dollars(amount).replace(",", "")) == amount
    assert micro_usd(decimal(amount)) == amount
