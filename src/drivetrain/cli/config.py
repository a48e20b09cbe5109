"""`drivetrain config`: check and show the configuration, and its schema for editors. No server is asked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from drivetrain import config as configuration
from drivetrain import engines
from drivetrain.cli import output
from drivetrain.cli.command import Call, command, shared_options


def _resolve(call: Call, file: Path | None) -> configuration.Resolved:
    path = file or configuration.find(call.home)
    return configuration.resolve(path, call.environ, kinds=engines.kinds())


_FILE = click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))


@command()
@_FILE
def check(call: Call, file: Path | None) -> None:
    """Tell whether a configuration can be used.

    FILE is drivetrain.yaml in the home if not given. Every problem is listed with its line.
    """
    resolved = _resolve(call, file)
    for warning in resolved.warnings:
        click.echo(f"Warning: {warning}", err=True)
    where = file or configuration.find(call.home)
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


config = click.Group(
    "config",
    commands=[check, show, schema],
    params=shared_options(),
    help="Check and show the configuration.",
)


def _rows(shown: Mapping[str, Any], origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(path, _brief(value), origins[path]) for path, value in configuration.flat(shown).items()]


def _brief(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
