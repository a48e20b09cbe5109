"""Completion in the shell: the script that installs it, and the names of models on this machine."""

import json
from pathlib import Path
from urllib.parse import unquote

import click
from click.shell_completion import CompletionItem, get_completion_class

from drivetrain.cli.command import Call, command, current_call

_VARIABLE = "_DRIVETRAIN_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(call: Call, shell: str) -> None:
    """Print the script that completes commands in a shell.

    \b
    bash:  eval "$(drivetrain completion bash)"       in ~/.bashrc
    zsh:   eval "$(drivetrain completion zsh)"        in ~/.zshrc
    fish:  drivetrain completion fish | source        in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # one of the choices above
    if shell == "bash":
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}  # a model's name may hold a colon")
    click.echo(kind(click.get_current_context().find_root().command, {}, "drivetrain", _VARIABLE).source())


def model_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The library's models as its files tell: no server is asked, so that the shell never waits."""
    models = current_call(context).home / "models"
    found = sorted(_id(file, models) for file in models.rglob("model.json"))
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _id(file: Path, models: Path) -> str:
    try:
        return str(json.loads(file.read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return unquote(str(file.parent.relative_to(models)))
