"""`drivetrain terms`: how long requests of a key, user, project, team or organisation may take and wait, and what is
billed when their caller leaves.
"""

import re
from collections.abc import Callable
from typing import Any, get_args

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.command import Call, Misused, command, shared_options
from drivetrain.cli.moments import length_s
from drivetrain.cli.office import Office, office, told
from drivetrain.cli.subjects import SUBJECTS, named, one_of, subject_options
from drivetrain.governance import OnDisconnect, Subject, Terms

NONE = "none"  # what lifts a term
_DECIMAL = re.compile(r"(\d+\.\d+)s", re.ASCII)


class Term(click.ParamType[Any]):
    """An option's value, or `none`."""

    def __init__(self, name: str, read: Callable[[str], float | int | None], like: str) -> None:
        self.name = name
        self._read = read
        self._like = like

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == NONE or not isinstance(value, str):
            return value
        found = self._read(value)
        if found is None:
            self.fail(f"{value!r} does not fit; write {self._like}, or `none` to lift it", param, ctx)
        return found


def _time_s(text: str) -> float | None:
    """`30s`, `5m`, and below a second `0.25s`."""
    parts = _DECIMAL.fullmatch(text)
    return (float(parts[1]) if parts else length_s(text)) or None


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


TIME = Term("time", _time_s, "a time such as 30s, 5m or 0.25s")
COUNT = Term("count", _count, "a number from 0 to 999999")


@command(name="set")
@subject_options("Bind")
@click.option("--connect", "connect_s", type=TIME, help="For a connection to the engine.")
@click.option("--first-token", "first_token_s", type=TIME, help="Until the first piece of the answer.")
@click.option("--idle", "idle_s", type=TIME, help="Between two pieces.")
@click.option("--total", "total_s", type=TIME, help="For the whole answer.")
@click.option("--queue-size", type=COUNT, help="Requests that may wait for a slot at once; 0: none.")
@click.option("--queue-timeout", "queue_timeout_s", type=TIME, help="How long one may wait for a slot.")
@click.option(
    "--on-disconnect",
    type=click.Choice((*get_args(OnDisconnect), NONE)),
    help="The caller left: bill what came, let the answer end and bill it, or bill nothing.",
)
def set_(call: Call, **given: Any) -> None:
    """Set terms, change them, or lift them with `none`.

    Those that are not named stay as they are. Of a key's own times and those of its user, project, team, organisation
    and of the model's policy, the shortest holds; of what is said on --on-disconnect, the nearest to the key.
    """
    fields = {name: given[name] for name in Terms.__struct_fields__ if given[name] is not None}
    if not fields:
        raise Misused("no term is named (see `drivetrain terms set --help`)")
    with office(call) as at:
        subject, thing = one_of(named(at, given))
        lifted = {name: None if value == NONE else value for name, value in fields.items()}
        after = at.change(subject, thing, {"terms": told(thing.terms) | lifted})
        if call.json:
            output.emit(terms_of(subject, after))
        else:
            click.echo(f"{subject} {after.name!r}: {summary(after.terms)}", err=True)


@command(name="list")
@subject_options("Only those of")
def list_(call: Call, **given: Any) -> None:
    """List the terms."""
    with office(call) as at:
        found = [(subject, one) for subject, one in named(at, given) or _everybody(at) if one.terms != Terms()]
        if call.json:
            output.emit({"terms": [terms_of(subject, one) for subject, one in found]})
            return
        output.table(("BINDS", "TERMS"), [(f"{subject} {one.name!r}", summary(one.terms)) for subject, one in found])


def _everybody(at: Office) -> list[tuple[Subject, Any]]:
    """Keys that were revoked have nothing to lay down any more."""
    everybody = [(subject, one) for subject in SUBJECTS for one in at.all(subject)]
    return [(subject, one) for subject, one in everybody if subject != "key" or not one.disabled]


def summary(terms: Terms) -> str:
    """`first token within 5 s, none may wait, on disconnect drain`"""
    times = {"connection": terms.connect_s, "first token": terms.first_token_s, "pause": terms.idle_s}
    times |= {"answer": terms.total_s, "wait": terms.queue_timeout_s}
    words = [f"{what} within {limit_s:g} s" for what, limit_s in times.items() if limit_s is not None]
    if terms.queue_size is not None:
        words.append(f"{terms.queue_size or 'none'} may wait")
    if terms.on_disconnect is not None:
        words.append(f"on disconnect {terms.on_disconnect}")
    return ", ".join(words) or "nothing"


def terms_of(subject: Subject, one: Any) -> dict[str, Any]:
    """For JSON."""
    owner = {"owner": f"{subject} {one.name!r}", "subject": subject, "subject_id": one.id, "version": one.version}
    return owner | msgspec.structs.asdict(one.terms)


terms = click.Group(
    "terms",
    commands=[set_, list_],
    params=shared_options(),
    help="Set how long requests may take and wait, and what is billed when a caller leaves.",
)
