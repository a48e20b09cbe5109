"""`drivetrain orgs`, `teams`, `projects` and `users`: the house that keys belong to."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from drivetrain.cli import output
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.moments import shown
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.words import MODELS, SCOPES, joined

Options = tuple[Callable[[Any], Any], ...]

_RENAME = click.option("--name", metavar="NAME", help="A new name.")
_DISABLE = click.option(
    "--disable/--enable", "disabled", default=None, help="Refuse its keys, everywhere within a second; or take them."
)
_MODELS = click.option("--models", type=MODELS, help="What its keys may use at most: chat,llama*; '*' for all.")
_EMAIL = click.option("--email", metavar="ADDRESS", help="How to reach the user.")
_SUBJECT = click.option(
    "--subject", metavar="ISSUER|SUB", help="Who an identity provider says it is, for administrators without a key."
)
_SCOPES = click.option("--scopes", type=SCOPES, help="What the user may do when an identity provider vouches for it.")
_PERSON: Options = (_EMAIL, _SUBJECT, _SCOPES)


class Kind(NamedTuple):
    """What the commands on one kind of thing have of their own."""

    name: str  # as the store calls it
    plural: str  # as the command is called
    above: str  # what it belongs to; "" for nothing
    example: str
    options: Options = ()
    headings: tuple[str, ...] = ()
    cells: Callable[[Any], tuple[str, ...]] = lambda one: ()


def _group(kind: Kind) -> click.Group:
    commands = [_create(kind), _list(kind), _update(kind), _remove(kind)]
    about = f"Create, list and change {_TITLES[kind.name]}."
    return click.Group(kind.plural, commands=commands, params=shared_options(), help=about)


_TITLES = {"org": "organisations", "team": "teams", "project": "projects", "user": "users"}


def _with(options: Options, function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function


def _create(kind: Kind) -> click.Command:
    owner = click.option(
        f"--{kind.above}", "above", metavar="NAME", help=f"The {kind.above} that it belongs to. [default: default]"
    )

    def create(call: Call, name: str, above: str | None = None, **fields: Any) -> None:
        with office(call) as at:
            belongs = {kind.above: at.find(kind.above, above).id} if above else {}
            made = at.create(kind.name, {"name": name, **belongs, **_given(fields)})
            _tell(call, made, f"{kind.name} {name!r} is there, with the id {made.id}")

    options = (click.argument("name"), *([owner] if kind.above else []), *kind.options)
    return command("create", help=f"Make a {kind.name}: {kind.example}.")(_with(options, create))


def _list(kind: Kind) -> click.Command:
    def list_(call: Call) -> None:
        with office(call) as at:
            found = at.all(kind.name)
            if call.json:
                output.emit({kind.plural: [told(one) for one in found]})
                return
            above = (kind.above.upper(),) if kind.above else ()
            headings = ("NAME", *above, *kind.headings, "STATE", "CREATED", "ID")
            output.table(headings, [_row(kind, at, one) for one in found])

    return command("list", help=f"List {_TITLES[kind.name]}.")(list_)


def _row(kind: Kind, at: Office, one: Any) -> tuple[str, ...]:
    above = (at.name(kind.above, getattr(one, kind.above)),) if kind.above else ()
    state = "disabled" if one.disabled else "active"
    return (one.name, *above, *kind.cells(one), state, shown(one.created_s), one.id)


def _update(kind: Kind) -> click.Command:
    def update(call: Call, word: str, **fields: Any) -> None:
        given = _given(fields)
        if not given:
            raise Misused(f"nothing is to be changed (see `drivetrain {kind.plural} update --help`)")
        with office(call) as at:
            changed = at.change(kind.name, at.find(kind.name, word), given)
            _tell(call, changed, f"{kind.name} {changed.name!r} is changed")

    options = (click.argument("word", metavar=kind.name.upper()), _RENAME, *kind.options, _DISABLE)
    return command("update", help=f"Change a {kind.name}, by its name or id.")(_with(options, update))


def _remove(kind: Kind) -> click.Command:
    def remove(call: Call, word: str) -> None:
        with office(call) as at:
            gone = at.find(kind.name, word)
            at.remove(kind.name, gone)
            if call.json:
                output.emit({"removed": gone.id})
            else:
                click.echo(f"{kind.name} {gone.name!r} is gone", err=True)

    about = f"Remove a {kind.name} that nothing belongs to.\n\nElse disable it: its past stays in the ledger."
    return command("remove", help=about)(_with((click.argument("word", metavar=kind.name.upper()),), remove))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _tell(call: Call, one: Any, words: str) -> None:
    if call.json:
        output.emit(told(one))
    else:
        click.echo(words, err=True)


orgs = _group(Kind("org", "orgs", "", "orgs create acme"))
teams = _group(
    Kind(
        "team",
        "teams",
        "org",
        "teams create search",
        options=(_MODELS,),
        headings=("MODELS",),
        cells=lambda team: (joined(team.models),),
    )
)
projects = _group(Kind("project", "projects", "team", "projects create web --team search"))
users = _group(
    Kind(
        "user",
        "users",
        "org",
        "users create ada --email ada@example.com",
        options=_PERSON,
        headings=("EMAIL", "SCOPES"),
        cells=lambda user: (user.email or "-", joined(user.scopes)),
    )
)
