"""What an answer of BigQuery's Storage Write API means for a batch at an offset of a stream. Pure.

A stream of kind COMMITTED counts its rows, and takes a batch at its own row count only. So a batch that was sent
before is answered with ALREADY_EXISTS, and one that leaves a gap with OUT_OF_RANGE
(cloud.google.com/bigquery/docs/write-api-streaming).
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from drivetrain.types import Value

STREAM_S = 86_400.0  # a stream older than this is left for a new one: the service may forget it
# Codes of google.rpc.Code.
OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE = 0, 3, 5, 6, 9, 11
# Codes of StorageError, where the service tells one.
TABLE_NOT_FOUND, STREAM_GONE, SCHEMA_MISMATCH = 1, {2, 3, 4, 5, 6}, 7
OFFSET_ALREADY_EXISTS, OFFSET_OUT_OF_RANGE = 8, 9

Verdict = Literal["taken", "refused", "doubtful", "schema", "away"]


class Place(Value, frozen=True, kw_only=True):
    """Where the next batch goes."""

    stream: str
    offset: int = 0  # rows that are in it
    made_s: float = 0.0


class Answered(Value, frozen=True, kw_only=True):
    """What came of an append."""

    code: int = OK
    storage: int = 0  # the code of its StorageError, 0 if there is none
    message: str = ""
    rows: Mapping[int, str] = {}  # position in the batch → why it cannot be taken


def verdict(answered: Answered) -> Verdict:
    """`doubtful`: the stream takes no more, or not here; whether the batch is in it has to be found out."""
    if answered.rows:
        return "refused"
    if answered.code == OK or answered.storage == OFFSET_ALREADY_EXISTS:
        return "taken"
    if answered.storage == SCHEMA_MISMATCH:
        return "schema"
    if answered.storage in (*STREAM_GONE, OFFSET_OUT_OF_RANGE, TABLE_NOT_FOUND):
        return "doubtful"
    return _CODES.get(answered.code, "away")


_CODES: Mapping[int, Verdict] = {
    ALREADY_EXISTS: "taken",
    INVALID_ARGUMENT: "refused",
    NOT_FOUND: "doubtful",
    FAILED_PRECONDITION: "doubtful",
    OUT_OF_RANGE: "doubtful",
}


def holds(row_count: int, place: Place) -> bool:
    """Whether a stream of so many rows has the batch that was meant for `place`: it takes batches whole."""
    return row_count > place.offset


def too_old(place: Place, now_s: float) -> bool:
    return now_s - place.made_s > STREAM_S


def further(place: Place, rows: int) -> Place:
    return msgspec.structs.replace(place, offset=place.offset + rows)


def encode(place: Place) -> str:
    return msgspec.json.encode(place).decode()


def decode(text: str) -> Place | None:
    """None: there is none yet."""
    return msgspec.json.decode(text, type=Place) if text else None
