"""`drivetrain prices`: what models cost, from when until when."""

import time
from collections.abc import Sequence
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.amounts import USD, dollars, optional
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.completion import model_names
from drivetrain.cli.limits import lift
from drivetrain.cli.moments import AHEAD, PAST, shown
from drivetrain.cli.office import Office, office, told
from drivetrain.governance import Price
from drivetrain.policies.access import plain

MONEY = ("input", "cached_input", "cache_write", "output", "reasoning", "request", "second", "kwh")


@command(name="set")
@click.argument("model", shell_complete=model_names)
@click.option("--engine", default="*", help="On this engine only. [default: on any]")
@click.option("--input", "input_", type=USD, help="Dollars per million prompt tokens.")
@click.option("--cached-input", type=USD, help="Per million of them that came from a cache. [default: as --input]")
@click.option("--cache-write", type=USD, help="Per million that were written to one. [default: as --input]")
@click.option("--output", "output_", type=USD, help="Per million tokens of the answer.")
@click.option("--reasoning", type=USD, help="Per million of them that are reasoning. [default: as --output]")
@click.option("--request", type=USD, help="Per request.")
@click.option("--second", type=USD, help="Per second of computing, for engines of your own.")
@click.option("--watts", type=click.FloatRange(0), help="Drawn while it computes; needs --kwh.")
@click.option("--kwh", type=USD, help="Dollars per kilowatt-hour.")
@click.option("--from", "from_s", type=AHEAD, help="When it begins: 2026-12-01, 7d. [default: now]")
@click.option("--until", "until_s", type=AHEAD, help="When it ends. [default: when another begins]")
def set_(call: Call, model: str, input_: int | None, output_: int | None, **given: Any) -> None:
    """Set the price of a model from an instant on.

    It ends the price before it. MODEL is a public name or an engine's own one; '*' stands for every model. The most
    specific price holds: of a model on an engine, of a model, of an engine. What is not named costs nothing.
    """
    given |= {"input": input_, "output": output_}
    fields = {"model": model, **{name: value for name, value in given.items() if value is not None}}
    _check(fields)
    with office(call) as at:
        made = _put(at, {"from_s": time.time(), **fields})
        if call.json:
            output.emit(told(made))
        else:
            until = f" until {shown(made.until_s)}" if made.until_s is not None else ""
            click.echo(f"{model}: {_tokens(made)}, from {shown(made.from_s)} on{until}", err=True)


def _check(fields: dict[str, Any]) -> None:
    if not any(name in fields for name in (*MONEY, "watts")):
        raise Misused("a price needs amounts, such as --input 0.15 --output 0.60; zero is one, too")
    if ("watts" in fields) != ("kwh" in fields):
        raise Misused("energy needs both --watts and --kwh")


def _put(at: Office, fields: dict[str, Any]) -> Price:
    """The new price between its neighbours of the same model and engine."""
    from_s = fields["from_s"]
    same = [price for price in at.all("price") if _same(price, fields["engine"], fields["model"])]
    if any(price.from_s == from_s for price in same):
        raise Misused(f"a price of {fields['model']!r} begins at {shown(from_s)} already; remove that one first")
    before = [price for price in same if price.from_s < from_s and (price.until_s is None or price.until_s > from_s)]
    after = min((price.from_s for price in same if price.from_s > from_s), default=None)
    if after is not None and fields.get("until_s") is None:
        fields["until_s"] = after
    until_s = fields.get("until_s")
    if until_s is not None and until_s <= from_s:
        raise Misused(f"the price would end at {shown(until_s)}, before it begins at {shown(from_s)}")
    made: Price = at.create("price", fields)
    for price in before:
        at.change("price", price, {"until_s": from_s})
    return made


def _same(price: Price, engine: str, model: str) -> bool:
    return price.engine == engine and plain(price.model) == plain(model)


@command(name="list")
@click.option("--model", help="Of this model only.")
@click.option("--at", "at_s", type=PAST, help="Those that hold at this time.")
@click.option("--all", "every", is_flag=True, help="Those that have ended, too.")
def list_(call: Call, model: str | None, at_s: float | None, every: bool) -> None:
    """List prices: those in force, and those to come.

    Dollars per million tokens, and per request and second where there is such a price.
    """
    with office(call) as at:
        wanted = [price for price in at.all("price") if model is None or plain(price.model) == plain(model)]
        found = [price for price in wanted if every or _holds(price, at_s)]
        found.sort(key=lambda price: (price.model, price.engine, price.from_s))
        if call.json:
            output.emit({"prices": [told(price) for price in found]})
            return
        output.table(
            ("MODEL", "ENGINE", "INPUT", "CACHED", "OUTPUT", "REASONING", "MORE", "FROM", "UNTIL", "ID"),
            map(_row, found),
        )


def _holds(price: Price, at_s: float | None) -> bool:
    """Whether it is in force then; without a time, whether it has not ended."""
    ended = price.until_s is not None and price.until_s <= (time.time() if at_s is None else at_s)
    return not ended and (at_s is None or price.from_s <= at_s)


def _row(price: Price) -> tuple[str, ...]:
    return (
        price.model,
        price.engine,
        dollars(price.input),
        optional(price.cached_input),
        dollars(price.output),
        optional(price.reasoning),
        ", ".join(_more(price)) or "-",
        shown(price.from_s or None, none="ever"),
        shown(price.until_s),
        price.id,
    )


def _more(price: Price) -> list[str]:
    more = [f"{dollars(price.cache_write)} cache write"] if price.cache_write is not None else []
    more += [f"{dollars(price.request)} per request"] if price.request else []
    more += [f"{dollars(price.second)} per second"] if price.second else []
    return more + ([f"{price.watts:g} W at {dollars(price.kwh)} per kWh"] if price.watts else [])


def _tokens(price: Price) -> str:
    return ", ".join([f"{dollars(price.input)} in and {dollars(price.output)} out per million tokens", *_more(price)])


@command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def remove(call: Call, ids: Sequence[str]) -> None:
    """Remove prices by their ids.

    What was reckoned with them stays as it is.
    """
    lift(call, "price", ids)


prices = click.Group(
    "prices",
    commands=[set_, list_, remove],
    params=shared_options(),
    help="Set and list what models cost.",
)
