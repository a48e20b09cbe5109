"""How far a sink has come, and what it does next. Pure: who calls it reads, writes and sends.

A batch is written to the checkpoint before it is sent, and marked as done after it was taken. Whoever dies in between
leaves the batch behind as it was, down to its rows, so that the next one sends it again under the same name: a target
that knows names, or counts, then takes it once.
"""

from collections.abc import Collection, Sequence

import msgspec

from drivetrain.governance import Attempt
from drivetrain.types import Value

MAX_BYTES = 8_000_000  # of one batch: what is sent is smaller than its JSON, and 10 MB is the most that BigQuery takes
Row = tuple[int, Attempt]


class Intent(Value, frozen=True, kw_only=True):
    """A batch that was begun."""

    first: int  # seq of its first row
    last: int  # of its last one
    count: int  # rows from the first to the last, at most
    excluded: tuple[int, ...] = ()  # seqs of rows that the target refused, and that are in the dead letters


class Progress(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Everything before `seq`, and that one, is done. This is what the checkpoint keeps."""

    seq: int = 0
    intent: Intent | None = None
    place: str = ""  # where in its target a sink writes, in its own words
    dead: int = 0  # rows that the target refused


class Batch(Value, frozen=True, kw_only=True):
    """What is sent: rows in their order, without those that were refused."""

    first: int
    last: int
    rows: tuple[Row, ...]
    place: str


def fitting(rows: Sequence[Row], max_bytes: int = MAX_BYTES) -> Sequence[Row]:
    """As many of the first rows as one request may hold, one at least."""
    size, encode = 0, msgspec.json.encode
    for position, (_, attempt) in enumerate(rows):
        size += len(encode(attempt)) + 32
        if size > max_bytes and position:
            return rows[:position]
    return rows


def planned(progress: Progress, rows: Sequence[Row], place: str) -> Progress:
    """The next batch is to be `rows`, written to `place`."""
    intent = Intent(first=rows[0][0], last=rows[-1][0], count=len(rows))
    return msgspec.structs.replace(progress, intent=intent, place=place)


def begun(progress: Progress) -> Intent:
    """The batch that was begun. Raises `ValueError` if none was."""
    if progress.intent is None:
        raise ValueError("no batch was begun")
    return progress.intent


def batch(progress: Progress, rows: Sequence[Row]) -> Batch:
    """What of `rows` belongs to the batch that was begun."""
    intent = begun(progress)
    left = tuple(row for row in rows if intent.first <= row[0] <= intent.last and row[0] not in intent.excluded)
    return Batch(first=intent.first, last=intent.last, rows=left, place=progress.place)


def moved(progress: Progress, place: str) -> Progress:
    """The same batch, to be written elsewhere: the place it was meant for took none of it, and takes no more."""
    return msgspec.structs.replace(progress, place=place)


def refused(progress: Progress, seqs: Collection[int]) -> Progress:
    """The same batch without rows that the target will never take. It took none of the others yet."""
    intent = begun(progress)
    return _excluding(progress, intent, tuple(sorted({*intent.excluded, *seqs})))


def halved(progress: Progress, rows: Sequence[Row]) -> Progress:
    """A batch of the first half of `rows`: the target refused it, and did not tell for which of them."""
    last = rows[len(rows) // 2 - 1][0]
    intent = msgspec.structs.replace(begun(progress), last=last)
    return _excluding(progress, intent, tuple(seq for seq in intent.excluded if seq <= last))


def _excluding(progress: Progress, intent: Intent, excluded: tuple[int, ...]) -> Progress:
    dead = progress.dead + len(excluded) - len(begun(progress).excluded)
    return msgspec.structs.replace(progress, intent=msgspec.structs.replace(intent, excluded=excluded), dead=dead)


def done(progress: Progress, place: str) -> Progress:
    """The batch is out."""
    return msgspec.structs.replace(progress, seq=begun(progress).last, intent=None, place=place)


def encode(progress: Progress) -> str:
    return msgspec.json.encode(progress).decode()


def decode(text: str) -> Progress:
    """Raises `msgspec.MsgspecError` for a text of another origin."""
    return msgspec.json.decode(text, type=Progress)
