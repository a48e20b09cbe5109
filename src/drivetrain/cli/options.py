"""Parameters as they are typed: `temperature 0.2`, `stop "###"`; and how long a model stays."""

from collections.abc import Sequence
from typing import Any

from drivetrain.cli.command import Misused
from drivetrain.config.problems import suggestion
from drivetrain.dialects.ollama import durations, options
from drivetrain.errors import BadRequest


def parameter(name: str, words: Sequence[str]) -> tuple[str, Any]:
    """A parameter's name and value. Raises `Misused` for one that is not known, or a value that does not fit."""
    if name not in options.KINDS:
        raise Misused(f"there is no parameter {name!r}{suggestion(name, options.KINDS)}")
    try:
        if options.KINDS[name] == "array":
            return name, [options.parameter(name, word) for word in words]
        return name, options.parameter(name, " ".join(words))
    except BadRequest as error:
        raise Misused(error.message) from error


def check_keep_alive(text: str) -> None:
    """Raises `Misused` for what is no length of time."""
    try:
        durations.keep_alive_s(text)
    except BadRequest as error:
        raise Misused(f"a model stays for a time such as 10m, for 0, or for ever with -1; got {text!r}") from error
