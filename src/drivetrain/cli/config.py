"""`drivetrain config`: check and show the configuration, its schema for editors, and go back to an earlier one."""

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from drivetrain import config as configuration
from drivetrain import engines
from drivetrain.cli import earlier, output
from drivetrain.cli.client import process_of
from drivetrain.cli.command import Call, Existing, Missing, command, shared_options
from drivetrain.cli.moments import iso, shown
from drivetrain.cli.office import actor, opened
from drivetrain.config import ConfigError, Problem
from drivetrain.config.problems import dotted
from drivetrain.errors import NotFound
from drivetrain.store import ConfigRevision, Store


def _resolve(call: Call, file: Path | None) -> configuration.Resolved:
    path = file or configuration.find(call.home)
    return configuration.resolve(path, call.environ, kinds=engines.kinds(), options_of=engines.options_of)


_FILE = click.argument("file", required=False, type=Existing())


@command()
@_FILE
def check(call: Call, file: Path | None) -> None:
    """Tell whether a configuration can be used.

    FILE is drivetrain.yaml in the home if not given. Every problem is listed with its line; with --json on standard
    output, too.
    """
    where = file or configuration.find(call.home)
    try:
        resolved = _resolve(call, file)
    except ConfigError as error:
        if call.json:
            problems = [_told(problem) for problem in error.problems]
            output.emit({"valid": False, "file": str(where) if where else None, "problems": problems})
        raise
    for warning in resolved.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if call.json:
        output.emit({"valid": True, "file": str(where) if where else None, "warnings": list(resolved.warnings)})
    else:
        click.echo(f"{where}: valid" if where else f"no {configuration.FILE} in {call.home}: the defaults hold")


@command()
@_FILE
@click.option("--origin", is_flag=True, help="Each value on a line, with the place it was written.")
def show(call: Call, file: Path | None, origin: bool) -> None:
    """Show the whole configuration, defaults included.

    Secrets are hidden. A flag counts before the environment, that before the file, that before the default.
    """
    resolved = _resolve(call, file)
    shown = configuration.dump(resolved.config, resolved.secrets)
    if call.json:
        output.emit({"config": shown, "origins": dict(resolved.origins)} if origin else shown)
    elif origin:
        output.table(("SETTING", "VALUE", "FROM"), _rows(shown, resolved.origins))
    else:
        click.echo(configuration.to_yaml(shown), nl=False)


@command()
def schema(call: Call) -> None:
    """Print the JSON schema of drivetrain.yaml.

    For editors and other tools.
    """
    output.emit(configuration.json_schema())


@command()
@click.argument("revision", required=False, type=click.IntRange(1))
def revisions(call: Call, revision: int | None) -> None:
    """List the configurations that were in force.

    With REVISION, print that one as it was written. The present one is marked.
    """
    with _store(call) as store:
        if revision is not None:
            click.echo(_kept(store, revision).body, nl=False)
            return
        kept = store.configs()
    present = _hash(earlier.present(call.home) or "")
    in_force = next((one.revision for one in kept if one.hash == present), None)
    if call.json:
        told = [{"revision": one.revision, "at": iso(one.at_s), "actor": one.actor, "hash": one.hash} for one in kept]
        output.emit({"revisions": told, "present": in_force})
        return
    marks = ["now" if one.revision == in_force else "" for one in kept]
    rows = [
        (str(one.revision), shown(one.at_s), one.actor, one.hash[:12], mark)
        for one, mark in zip(kept, marks, strict=True)
    ]
    output.table(("REVISION", "SINCE", "WHO", "HASH", ""), rows)


@command()
@click.argument("revision", type=click.IntRange(1))
def rollback(call: Call, revision: int) -> None:
    """Go back to an earlier configuration.

    Writes drivetrain.yaml as it was in REVISION, after a check, and tells a server that runs on this home. The present
    file is kept as a revision, too.
    """
    with _store(call) as store:
        wanted = _kept(store, revision)
        before = earlier.write(store, call.home, wanted, check=partial(_resolve, call), actor=actor())
        made = earlier.sign(store, wanted, before, actor=actor())
    told = _tell_server(call)
    if call.json:
        output.emit({"revision": made.revision, "like": revision, "server_told": told})
    else:
        after = "the server takes it now" if told else "no server runs on this home; the next one takes it"
        click.echo(f"{call.home / configuration.FILE} is as in revision {revision}; {after}", err=True)


config = click.Group(
    "config",
    commands=[check, show, schema, revisions, rollback],
    params=shared_options(),
    help="Check and show the configuration.",
)


def _told(problem: Problem) -> Mapping[str, Any]:
    """For programs. Line and column are null where it stands in no file: in a variable, or nowhere."""
    place = problem.place
    position = {"line": place.line or None, "column": place.column or None}
    return {"source": place.source, **position, "path": dotted(problem.path), "message": problem.message}


def _rows(shown: Mapping[str, Any], origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(path, _brief(value), origins[path]) for path, value in configuration.flat(shown).items()]


def _brief(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _store(call: Call) -> Iterator[Store]:
    """The store of the home, even where its configuration cannot be read: that is when an earlier one is wanted."""
    try:
        present = configuration.load(configuration.find(call.home), call.environ)
    except ConfigError:
        click.echo(
            "Warning: the present configuration cannot be used; the store is taken to be at its default", err=True
        )
        present = configuration.load(None, call.environ)
    with opened(call, present) as store:
        yield store


def _kept(store: Store, revision: int) -> ConfigRevision:
    try:
        return earlier.wanted(store, revision)
    except NotFound as error:
        raise Missing(error.message) from error


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _tell_server(call: Call) -> bool:
    """Whether a server runs on this home; it reads its configuration again."""
    pid = asyncio.run(process_of(call.home))
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError:  # somebody else's, or gone just now
        return False
    return True
