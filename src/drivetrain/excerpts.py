"""Values as messages show them: short, whatever they are."""

from typing import Final

import msgspec

CHARS: Final = 60


def shown(value: object) -> str:
    """In JSON, of bounded length."""
    try:
        return bounded(msgspec.json.encode(value).decode())
    except (TypeError, ValueError, RecursionError, OverflowError):
        return bounded(repr(value))


def bounded(text: str, chars: int = CHARS) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
