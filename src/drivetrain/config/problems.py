"""What is wrong with a configuration, and where: a list of problems, raised together."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from drivetrain.errors import DrivetrainError

Path = tuple[str | int, ...]

_BARE = re.compile(r"[\w/:-]+")


class Place(msgspec.Struct, frozen=True):
    """Where a value was written: a file with line and column (from 1), a variable of the environment, or a flag."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


class Problem(msgspec.Struct, frozen=True):
    place: Place
    path: Path
    message: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (str(self.place), dotted(self.path), self.message)))


class ConfigError(DrivetrainError):
    """A configuration that cannot be used. The message lists every problem, one a line."""

    code = "invalid_config"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.place.source, problem.place.line)))
        super().__init__("\n".join(map(str, self.problems)))


def dotted(path: Path) -> str:
    """`engines.box-1.url`, `models.chat.targets[0].engine`; a name with a dot in it is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else f'"{part}"')
    return text


def suggestion(word: str, known: Iterable[str]) -> str:
    """A hint to append to a message: what the word may have meant, else what there is to choose from."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.7)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
