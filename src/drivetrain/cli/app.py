"""The `drivetrain` command: which commands there are, and how a failure becomes one line and an exit code.

A command's module is imported when the command runs. `--help` shows the table below and imports none of them.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from drivetrain import __version__
from drivetrain.cli.command import FAILED, INTERRUPTED, KINDS, Failure, shared_options
from drivetrain.errors import DrivetrainError


class Entry(NamedTuple):
    target: str  # module:object
    help: str  # the first sentence of the command's own help


COMMANDS: Mapping[str, Entry] = {
    "serve": Entry("drivetrain.cli.serve:serve", "Start the server."),
    "run": Entry("drivetrain.cli.run:run", "Chat with a model, or answer one prompt."),
    "pull": Entry("drivetrain.cli.models:pull", "Fetch models into the library."),
    "push": Entry("drivetrain.cli.models:push", "Send a model to a registry."),
    "list": Entry("drivetrain.cli.models:list_", "List the models that can be used."),
    "show": Entry("drivetrain.cli.show:show", "Show what is known of a model."),
    "ps": Entry("drivetrain.cli.running:ps", "List the models in memory."),
    "load": Entry("drivetrain.cli.running:load", "Bring models into memory."),
    "stop": Entry("drivetrain.cli.running:stop", "Take models out of memory."),
    "rm": Entry("drivetrain.cli.models:rm", "Delete models from the library."),
    "cp": Entry("drivetrain.cli.models:cp", "Copy a model under another name."),
    "create": Entry("drivetrain.cli.create:create", "Make a model from a Modelfile."),
    "import": Entry("drivetrain.cli.models:import_", "Add a file or folder on this machine as a model."),
    "pack": Entry("drivetrain.cli.pack:pack", "Pack a Mixture-of-Experts model for streaming."),
    "unpack": Entry("drivetrain.cli.pack:unpack", "Make the GGUF of a packed model again."),
    "tune": Entry("drivetrain.cli.tune:tune", "Measure this machine, for models larger than memory."),
    "keys": Entry("drivetrain.cli.keys:keys", "Create, list, rotate and revoke API keys."),
    "orgs": Entry("drivetrain.cli.teams:orgs", "Create, list and change organisations."),
    "teams": Entry("drivetrain.cli.teams:teams", "Create, list and change teams."),
    "projects": Entry("drivetrain.cli.teams:projects", "Create, list and change projects."),
    "users": Entry("drivetrain.cli.teams:users", "Create, list and change users."),
    "limits": Entry("drivetrain.cli.limits:limits", "Limit requests, tokens and concurrency."),
    "budgets": Entry("drivetrain.cli.budgets:budgets", "Set budgets, and see what is spent of them."),
    "terms": Entry(
        "drivetrain.cli.terms:terms",
        "Set how long requests may take and wait, and what is billed when a caller leaves.",
    ),
    "prices": Entry("drivetrain.cli.prices:prices", "Set and list what models cost."),
    "rollouts": Entry("drivetrain.cli.rollouts:rollouts", "Bring what is new to callers, stage by stage."),
    "experiments": Entry(
        "drivetrain.cli.experiments:experiments", "Compare versions of a model, with callers of their own."
    ),
    "migrate": Entry(
        "drivetrain.cli.migrate:migrate", "Move models from one engine to another without an outage, and back at once."
    ),
    "prompts": Entry("drivetrain.cli.prompts:prompts", "Keep versions of system prompts."),
    "usage": Entry("drivetrain.cli.usage:usage", "Tell what was used, and what it cost."),
    "trace": Entry("drivetrain.cli.trace:trace", "Show a request's life: `trace REQUEST_ID`."),
    "explain": Entry("drivetrain.cli.explain:explain", "Tell which engines a request would go to, and why."),
    "audit": Entry("drivetrain.cli.audit:audit", "List who changed what, and check the record."),
    "engines": Entry("drivetrain.cli.engines:engines", "List the engines, and take one out of service for an update."),
    "config": Entry("drivetrain.cli.config:config", "Check and show the configuration."),
    "completion": Entry("drivetrain.cli.completion:completion", "Print the script that completes commands in a shell."),
}
ALIASES: Mapping[str, str] = {"ls": "list"}


class Lazy(click.Command):
    """Stands for a command until that is used."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, short_help=entry.help)
        self._target = entry.target

    def load(self) -> click.Command:
        module, _, attribute = self._target.partition(":")
        loaded: click.Command = getattr(import_module(module), attribute)
        return loaded

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        return self.load().make_context(info_name, args, parent=parent, **extra)


class App(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)  # in the order of use, not of the alphabet


app = App(
    "drivetrain",
    commands={name: Lazy(name, entry) for name, entry in COMMANDS.items()},
    params=shared_options(),
    help="One address for every inference engine.",
    epilog="`drivetrain run smollm2:135m` talks to a small model at once. `ls` is short for `list`.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, prog_name="drivetrain", message="%(prog)s %(version)s")(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code. What fails is told in one line on standard error."""
    _open_standard_streams()
    try:
        outcome = app.main(arguments, prog_name="drivetrain", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except click.ClickException as error:
        return _fail(_usage(error), error.exit_code)
    except DrivetrainError as error:
        return _fail(error.message, KINDS.get(error.code, Failure).exit_code)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads our output has gone, as `head` does. Nothing may be flushed to it at exit.
        _give_up_output()
        return FAILED
    except UnicodeEncodeError as error:
        return _fail(f"{error.object[:60]!r} is not UTF-8, and no other text is taken", FAILED)
    except OSError as error:
        if error.filename is None:  # else it is not what we write to
            _give_up_output()
        return _fail(f"{error.filename or 'the output'}: {error.strerror or error}", FAILED)


def _open_standard_streams() -> None:
    """A supervisor may start us without: the first files and sockets that are opened would stand in their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115  # it is open until the end


def _give_up_output() -> None:
    """Nothing may be flushed at exit to where nothing can be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> int:
    lines = message.splitlines() or ["it failed"]
    head = lines if len(lines) == 1 else [f"{len(lines)} problems", *(f"  {line}" for line in lines)]
    click.echo("Error: " + "\n".join(head), err=True)
    return exit_code


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx:
        return f"{message.removesuffix('.')} (see `{error.ctx.command_path} --help`)"
    return message
