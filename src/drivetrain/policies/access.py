"""Which public models a key may use."""

from collections.abc import Sequence
from functools import lru_cache

ANY = "*"
LATEST = ":latest"


def may_use(patterns: Sequence[str], model: str) -> bool:
    """Whether one of the patterns means this model. `*` stands for any characters, or none; nothing else is special.

    Names are the same as they are everywhere in Drivetrain: in any case, with `:latest` added or dropped.
    """
    for pattern in patterns:  # noqa: SIM110  # a generator costs more than the look-up
        if _means(pattern, model):
            return True
    return False


def plain(model: str) -> str:
    """One way of writing for all names of the same model."""
    return model.lower().removesuffix(LATEST)


@lru_cache(maxsize=4096)
def _means(pattern: str, model: str) -> bool:
    if ANY not in pattern:
        return plain(pattern) == plain(model)
    pieces = _pieces(pattern)
    short = plain(model)
    return _fits(pieces, short) or (":" not in short.rpartition("/")[2] and _fits(pieces, short + LATEST))


@lru_cache(maxsize=1024)
def _pieces(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.lower().split(ANY))


def _fits(pieces: Sequence[str], name: str) -> bool:
    """Whether a name has these pieces in order, the first at its beginning and the last at its end. In time that grows
    with the name's length, whatever somebody calls a model."""
    first, *inner, last = pieces
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for piece in inner:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
