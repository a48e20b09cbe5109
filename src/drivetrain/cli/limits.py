"""`drivetrain limits`: how much a key, user, project, team or organisation may ask for at a time."""

from collections.abc import Sequence
from typing import Any, Literal

import click

from drivetrain.cli import output
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.subjects import ON_LOSS, ONE_MODEL, Bound, binds, bound, every_bound, subject_options
from drivetrain.governance import Limit, OnLoss

KINDS: dict[str, tuple[str, str]] = {  # option: resource, per
    "requests_per_minute": ("requests", "minute"),
    "requests_per_day": ("requests", "day"),
    "tokens_per_minute": ("tokens", "minute"),
    "tokens_per_day": ("tokens", "day"),
    "concurrency": ("concurrency", ""),
}
NONE = 0  # typed as `none`: no limit


class Amount(click.ParamType[int]):
    """An option's value: how many, or `none`."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        written = str(value).replace("_", "")
        if written == "none":
            return NONE
        if not (written.isascii() and written.isdigit()) or not 0 < int(written) < 2**62:
            self.fail(f"{value!r} is no limit; write a number from 1, or `none` to lift it", param, ctx)
        return int(written)


AMOUNT = Amount()


@command(name="set")
@subject_options("Bind")
@click.option("--requests-per-minute", type=AMOUNT, help="Requests in any minute.")
@click.option("--requests-per-day", type=AMOUNT, help="Requests in any 24 hours.")
@click.option("--tokens-per-minute", type=AMOUNT, help="Tokens of prompts and answers in any minute.")
@click.option("--tokens-per-day", type=AMOUNT, help="Tokens of prompts and answers in any 24 hours.")
@click.option("--concurrency", type=AMOUNT, help="Requests at once.")
@ONE_MODEL
@ON_LOSS
def set_(call: Call, model: str | None, on_loss: OnLoss | None, **given: Any) -> None:
    """Set limits, change them, or lift them with `none`.

    Those that are not named stay as they are. A key is bound by its own limits and by those of its user, project, team
    and organisation, each counted on its own.
    """
    wanted = {name: given[name] for name in KINDS if given[name] is not None}
    if not wanted:
        raise Misused("no limit is named (see `drivetrain limits set --help`)")
    with office(call) as at:
        whom = bound(at, given)
        done = [_set(at, whom, KINDS[name], amount, model, on_loss) for name, amount in wanted.items()]
        left = [limit for limit in done if limit is not None]
        if call.json:
            output.emit({"limits": [told(limit) for limit in left]})
        else:
            click.echo(f"{len(left)} set, {len(done) - len(left)} lifted", err=True)


def _set(
    at: Office, whom: Bound, kind: tuple[str, str], amount: int, model: str | None, on_loss: OnLoss | None
) -> Limit | None:
    resource, per = kind
    old = next((one for one in _all(at, [whom]) if (one.resource, one.per, one.model) == (resource, per, model)), None)
    if amount == NONE:
        if old is not None:
            at.remove("limit", old)
        return None
    loss: dict[str, Any] = {"on_loss": on_loss} if on_loss is not None else {}
    if old is not None:
        changed: Limit = at.change("limit", old, {"amount": amount, **loss})
        return changed
    fields = {"subject": whom.subject, "subject_id": whom.id, "resource": resource, "per": per, "model": model}
    made: Limit = at.create("limit", {**fields, "amount": amount, **loss})
    return made


@command(name="list")
@subject_options("Only those of")
def list_(call: Call, **given: Any) -> None:
    """List the limits."""
    with office(call) as at:
        found = _all(at, every_bound(at, given))
        if call.json:
            output.emit({"limits": [told(limit) | {"owner": at.bearer(limit)} for limit in found]})
            return
        output.table(("BINDS", "LIMIT", "MODEL", "ON LOSS", "ID"), [_row(at, limit) for limit in found])


def _all(at: Office, subjects: list[Bound]) -> list[Limit]:
    return [limit for limit in at.all("limit") if binds(limit, subjects)]


def _row(at: Office, limit: Limit) -> tuple[str, ...]:
    return (at.bearer(limit), amount_of(limit), limit.model or "all", limit.on_loss, limit.id)


def amount_of(limit: Limit) -> str:
    """`60 requests per minute`, `4 requests at once`."""
    if limit.resource == "concurrency":
        return f"{limit.amount:,} requests at once"
    return f"{limit.amount:,} {limit.resource} per {limit.per}"


@command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def remove(call: Call, ids: Sequence[str]) -> None:
    """Remove limits by their ids."""
    lift(call, "limit", ids)


def lift(call: Call, kind: Literal["limit", "budget", "price"], ids: Sequence[str]) -> None:
    """Remove things that have no name. All of them have to be there before one goes."""
    with office(call) as at:
        for gone in [at.find(kind, word) for word in ids]:
            at.remove(kind, gone)
            if call.json:
                output.emit_line({"removed": gone.id})


limits = click.Group(
    "limits",
    commands=[set_, list_, remove],
    params=shared_options(),
    help="Limit requests, tokens and concurrency.",
)
