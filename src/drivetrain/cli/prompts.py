"""`drivetrain prompts`: named system prompts in the store, each text a version that never changes."""

from typing import TextIO

import click

from drivetrain.cli import output
from drivetrain.cli.command import Call, command, shared_options
from drivetrain.cli.moments import shown
from drivetrain.cli.office import office, told

EXCERPT = 60  # characters


@command()
@click.argument("name")
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
def add(call: Call, name: str, file: TextIO) -> None:
    """Add a version of a prompt, from FILE or standard input.

    It is used where a rollout, a policy or the header x-drivetrain-prompt says NAME@VERSION. A text that is the newest
    version already makes no other one.
    """
    text = file.read().strip("\n")
    with office(call) as at:
        made = at.prompts.add(name, text, actor=at.actor)
        if call.json:
            output.emit(told(made))
        else:
            click.echo(made.reference)


@command(name="list")
@click.option("--name", help="Versions of this one only.")
def list_(call: Call, name: str | None) -> None:
    """List prompts and their versions."""
    with office(call) as at:
        found = at.all_prompts(name)
        if call.json:
            output.emit({"prompts": [told(prompt) for prompt in found]})
            return
        rows = [(prompt.reference, shown(prompt.created_s), _excerpt(prompt.text)) for prompt in found]
        output.table(("PROMPT", "MADE", "TEXT"), rows)


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…"


@command()
@click.argument("reference", metavar="NAME[@VERSION]")
def show(call: Call, reference: str) -> None:
    """Show the text of a version, or of the newest one."""
    with office(call) as at:
        prompt = at.prompts.get(reference)
        if call.json:
            output.emit(told(prompt))
        else:
            click.echo(prompt.text)


prompts = click.Group(
    "prompts", commands=[add, list_, show], params=shared_options(), help="Keep versions of system prompts."
)
