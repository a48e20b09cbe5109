"""`drivetrain run`: one prompt and its answer, or a chat in the terminal."""

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import click

from drivetrain.cli import output
from drivetrain.cli.chat import Answer, Conversation, ask
from drivetrain.cli.client import connect
from drivetrain.cli.command import Call, Existing, Misused, checked_keep_alive, command
from drivetrain.cli.completion import model_names

_LEVELS = ("low", "medium", "high", "max")


@command()
@click.argument("model", shell_complete=model_names)
@click.argument("prompt", nargs=-1)
@click.option("--system", metavar="TEXT", help="The system prompt, in place of the model's own.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="A parameter, as `temperature=0`.")
@click.option("--format", "format_", metavar="json|SCHEMA", help="Answer in JSON, or by a JSON schema.")
@click.option("--think/--no-think", default=None, help="Let the model think first, or not.")
@click.option("--effort", type=click.Choice(_LEVELS), help="How hard to think.")
@click.option("--hide-thinking", is_flag=True, help="Do not show what the model thinks.")
@click.option(
    "--image",
    "images",
    type=Existing(),
    multiple=True,
    help="A picture to look at.",
)
@click.option(
    "--keepalive",
    metavar="DURATION",
    callback=checked_keep_alive,
    help="How long the model stays in memory: `10m`, `0`, `-1` for ever.",
)
@click.option("--verbose", is_flag=True, help="Show how long it took.")
def run(call: Call, model: str, prompt: tuple[str, ...], images: tuple[Path, ...], **given: Any) -> None:
    """Chat with a model, or answer one prompt.

    A model that is not there is pulled first. Text piped to standard input comes before the PROMPT. Without either, a
    chat begins; `/?` in it tells what can be done.
    """
    conversation = _conversation(model, **given)
    text = "\n\n".join(filter(None, (_piped(), " ".join(prompt))))
    if text or not sys.stdin.isatty():
        pictures = tuple(base64.b64encode(image.read_bytes()).decode() for image in images)
        asyncio.run(_once(call, conversation.asking(text, pictures) if text else conversation))
        return
    if call.json:
        raise Misused("--json needs a prompt; a chat is for people")
    from drivetrain.cli.terminal import chat  # loads the history; one answer needs none

    chat(call, conversation)


async def _once(call: Call, conversation: Conversation) -> None:
    answer = Answer()
    async with connect(call) as server:
        await ask(server, conversation, answer, silent=call.json)
    if call.json:
        output.emit(answer.whole())


def _piped() -> str:
    return "" if sys.stdin.isatty() else sys.stdin.read().strip()


def _conversation(
    model: str,
    *,
    system: str | None,
    settings: tuple[str, ...],
    format_: str | None,
    think: bool | None,
    effort: str | None,
    keepalive: str | None,
    hide_thinking: bool,
    verbose: bool,
) -> Conversation:
    return Conversation(
        model=model,
        system=system,
        options=dict(_setting(setting) for setting in settings),
        format=parse_format(format_) if format_ else None,
        think=effort or think,
        keep_alive=keepalive,
        hide_thinking=hide_thinking,
        verbose=verbose,
    )


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"--set takes NAME=VALUE, got {text!r}")
    from drivetrain.cli.options import parameter  # the dialect is loaded for those who set something

    return parameter(name, [value])


def parse_format(text: str) -> Any:
    """`json`, or a JSON schema as text. Raises `Misused` for anything else."""
    if text == "json":
        return text
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise Misused(f"a format is `json` or a JSON schema, got {text[:60]!r}") from error
    if not isinstance(schema, dict):
        raise Misused(f"a JSON schema is an object, got {text[:60]!r}")
    return schema
