"""What every command has: `--home` and `--json`, a `Call` that tells where it runs, exit codes that never change."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

OK, FAILED, MISUSED, MISSING, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130

EXIT_CODES: Mapping[int, str] = {
    OK: "done",
    FAILED: "it failed; one line on standard error tells why",
    MISUSED: "wrong usage, or a configuration that cannot be used",
    MISSING: "the model, the path, or what else was named, was not found",
    UNREACHABLE: "no server answers, and none could be started",
    INTERRUPTED: "interrupted with Ctrl-C",
}


class Failure(click.ClickException):
    """A command that cannot do what was asked. The message is one line: what is wrong, with the value; what to do."""

    exit_code = FAILED


class Misused(Failure):
    exit_code = MISUSED


class Missing(Failure):
    exit_code = MISSING


class Unreachable(Failure):
    exit_code = UNREACHABLE


# What an error of Drivetrain's own is on the command line, by its code; any other is a failure.
KINDS: Mapping[str, type[Failure]] = {
    "invalid_config": Misused,
    "not_found": Missing,
    "model_not_found": Missing,
    "unreachable": Unreachable,
}


class Call(NamedTuple):
    """One use of the command line: the home it works on, and how it tells results."""

    home: Path
    json: bool
    environ: Mapping[str, str]


def home_of(given: str | None, environ: Mapping[str, str]) -> Path:
    """The same rule as `config.home`, kept apart so that `--help` and completion need not load the configuration."""
    return Path(given or environ.get("DRIVETRAIN_HOME") or "~/.drivetrain").expanduser().absolute()


def shared_options() -> list[click.Parameter]:
    """`--home` and `--json`, for the group and for each command: the last one given holds."""
    return [
        click.Option(
            ["--home"],
            metavar="DIR",
            expose_value=False,
            callback=_remember,
            help="The folder with models, state and drivetrain.yaml. [default: $DRIVETRAIN_HOME or ~/.drivetrain]",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_remember,
            help="Write JSON, and nothing else, to standard output.",
        ),
    ]


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        context.find_root().ensure_object(dict)[option.name] = value


def current_call(context: click.Context) -> Call:
    given: Mapping[str, Any] = context.find_root().ensure_object(dict)
    environ = os.environ.copy()
    return Call(home=home_of(given.get("home"), environ), json=bool(given.get("json")), environ=environ)


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a function a command. It gets a `Call` first, then its own options and arguments; it may return an exit
    code, and returns nothing when all went well."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        def invoke(**arguments: Any) -> Any:
            return function(current_call(click.get_current_context()), **arguments)

        return click.Command(
            name or function.__name__,
            callback=invoke,
            params=[*reversed(getattr(function, "__click_params__", [])), *shared_options()],
            **{"help": inspect.getdoc(function), **attributes},
        )

    return decorate


class Existing(click.Path):
    """A path on this machine. One that is not there is what was named and not found: exit code 3."""

    def __init__(self, *, dir_okay: bool = False) -> None:
        super().__init__(exists=True, dir_okay=dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not Path(value).exists():
            raise Missing(f"there is no file {'or folder ' if self.dir_okay else ''}{str(value)!r}")
        return super().convert(value, param, ctx)


def checked_keep_alive(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A callback: what is no length of time is wrong usage."""
    if value is not None:
        from drivetrain.cli.options import check_keep_alive  # the dialect is loaded for those who say it

        check_keep_alive(value)
    return value


class Leading(click.Group):
    """A group whose `leading` command is the one that is meant where none is named: `trace ID` is `trace show ID`."""

    def __init__(self, *arguments: Any, leading: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._leading = leading

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = _behind_shared(args)
        named = first < len(args) and args[first] in self.commands
        helped = bool(_HELP & set(args[:first]))
        completing = ctx.resilient_parsing and first == len(args)  # any command may follow
        if not (named or helped or completing):
            args = [*args[:first], self._leading, *args[first:]]
        return super().parse_args(ctx, args)


_HELP = frozenset({"-h", "--help"})


def _behind_shared(args: Sequence[str]) -> int:
    """The place of the first word that belongs to none of the options that every command has."""
    at = 0
    while at < len(args) and (args[at] in _HELP or args[at].startswith(("--home", "--json"))):
        at += 2 if args[at] == "--home" else 1
    return min(at, len(args))
