"""Money as it is typed and shown: dollars on the command line, integer micro-dollars everywhere else. Nothing is
rounded on the way.
"""

from decimal import Decimal, InvalidOperation
from typing import Any

import click

MICRO = 1_000_000  # micro-dollars in a dollar
_MOST = 2**62  # micro-dollars that every database keeps


def micro_usd(text: str) -> int:
    """`0.015` is 15,000. Raises `ValueError`, whose message says what is wrong, for what is no exact amount."""
    written = text.strip().removeprefix("$").replace("_", "")
    try:
        dollars = Decimal(written)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no amount of dollars; write it as 50 or 0.015") from None
    if not dollars.is_finite() or dollars < 0:
        raise ValueError(f"{text!r} is no amount of dollars; it must be 0 or more")
    exact = dollars * MICRO
    if exact >= _MOST:
        raise ValueError(f"{text!r} is more than can be counted")
    if exact != int(exact):
        raise ValueError(f"{text!r} has more than 6 decimals; money is counted in millionths of a dollar")
    return int(exact)


def dollars(amount: int) -> str:
    """15,000 micro-dollars are `$0.015`: all decimals that there are, and cents at least."""
    whole, rest = divmod(abs(amount), MICRO)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}${whole:,}.{decimals}"


def decimal(amount: int) -> str:
    """15,000 micro-dollars are `0.015000`, for a program."""
    whole, rest = divmod(abs(amount), MICRO)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06d}"


def optional(amount: int | None) -> str:
    """As `dollars`; nothing is a dash."""
    return "-" if amount is None else dollars(amount)


class Usd(click.ParamType[int]):
    """An option's value in dollars."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return micro_usd(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


USD = Usd()
