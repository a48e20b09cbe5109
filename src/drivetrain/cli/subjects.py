"""Whom a limit, a budget or terms bind: one of `--key`, `--user`, `--project`, `--team` and `--org`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

import click

from drivetrain.cli.command import Misused
from drivetrain.cli.office import Office, counted
from drivetrain.governance import Key, OnLoss, Subject

SUBJECTS: tuple[Subject, ...] = get_args(Subject)
T = TypeVar("T")
ON_LOSS = click.option(
    "--on-loss",
    type=click.Choice(get_args(OnLoss)),
    help="What holds while shared.url is away: count this server's share, let all in, or none. [default: share]",
)
ONE_MODEL = click.option("--model", help="Count requests for this public model only.")


class Bound(NamedTuple):
    subject: Subject
    id: str


def subject_options(verb: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The five options; the command gets what was given as keywords."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for subject in SUBJECTS:
            about = f"{verb} this {'organisation' if subject == 'org' else subject}, by its name or id."
            function = click.option(f"--{subject}", metavar="NAME", help=about)(function)
        return function

    return decorate


def bound(at: Office, given: Mapping[str, str | None]) -> Bound:
    """The one that was named. Raises `Misused` for none, and for several."""
    return one_of(every_bound(at, given))


def one_of(found: Sequence[T]) -> T:
    """The only one. Raises `Misused` for none, and for several."""
    if len(found) != 1:
        options = ", ".join(f"--{subject}" for subject in SUBJECTS[::-1])
        raise Misused(f"say whom it binds with one of {options}; {len(found) or 'none'} of them given")
    return found[0]


def every_bound(at: Office, given: Mapping[str, str | None]) -> list[Bound]:
    found = named(at, given)
    return [Bound(subject, counted(one) if isinstance(one, Key) else one.id) for subject, one in found]


def named(at: Office, given: Mapping[str, str | None]) -> list[tuple[Subject, Any]]:
    """What is there by the names that were given."""
    words = [(subject, given.get(subject)) for subject in SUBJECTS]
    return [(subject, at.find(subject, word)) for subject, word in words if word is not None]


def binds(thing: Any, subjects: list[Bound]) -> bool:
    """Whether a limit or budget is one of these; all are, where none was named."""
    return not subjects or Bound(thing.subject, thing.subject_id) in subjects
