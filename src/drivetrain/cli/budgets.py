"""`drivetrain budgets`: how much money a key, user, project, team or organisation may spend in a time."""

import math
import time
from collections.abc import Sequence
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.amounts import USD, dollars
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.limits import lift
from drivetrain.cli.moments import iso, shown
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.subjects import ON_LOSS, ONE_MODEL, binds, bound, every_bound, subject_options
from drivetrain.errors import BadRequest
from drivetrain.governance import Budget
from drivetrain.policies import calendars

PER = click.Choice(("hour", "day", "week", "month", "total"))


@command(name="set")
@subject_options("Bind")
@click.option("--usd", type=USD, required=True, help="How much, in dollars: 50, 0.015.")
@click.option("--per", type=PER, required=True, help="In which time.")
@click.option("--zone", help="Whose calendar: Europe/Berlin. [default: UTC]")
@click.option("--rolling", is_flag=True, help="The last hour, day, …, instead of that of the calendar.")
@click.option("--soft", is_flag=True, help="Only tell what is over it; nothing is refused.")
@ONE_MODEL
@ON_LOSS
def set_(
    call: Call, usd: int, per: str, zone: str | None, rolling: bool, soft: bool, model: str | None, **given: Any
) -> None:
    """Set a budget, or change its amount.

    There may be several, of different times; a soft one beside a hard one tells before that refuses.
    """
    with office(call) as at:
        whom = bound(at, given)
        same = {"per": per, "rolling": rolling, "hard": not soft, "model": model}
        free = {"zone": _zone(zone), "on_loss": given["on_loss"]}
        fields = {"amount": usd, **{name: value for name, value in free.items() if value is not None}}
        old = next((one for one in at.all("budget") if binds(one, [whom]) and _has(one, same)), None)
        if old is not None:
            kept = at.change("budget", old, fields)
        else:
            kept = at.create("budget", {"subject": whom.subject, "subject_id": whom.id, **same, **fields})
        if call.json:
            output.emit(told(kept))
        else:
            click.echo(f"{at.bearer(kept)}: {amount_of(kept)}", err=True)


def _has(budget: Budget, fields: dict[str, Any]) -> bool:
    return all(getattr(budget, name) == value for name, value in fields.items())


def _zone(name: str | None) -> str | None:
    try:
        if name is not None:
            calendars.zone_named(name)
    except BadRequest as error:
        raise Misused(error.message) from error
    return name


@command(name="list")
@subject_options("Only those of")
def list_(call: Call, **given: Any) -> None:
    """List the budgets, and what is spent of them now.

    What the ledger has in the present window; requests that run are not in it yet.
    """
    now_s = time.time()
    with office(call) as at:
        subjects = every_bound(at, given)
        found = [budget for budget in at.all("budget") if binds(budget, subjects)]
        rows = [(budget, window(budget, now_s)) for budget in found]
        spent = [at.spent(budget, *span) for budget, span in rows]
        if call.json:
            told_ = [_told(at, budget, span, used) for (budget, span), used in zip(rows, spent, strict=True)]
            output.emit({"budgets": told_})
            return
        headings = ("BINDS", "BUDGET", "MODEL", "SPENT", "LEFT", "ANEW", "ID")
        cells = [_row(at, budget, span, used) for (budget, span), used in zip(rows, spent, strict=True)]
        output.table(headings, cells)


def window(budget: Budget, now_s: float) -> calendars.Span:
    """What time counts now. A rolling one ends at no instant: it moves."""
    if budget.rolling:
        return max(0.0, now_s - calendars.ROLLING_S[budget.per]), math.inf
    return calendars.window(budget.per, budget.zone, now_s)


def _row(at: Office, budget: Budget, span: calendars.Span, spent: int) -> tuple[str, ...]:
    left = max(0, budget.amount - spent)
    anew = "rolls" if budget.rolling else "never" if math.isinf(span[1]) else shown(span[1])
    name = at.bearer(budget)
    return (name, amount_of(budget), budget.model or "all", dollars(spent), dollars(left), anew, budget.id)


def amount_of(budget: Budget) -> str:
    """`$50.00 per month of Europe/Berlin, soft`."""
    per = "in total" if budget.per == "total" else f"per {budget.per}"
    zone = f" of {budget.zone}" if budget.zone != "UTC" and not budget.rolling else ""
    words = f"{dollars(budget.amount)} {per}{zone}"
    return words + (", rolling" if budget.rolling else "") + ("" if budget.hard else ", soft")


def _told(at: Office, budget: Budget, span: calendars.Span, spent: int) -> dict[str, Any]:
    anew = None if math.isinf(span[1]) else iso(span[1])
    facts = {"owner": at.bearer(budget), "spent": spent, "since": iso(span[0]), "anew": anew}
    return told(budget) | facts


@command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def remove(call: Call, ids: Sequence[str]) -> None:
    """Remove budgets by their ids."""
    lift(call, "budget", ids)


budgets = click.Group(
    "budgets",
    commands=[set_, list_, remove],
    params=shared_options(),
    help="Set budgets, and see what is spent of them.",
)
