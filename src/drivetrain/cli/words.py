"""Lists as they are typed, `chat,llama*`, and shown."""

from collections.abc import Iterable, Sequence
from typing import Any

import click

from drivetrain.config.problems import suggestion
from drivetrain.governance import SCOPES as KNOWN_SCOPES


class Words(click.ParamType[tuple[str, ...]]):
    """An option's value: names with commas between them."""

    name = "names"

    def __init__(self, what: str, known: Iterable[str] = ()) -> None:
        self._what = what
        self._known = frozenset(known)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        words = tuple(dict.fromkeys(word.strip() for word in str(value).split(",") if word.strip()))
        if not words:
            self.fail(f"{value!r} names no {self._what}", param, ctx)
        for word in words:
            if self._known and word not in self._known:
                self.fail(f"there is no {self._what} {word!r}{suggestion(word, self._known)}", param, ctx)
        return words


class Tag(click.ParamType[tuple[str, str]]):
    """An option's value: `NAME=VALUE`."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, said = str(value).partition("=")
        if not (name and equals):
            self.fail(f"{value!r} is no tag; write NAME=VALUE", param, ctx)
        return name, said


MODELS = Words("model")
SCOPES = Words("scope", KNOWN_SCOPES)
TAG = Tag()


def joined(words: Sequence[str] | None, *, none: str = "all") -> str:
    """`chat, llama*`; None is what that stands for."""
    return none if words is None else ", ".join(words) or "none"
