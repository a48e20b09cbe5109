"""The chat in a terminal: lines with history and editing, slash commands, Ctrl-C that stops the answer only."""

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from drivetrain.cli import show
from drivetrain.cli.chat import Answer, Conversation, ask
from drivetrain.cli.client import Server, connect
from drivetrain.cli.command import Call, Misused
from drivetrain.cli.options import parameter
from drivetrain.cli.run import parse_format

_QUOTES = '"""'
_HISTORY_LINES = 2000

HELP = """\
  /set parameter NAME VALUE   such as `/set parameter temperature 0.2`
  /set system TEXT            the system prompt
  /set format json|SCHEMA     answers in JSON; `/set noformat` ends it
  /set think [LEVEL]          let it think: low, medium, high; `/set nothink` ends it
  /set verbose                show timings; `/set quiet` ends it
  /show                       the model; also /show license|modelfile|parameters|system|template
  /load MODEL                 go on with another model
  /save NAME                  keep model, system prompt, parameters and messages as a model
  /clear                      forget what was said
  /bye                        leave; so does Ctrl-D
  \"""                         begins and ends a text of several lines
  Ctrl-C                      stops the answer"""


def chat(call: Call, conversation: Conversation) -> None:
    """Talks until the user leaves. The loop of events runs only while something is awaited, so that a line can be
    edited in peace, and Ctrl-C means what it should in both."""
    with asyncio.Runner() as runner, _editing(call.home / "state" / "history"):
        connection = connect(call)
        server = runner.run(connection.__aenter__())
        try:
            runner.run(ask(server, replace(conversation, messages=()), Answer(), silent=True))
            _talk(Session(runner, server, conversation))
        finally:
            runner.run(connection.__aexit__(None, None, None))


def _talk(session: "Session") -> None:
    while True:
        try:
            entry = read_entry(input)
        except KeyboardInterrupt:
            click.echo("\nUse Ctrl-D or /bye to leave.")
            continue
        except EOFError:
            click.echo()
            return
        try:
            if session.take(entry):
                return
        except click.ClickException as error:
            click.echo(f"Error: {error.format_message()}", err=True)
        except KeyboardInterrupt:
            click.echo()


def read_entry(read: Callable[[str], str]) -> str:
    """One entry: a line, or from three quotes to the next three, which may be lines away."""
    line = read(">>> ")
    if _QUOTES not in line:
        return line.strip()
    head, _, text = line.partition(_QUOTES)
    while _QUOTES not in text:
        text += "\n" + read("... ")
    return (head + text.partition(_QUOTES)[0]).strip()


class Session:
    """A chat under way: who answers, and what was said."""

    def __init__(self, runner: asyncio.Runner, server: Server, conversation: Conversation) -> None:
        self._runner = runner
        self._server = server
        self.conversation = conversation

    def take(self, entry: str) -> bool:
        """Does what an entry says. True if the user leaves."""
        if not entry.startswith("/"):
            if entry:
                self._answer(entry)
            return False
        word, _, rest = entry.partition(" ")
        if word in ("/bye", "/exit", "/quit"):
            return True
        act = COMMANDS.get(word)
        if act is None:
            raise Misused(f"there is no {word!r}; /? tells what there is")
        act(self, rest.strip())
        return False

    def _answer(self, text: str) -> None:
        """Asks and answers. Of an answer that ends early stays what there is; if that is nothing, so does nothing."""
        asked, answer = self.conversation.asking(text), Answer()
        try:
            self._runner.run(ask(self._server, asked, answer))
        finally:
            if answer.text:
                self.conversation = asked.answered(answer.text)

    def set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        change = SETTINGS.get(name)
        if change is None:
            raise Misused(f"/set takes {', '.join(SETTINGS)}; got {name!r}")
        self.conversation = replace(self.conversation, **change(self.conversation, value.strip()))

    def show(self, rest: str) -> None:
        answer = self._runner.run(self._server.post("/api/show", {"model": self.conversation.model}))
        if rest and rest not in show.PARTS and rest != "info":
            raise Misused(f"/show takes {', '.join(show.PARTS)}; got {rest!r}")
        text = show.summary(answer) if rest in ("", "info") else show.text_of(answer, rest)
        click.echo(text or f"the model has no {rest}")
        set_here = {"system": self.conversation.system, "parameters": dict(self.conversation.options)}.get(rest)
        if set_here:
            click.echo(f"set in this chat: {set_here}")

    def load(self, rest: str) -> None:
        if not rest:
            raise Misused("/load takes the name of a model")
        other = replace(self.conversation, model=rest)
        self._runner.run(ask(self._server, replace(other, messages=()), Answer(), silent=True))
        self.conversation = other

    def save(self, rest: str) -> None:
        if not rest:
            raise Misused("/save takes a name for the model")
        now = self.conversation
        kept = {"system": now.system, "parameters": dict(now.options), "messages": list(now.messages)}
        body = {"model": rest, "from": now.model, **{name: value for name, value in kept.items() if value}}
        self._runner.run(self._server.post("/api/create", {**body, "stream": False}))
        click.echo(f"saved as {rest!r}")

    def clear(self, rest: str) -> None:
        self.conversation = replace(self.conversation, messages=())
        click.echo("forgotten")

    def help(self, rest: str) -> None:
        click.echo(HELP)


COMMANDS: Mapping[str, Callable[[Session, str], None]] = {
    "/set": Session.set,
    "/show": Session.show,
    "/load": Session.load,
    "/save": Session.save,
    "/clear": Session.clear,
    "/?": Session.help,
    "/help": Session.help,
}


def _parameter(conversation: Conversation, text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Misused(f"/set parameter {text}: {error}") from error
    if len(words) < 2:
        raise Misused("/set parameter takes a name and a value")
    name, value = parameter(words[0], words[1:])
    return {"options": {**conversation.options, name: value}}


def _format(conversation: Conversation, text: str) -> dict[str, Any]:
    return {"format": parse_format(text)}


SETTINGS: Mapping[str, Callable[[Conversation, str], dict[str, Any]]] = {
    "parameter": _parameter,
    "system": lambda conversation, text: {"system": text or None},
    "format": _format,
    "noformat": lambda conversation, text: {"format": None},
    "think": lambda conversation, text: {"think": text or True},
    "nothink": lambda conversation, text: {"think": False},
    "verbose": lambda conversation, text: {"verbose": True},
    "quiet": lambda conversation, text: {"verbose": False},
}


@contextlib.contextmanager
def _editing(history: Path) -> Iterator[None]:
    """Line editing, history and completion of slash commands, where Python has them."""
    try:
        import readline
    except ImportError:  # a Python without it; lines are then plain
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer(_complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            readline.write_history_file(history)


def _complete(text: str, state: int) -> str | None:
    found = [word for word in (*COMMANDS, "/bye") if text.startswith("/") and word.startswith(text)]
    return found[state] if state < len(found) else None
