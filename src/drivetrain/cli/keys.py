"""`drivetrain keys`: who may come in. A key is shown once, when it is made; the store has no more than its hash."""

import sys
import time
from collections.abc import Sequence
from typing import Any, get_args

import click

from drivetrain.cli import budgets, limits, output, terms
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.moments import AHEAD, LENGTH, shown
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.words import MODELS, SCOPES, TAG, joined
from drivetrain.governance import Budget, Key, Limit, Priority, Terms

PRIORITY = click.Choice(get_args(Priority))
_KEY = click.argument("key", metavar="KEY")
_MODELS_HELP = "Models that it may use, by their public names: chat,llama*."
_SCOPES_HELP = "What it may do: inference, models, metrics, usage, admin."


@command()
@click.option("--name", required=True, help="What the key is called in lists and messages.")
@click.option("--team", help="The team whose it is. [default: default]")
@click.option("--project", help="The project whose it is. [default: default]")
@click.option("--user", help="The user whose it is. [default: nobody in particular]")
@click.option("--models", type=MODELS, help=f"{_MODELS_HELP} [default: all]")
@click.option("--scopes", type=SCOPES, default="inference", help=f"{_SCOPES_HELP} [default: inference]")
@click.option("--priority", type=PRIORITY, default="interactive", help="The highest class that it may ask for.")
@click.option("--expires", "expires_s", type=AHEAD, help="When it ends: 90d, 2027-01-01. [default: never]")
@click.option("--tag", "tags", type=TAG, multiple=True, help="NAME=VALUE, kept with the key. Repeatable.")
def create(call: Call, **given: Any) -> None:
    """Make a key.

    It is printed once, alone on standard output where that is no terminal, and cannot be shown again.
    """
    with office(call) as at:
        place = at.place(given.pop("team"), given.pop("project"))
        user, tags = given.pop("user"), dict(given.pop("tags"))
        owner = {"user": at.find("user", user).id} if user else {}
        _hand_out(call, at, *at.create_key({**given, **place, **owner, "tags": tags}))


@command(name="list")
@click.option("--team", help="Of this team only.")
@click.option("--project", help="Of this project only.")
@click.option("--all", "every", is_flag=True, help="Those that were revoked or have ended, too.")
def list_(call: Call, team: str | None, project: str | None, every: bool) -> None:
    """List the keys."""
    with office(call) as at:
        found = [key for key in at.all("key", **at.place(team, project)) if every or _state(key) == "active"]
        if call.json:
            output.emit({"keys": [_shown(at, key) for key in found]})
            return
        headings = ("NAME", "KEY", "TEAM", "PROJECT", "USER", "SCOPES", "MODELS", "EXPIRES", "STATE")
        output.table(headings, [_row(at, key) for key in found])


@command()
@_KEY
def show(call: Call, key: str) -> None:
    """Show a key, and the limits, budgets and terms that bind it.

    KEY is its name, its id, or the 12 characters in it that everybody may see.
    """
    with office(call) as at:
        found = at.find("key", key)
        rules = at.binding(found)
        said = [(subject, one) for subject, one in at.chain(found) if one.terms != Terms()]
        if call.json:
            above = [terms.terms_of(subject, one) for subject, one in said]
            output.emit(_shown(at, found) | {"rules": [told(rule) for rule in rules], "terms_of": above})
            return
        for name, value in _facts(at, found):
            click.echo(f"{name:<10} {value}")
        if (allowed := at.team_of(found).models) is not None:
            click.echo(f"{'team may':<10} {joined(allowed)}")
        for rule in rules:
            click.echo(f"{'bound by':<10} {at.bearer(rule)}: {_amount(rule)}")
        for subject, one in said:
            click.echo(f"{'terms of':<10} {subject} {one.name!r}: {terms.summary(one.terms)}")


@command()
@_KEY
@click.option("--name", help="A new name.")
@click.option("--models", type=MODELS, help=f"{_MODELS_HELP} '*' for all.")
@click.option("--scopes", type=SCOPES, help=_SCOPES_HELP)
@click.option("--priority", type=PRIORITY, help="The highest class that it may ask for.")
@click.option("--expires", "expires_s", type=AHEAD, help="When it ends: 90d, 2027-01-01.")
@click.option(
    "--tag", "tags", type=TAG, multiple=True, help="NAME=VALUE; the tags that are given take the old ones' place."
)
def update(call: Call, key: str, tags: Sequence[tuple[str, str]], **fields: Any) -> None:
    """Change what a key may do.

    It goes on working as it is; servers know within a second.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    given |= {"tags": dict(tags)} if tags else {}
    if not given:
        raise Misused("nothing is to be changed (see `drivetrain keys update --help`)")
    with office(call) as at:
        changed = at.change("key", at.find("key", key), given)
        if call.json:
            output.emit(_shown(at, changed))
        else:
            click.echo(f"key {changed.name!r} is changed", err=True)


@command()
@_KEY
@click.option("--grace", type=LENGTH, help="How long the old key goes on working: 1h, 0s. [default: keys.grace_s, 1d]")
def rotate(call: Call, key: str, grace: float | None) -> None:
    """Make a key's successor.

    The new key has the same rights, limits, budgets and terms. The old one works on for a while, so that nobody is
    locked out.
    """
    with office(call) as at:
        _hand_out(call, at, *at.rotate_key(at.find("key", key), grace))


@command()
@_KEY
def revoke(call: Call, key: str) -> None:
    """End a key now.

    Every server refuses it within a second. Its past stays in the ledger.
    """
    with office(call) as at:
        gone = at.revoke_key(at.find("key", key))
        if call.json:
            output.emit(_shown(at, gone))
        else:
            click.echo(f"key {gone.name!r} is revoked", err=True)


keys = click.Group(
    "keys",
    commands=[create, list_, show, update, rotate, revoke],
    params=shared_options(),
    help="Create, list, rotate and revoke API keys.",
)


def _hand_out(call: Call, at: Office, key: Key, secret: str) -> None:
    if call.json:
        output.emit({"key": secret, **_shown(at, key)})
        return
    click.echo(secret)
    if sys.stdout.isatty():
        hint = "Keep it: it is shown this once. Send it as `Authorization: Bearer …` or `x-api-key`."
        click.echo(f"\nkey {key.name!r} of {_place(at, key)}. {hint}", err=True)


def _amount(rule: Limit | Budget) -> str:
    return limits.amount_of(rule) if isinstance(rule, Limit) else budgets.amount_of(rule)


def _place(at: Office, key: Key) -> str:
    return f"team {at.team_of(key).name!r}, project {at.name('project', key.project)!r}"


def _state(key: Key) -> str:
    if key.disabled:
        return "revoked"
    return "expired" if key.expires_s is not None and key.expires_s <= time.time() else "active"


def _row(at: Office, key: Key) -> tuple[str, ...]:
    facts = dict(_facts(at, key))
    return tuple(
        facts[name] for name in ("name", "key", "team", "project", "user", "scopes", "models", "expires", "state")
    )


def _facts(at: Office, key: Key) -> list[tuple[str, str]]:
    return [
        ("name", key.name),
        ("key", f"dt-{key.public_id}-…"),
        ("id", key.id),
        ("team", at.team_of(key).name),
        ("project", at.name("project", key.project)),
        ("user", at.name("user", key.user) if key.user else "-"),
        ("scopes", joined(key.scopes)),
        ("models", joined(key.models)),
        ("priority", key.priority),
        ("created", shown(key.created_s)),
        ("expires", shown(key.expires_s, none="never")),
        ("state", _state(key)),
        ("tags", joined([f"{name}={value}" for name, value in key.tags.items()])),
    ]


def _shown(at: Office, key: Key) -> dict[str, Any]:
    facts = dict(_facts(at, key))
    return told(key) | {"team_name": facts["team"], "project_name": facts["project"], "state": facts["state"]}
