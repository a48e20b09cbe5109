"""New sortable ids (github.com/ulid/spec): of rows, requests, keys, and whatever else has to be told apart."""

import itertools
import random
import time
from functools import lru_cache

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_PROCESS = "".join(random.SystemRandom().choices(_ALPHABET, k=8))
_count = itertools.count()


def ulid() -> str:
    """A new id of 26 characters: 48 bits of milliseconds, 40 of chance that stay the same in one process, and a count
    of 40 bits. It tells apart and sorts; it keeps no secret.
    """
    count, milliseconds = next(_count), int(time.time() * 1000)
    era, rows = _era(milliseconds >> 10), _rows(count >> 10)
    return f"{era}{_PAIRS[milliseconds & 1023]}{rows}{_PAIRS[count & 1023]}"


@lru_cache(maxsize=8)
def _era(seconds: int) -> str:
    """Of about so many seconds: all of the time but its last two digits."""
    return "".join([_PAIRS[(seconds >> shift) & 1023] for shift in (30, 20, 10, 0)])


@lru_cache(maxsize=8)
def _rows(thousands: int) -> str:
    """The process, and all of the count but its last two digits."""
    return _PROCESS + "".join([_PAIRS[(thousands >> shift) & 1023] for shift in (20, 10, 0)])
