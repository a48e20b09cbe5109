"""Which price holds for an engine's model at an instant, and what usage costs by it. Money is whole micro-dollars."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from drivetrain.governance import Price
from drivetrain.policies.access import plain
from drivetrain.types import Usage, Value

ANY = "*"
REMEMBERED = 4096  # look-ups of one table
_MILLION = 1_000_000  # tokens per price, and microseconds per second
_ENERGY = 3_600_000 * 1000  # milliwatt-microseconds that are a micro-kilowatt-hour: the finest unit that is counted in
_WHOLE = _MILLION * _ENERGY  # units in a micro-dollar


class Cost(Value, frozen=True, kw_only=True):
    micro_usd: int = 0
    compute_micro_usd: int = 0  # of it, for time and energy


class _Found(Value, frozen=True, kw_only=True):
    """A look-up, and from when until when it would find the same."""

    price: Price | None
    from_s: float
    until_s: float


class Table:
    """Prices, to be asked in any order of time. Immutable but for what it remembers of look-ups."""

    def __init__(self, prices: Sequence[Price] = ()) -> None:
        self._of_model = _by_model(prices)
        self._found: dict[tuple[str, str, str], _Found] = {}

    def find(self, engine: str, engine_model: str, public_model: str, at_s: float) -> Price | None:
        """The most specific price that is valid at an instant: of this model on this engine, of this model, of this
        engine, of anything. Of two that are equally specific, the one that began later. A model is meant by its
        engine's name or by its public one."""
        key = (engine, engine_model, public_model)
        found = self._found.get(key)
        if found is None or not found.from_s <= at_s < found.until_s:
            found = self._look_up(key, at_s)
        return found.price

    def _look_up(self, key: tuple[str, str, str], at_s: float) -> _Found:
        engine, *models = key
        family = engine.partition("@")[0]  # an instance that was discovered costs what its engine does
        names = {plain(name) for name in models} | {ANY}
        named = [price for name in names for price in self._of_model.get(name, ())]
        meant = [price for price in named if price.engine in (engine, family, ANY)]
        if len(self._found) >= REMEMBERED:
            self._found.clear()
        found = self._found[key] = _at(meant, at_s)
        return found


def _by_model(prices: Iterable[Price]) -> Mapping[str, Sequence[Price]]:
    sorted_by_model: dict[str, list[Price]] = defaultdict(list)
    for price in prices:
        sorted_by_model[price.model if price.model == ANY else plain(price.model)].append(price)
    return sorted_by_model


def _at(prices: Sequence[Price], at_s: float) -> _Found:
    """The best of prices that all mean the same engine and model, and how long it stays the best."""
    edges = [edge for price in prices for edge in (price.from_s, _end(price))]
    return _Found(
        price=max((price for price in prices if price.from_s <= at_s < _end(price)), key=_precedence, default=None),
        from_s=max((edge for edge in edges if edge <= at_s), default=-math.inf),
        until_s=min((edge for edge in edges if edge > at_s), default=math.inf),
    )


def _end(price: Price) -> float:
    return math.inf if price.until_s is None else price.until_s


def _precedence(price: Price) -> tuple[bool, bool, float, str]:
    return price.model != ANY, price.engine != ANY, price.from_s, price.id


def spoken(price: Price, prompt_tokens: int, answer_tokens: int) -> int:
    """What tokens alone cost, none of them cached or reasoned, in micro-dollars rounded as by `cost`."""
    return _micro(price.request * _MILLION + prompt_tokens * price.input + answer_tokens * price.output)


def cost(price: Price, usage: Usage, seconds: float) -> Cost:
    """What `usage` and `seconds` of computing cost. Exact up to the one rounding at the end, half a micro-dollar up.

    Cached tokens are part of the prompt and reasoning ones of the answer, each counted once. An explicit price of zero
    is one; a missing one is that of ordinary tokens.
    """
    told = price.request * _MILLION + _prompt(price, usage) + _answer(price, usage)
    if not (price.second or price.watts):  # as most
        return Cost(micro_usd=_micro(told))
    microseconds = max(0, round(seconds * _MILLION))
    computed = microseconds * (price.second * _ENERGY + round(price.watts * 1000) * price.kwh)
    return Cost(micro_usd=_rounded(told * _ENERGY + computed), compute_micro_usd=_rounded(computed))


def _micro(units: int) -> int:
    return (units + _MILLION // 2) // _MILLION


def _prompt(price: Price, usage: Usage) -> int:
    """In millionths of a micro-dollar, as is `_answer`."""
    cached, written = usage.cached, usage.cache_write
    if not (cached or written):
        return usage.prompt * price.input
    cached_price = price.input if price.cached_input is None else price.cached_input
    write_price = price.input if price.cache_write is None else price.cache_write
    return max(0, usage.prompt - cached - written) * price.input + cached * cached_price + written * write_price


def _answer(price: Price, usage: Usage) -> int:
    reasoning = usage.reasoning
    if not reasoning or price.reasoning is None:
        return max(usage.completion, reasoning) * price.output
    return max(0, usage.completion - reasoning) * price.output + reasoning * price.reasoning


def _rounded(units: int) -> int:
    return (units + _WHOLE // 2) // _WHOLE
