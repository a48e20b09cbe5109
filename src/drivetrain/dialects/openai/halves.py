"""Characters that an engine cuts in two: halves of one beyond the first 65,536, as JSON escapes them, in two frames.

A string that ends with the first half, or begins with the second, is none that JSON decoders take.
"""

import re
from collections.abc import Callable
from typing import Final

_HIGH = re.compile(rb'(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')
_LOW = re.compile(rb'(?<!\\)"(\\u[dD][c-fC-F][0-9a-fA-F]{2})')
_LOST: Final = "\ufffd".encode()


def cut(data: bytes) -> bool:
    """Whether a frame has half a character."""
    return _HIGH.search(data) is not None or _LOW.search(data) is not None


class Halves:
    """First halves whose second have yet to come, by choice."""

    def __init__(self, index_of: Callable[[bytes], int]) -> None:
        """`index_of`: which choice a frame is of."""
        self._index_of = index_of
        self._waiting: dict[int, bytes] = {}

    def mend(self, data: bytes) -> bytes:
        """The frame without the first half of a character at a text's end, and with the one that came before."""
        high = _HIGH.search(data)
        data = _HIGH.sub(rb"\1", data)
        index = self._index_of(_LOW.sub(b'"', data))
        half = self._waiting.pop(index, None)
        if high is not None:
            self._waiting[index] = high.group(2)
        return _LOW.sub(b'"' + _LOST if half is None else lambda low: b'"' + half + low.group(1), data)
