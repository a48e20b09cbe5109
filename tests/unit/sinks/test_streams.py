"""What BigQuery's answers mean."""

import pytest
from google.cloud.bigquery_storage_v1 import types
from google.protobuf.any_pb2 import Any
from google.rpc.status_pb2 import Status

from drivetrain.sinks import streams
from drivetrain.sinks.bigquery_api import _answered
from drivetrain.sinks.columns import COLUMNS, values
from drivetrain.sinks.protorows import DESCRIPTOR, serialised
from drivetrain.sinks.streams import Answered, Place
from tests.fakes.exports import attempt


@pytest.mark.parametrize(
    ("answered", "verdict"),
    [
        (Answered(), "taken"),
        (Answered(code=6), "taken"),
        (Answered(code=3, storage=8), "taken"),
        (Answered(code=3), "refused"),
        (Answered(code=3, rows={0: "bad"}), "refused"),
        (Answered(code=11), "doubtful"),
        (Answered(code=5), "doubtful"),
        (Answered(code=9), "doubtful"),
        (Answered(code=3, storage=6), "doubtful"),
        (Answered(code=3, storage=3), "doubtful"),
        (Answered(code=3, storage=1), "doubtful"),
        (Answered(code=3, storage=7), "schema"),
        *[(Answered(code=code), "away") for code in (-1, 1, 2, 4, 7, 8, 10, 13, 14, 16)],
    ],
)
def test_each_answer_has_one_meaning(answered: Answered, verdict: str) -> None:
    assert streams.verdict(answered) == verdict


def test_a_stream_holds_a_batch_if_it_has_more_rows_than_came_before() -> None:
    place = Place(stream="s", offset=500)
    assert [streams.holds(count, place) for count in (0, 500, 501, 1000)] == [False, False, True, True]


def test_a_stream_is_old_after_a_day() -> None:
    place = Place(stream="s", made_s=1000.0)
    assert [streams.too_old(place, now_s) for now_s in (1000.0, 87_400.0, 87_401.0)] == [False, False, True]


def test_answers_are_read_from_the_wire() -> None:
    detail = Any()
    detail.Pack(types.StorageError.pb()(code=8))
    status = Status(code=3, message="offset", details=[detail])
    assert _answered(types.AppendRowsResponse(error=status)) == Answered(code=3, storage=8, message="offset")
    bad = types.RowError(index=3, code=types.RowError.RowErrorCode.FIELDS_ERROR, message="bad")
    answer = types.AppendRowsResponse(error=Status(code=3, message="rows"), row_errors=[bad])
    assert _answered(answer) == Answered(code=3, message="rows", rows={3: "bad"})
    assert _answered(types.AppendRowsResponse()) == Answered()


def test_a_row_is_a_message_of_a_kind_made_from_the_columns() -> None:
    assert [field.name for field in DESCRIPTOR.field] == list(COLUMNS)
    whole, partial = attempt(1), attempt(1, first_token_s=None)
    assert len(serialised((1, whole))) == len(serialised((1, partial))) + 10  # a tag of two bytes, and a double


def test_columns_are_those_of_the_ledger_and_two_more() -> None:
    row = values((7, attempt(1)))
    assert list(row) == list(COLUMNS)
    assert (row["seq"], row["started_at"], row["id"]) == (7, 1_796_040_001_000_000, attempt(1).id)
    kinds = {name: COLUMNS[name] for name in ("seq", "started_at", "stream", "outcome", "first_token_s", "status")}
    assert list(kinds.values()) == ["integer", "instant", "boolean", "text", "number", "integer"]
