"""A conversation as a value, what is sent of it, and how an answer is told. Knows no terminal."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.client import Server
from drivetrain.cli.command import Failure, Missing
from drivetrain.cli.models import fetch

_PATIENCE_S = 0.5  # a wait that is shorter needs no word
_TURN_S = 0.1
_NS = 1e9


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shapes the next answer. Changed by making another one."""

    model: str
    messages: tuple[Mapping[str, Any], ...] = ()
    system: str | None = None
    options: Mapping[str, Any] = {}
    format: Any = None  # "json" or a JSON schema
    think: bool | str | None = None  # None: as the model likes
    keep_alive: str | None = None
    verbose: bool = False
    hide_thinking: bool = False

    def asking(self, text: str, images: tuple[str, ...] = ()) -> "Conversation":
        message = {"role": "user", "content": text} | ({"images": list(images)} if images else {})
        return msgspec.structs.replace(self, messages=(*self.messages, message))

    def answered(self, text: str) -> "Conversation":
        message = {"role": "assistant", "content": text}
        return msgspec.structs.replace(self, messages=(*self.messages, message))

    def body(self) -> dict[str, Any]:
        """What `/api/chat` takes."""
        before = ({"role": "system", "content": self.system},) if self.system and self.messages else ()
        said = {"format": self.format, "think": self.think, "keep_alive": self.keep_alive}
        return {
            "model": self.model,
            "messages": [*before, *self.messages],
            "options": dict(self.options),
            "stream": True,
            **{name: value for name, value in said.items() if value is not None},
        }


class Answer:
    """An answer as it comes: what there is of it stays, however it ends."""

    def __init__(self) -> None:
        self.text = ""
        self.thinking = ""
        self.last: dict[str, Any] = {}

    def add(self, frame: dict[str, Any]) -> tuple[str, str]:
        """Takes a frame in. Returns what it adds: thinking and text."""
        message = frame.get("message") or {}
        thinking, text = str(message.get("thinking") or ""), str(message.get("content") or "")
        self.thinking += thinking
        self.text += text
        self.last = frame
        return thinking, text

    def whole(self) -> dict[str, Any]:
        """The answer as `/api/chat` would have given it without a stream."""
        message = {**(self.last.get("message") or {}), "role": "assistant", "content": self.text}
        return {**self.last, "message": message | ({"thinking": self.thinking} if self.thinking else {})}


async def ask(server: Server, conversation: Conversation, answer: Answer, *, silent: bool = False) -> None:
    """Gets the answer to the last message into `answer`, and tells it as it comes unless `silent`.

    A model that is not there is pulled first.
    """
    try:
        await _ask(server, conversation, answer, silent)
    except Missing as missing:
        await _pull(server, conversation.model, missing)
        await _ask(server, conversation, answer, silent)


async def _ask(server: Server, conversation: Conversation, answer: Answer, silent: bool) -> None:
    voice = Voice(hide_thinking=conversation.hide_thinking)
    async with (
        waiting(f"loading {conversation.model}") as done,
        aclosing(server.frames("/api/chat", conversation.body())) as frames,
    ):
        async for frame in frames:
            thinking, text = answer.add(frame)
            if (thinking or text) and not silent:
                done()
                voice.say(thinking, text)
    if not silent:
        voice.end()
    if not answer.last.get("done"):
        raise Failure("the server broke off in the middle of the answer")
    if conversation.verbose and not silent:
        click.echo(timings(answer.last), err=True)


async def _pull(server: Server, model: str, missing: Missing) -> None:
    try:
        with output.progress(as_json=False) as shown:
            await fetch(server, model, shown)
    except Failure as error:
        raise Missing(f"{missing.message.rstrip('.')}, and it cannot be pulled: {error.message}") from error


class Voice:
    """Writes an answer as it comes: the text to standard output, the thinking, dim, to standard error."""

    def __init__(self, *, hide_thinking: bool) -> None:
        self._hide = hide_thinking
        self._thinks = False
        self._last = "\n"

    def say(self, thinking: str, text: str) -> None:
        if thinking and not self._hide:
            self._thinks = True
            click.echo(click.style(thinking, dim=True), nl=False, err=True)
        if text:
            if self._thinks:
                click.echo("\n", err=True)
                self._thinks = False
            click.echo(text, nl=False)
            self._last = text[-1]

    def end(self) -> None:
        """Leaves the cursor at the start of a line."""
        if self._last != "\n":
            click.echo()


@asynccontextmanager
async def waiting(text: str) -> AsyncIterator[Callable[[], None]]:
    """Shows on a terminal that something is awaited, until the yielded function is called, or the block ends."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    sign = _Sign(text)
    turning = asyncio.create_task(sign.turn())
    try:
        yield sign.clear
    finally:
        sign.clear()
        turning.cancel()
        await asyncio.wait([turning])


class _Sign:
    """A line that turns, and leaves no trace."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._shown = False
        self._cleared = False

    async def turn(self) -> None:
        await asyncio.sleep(_PATIENCE_S)
        for wheel in itertools.cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"):
            if self._cleared:
                return
            self._shown = True
            click.echo(f"\r{wheel} {self._text}", nl=False, err=True)
            await asyncio.sleep(_TURN_S)

    def clear(self) -> None:
        if self._shown and not self._cleared:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._cleared = True


def timings(frame: Mapping[str, Any]) -> str:
    """How long an answer took, by the figures in its last frame."""
    lines = [("total duration", f"{frame.get('total_duration', 0) / _NS:.3f} s")]
    lines.append(("load duration", f"{frame.get('load_duration', 0) / _NS:.3f} s"))
    for name, key in (("prompt", "prompt_eval"), ("answer", "eval")):
        count, seconds = frame.get(f"{key}_count", 0), frame.get(f"{key}_duration", 0) / _NS
        rate = f", {count / seconds:.2f} tokens/s" if seconds else ""
        lines.append((name, f"{count} tokens in {seconds:.3f} s{rate}"))
    return "\n".join(f"{name + ':':<16}{value}" for name, value in lines)
