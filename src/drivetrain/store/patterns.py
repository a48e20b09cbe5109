"""Which model names two lists of patterns allow together. Pure.

A model has to match both what its team and what its key allows; the rest of Drivetrain sees one list, which allows
no other. Names and patterns mean what `policies.access` says: `*` stands for any characters, or none; capitals and an
added `:latest` make no difference. The one thing that is lost: of two patterns with `*`, one that names `:latest` and
one that does not allow nothing in common but what both match as it is written.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache

Patterns = tuple[str, ...] | None  # None: all names
LATEST = ":latest"


def both(first: Patterns, second: Patterns) -> Patterns:
    """Patterns for the names that `first` and `second` allow. Empty: there is no such name."""
    if first is None or second is None:
        return second if first is None else first
    return _plainest(found for one in first for other in second for found in _common(one.lower(), other.lower()))


@lru_cache(maxsize=1024)
def _common(one: str, other: str) -> frozenset[str]:
    if "*" not in one:
        return frozenset({one} if _means(other, one.removesuffix(LATEST)) else ())
    if "*" not in other:
        return _common(other, one)
    return _meeting(one, other)


def _means(pattern: str, name: str) -> bool:
    if "*" not in pattern:
        return pattern.removesuffix(LATEST) == name
    return _covers(pattern, name) or (":" not in name.rpartition("/")[2] and _covers(pattern, name + LATEST))


def _covers(pattern: str, text: str) -> bool:
    """Whether the pattern's pieces come in the text in this order, each as early as it can."""
    if "*" not in pattern:
        return text == pattern
    beginning, *middle, end = pattern.split("*")
    if len(text) < len(beginning) + len(end) or not text.startswith(beginning) or not text.endswith(end):
        return False
    rest = text[len(beginning) : len(text) - len(end)]
    for piece in middle:
        _, found, rest = rest.partition(piece) if piece else ("", "*", rest)
        if not found:
            return False
    return True


def _meeting(one: str, other: str) -> frozenset[str]:
    """Patterns that together cover the texts which both cover."""

    @cache
    def meet(left: str, right: str) -> frozenset[str]:
        if not left or not right:
            return frozenset() if (left + right).strip("*") else frozenset({""})
        match left[0], right[0]:
            case "*", "*":  # one of the two stars ends first
                return _behind("*", meet(left[1:], right) | meet(left, right[1:]))
            case "*", literal:  # the star is over, or stands for this character too
                return meet(left[1:], right) | _behind(literal, meet(left, right[1:]))
            case _, "*":
                return meet(right, left)
        return _behind(left[0], meet(left[1:], right[1:])) if left[0] == right[0] else frozenset()

    return meet(one, other)


def _behind(first: str, rest: Iterable[str]) -> frozenset[str]:
    return frozenset(re.sub(r"\*+", "*", first + pattern) for pattern in rest)


def _plainest(patterns: Iterable[str]) -> tuple[str, ...]:
    """In order, without those that another one covers: a `*` in the covered one is a character like any other."""
    different = sorted(set(patterns))
    wider = [pattern for pattern in different if "*" in pattern]
    return tuple(
        pattern for pattern in different if not any(other != pattern and _covers(other, pattern) for other in wider)
    )
