"""Batches: what is begun is sent as it was begun, whatever comes in between."""

from hypothesis import given
from hypothesis import strategies as st

from drivetrain.sinks import batches
from drivetrain.sinks.batches import Intent, Progress
from tests.fakes.exports import attempt

ROWS = [(seq, attempt(seq)) for seq in (1, 2, 4, 5, 9)]  # a database leaves gaps


def test_a_batch_is_begun_sent_and_done() -> None:
    begun = batches.planned(Progress(), ROWS[:3], "here")
    assert begun == Progress(seq=0, intent=Intent(first=1, last=4, count=3), place="here")
    assert [seq for seq, _ in batches.batch(begun, ROWS[:3]).rows] == [1, 2, 4]
    assert batches.done(begun, "further") == Progress(seq=4, place="further")


def test_rows_that_came_later_are_not_in_a_batch_that_was_begun() -> None:
    begun = batches.planned(Progress(), ROWS[:2], "")
    assert [seq for seq, _ in batches.batch(begun, ROWS).rows] == [1, 2]


def test_refused_rows_are_left_out_and_counted() -> None:
    refused = batches.refused(batches.planned(Progress(), ROWS, ""), [2, 9])
    assert refused.dead == 2
    assert [seq for seq, _ in batches.batch(refused, ROWS).rows] == [1, 4, 5]
    assert batches.done(refused, "") == Progress(seq=9, dead=2)


def test_halves_get_down_to_the_one_row_that_is_refused() -> None:
    progress, sizes = batches.planned(Progress(), ROWS, ""), []
    while len(left := batches.batch(progress, ROWS).rows) > 1:
        sizes.append(len(left))
        progress = batches.halved(progress, left)
    assert sizes == [5, 2]
    assert [seq for seq, _ in left] == [1]


def test_half_a_batch_forgets_what_was_refused_in_the_other_half() -> None:
    refused = batches.refused(batches.planned(Progress(), ROWS, ""), [2, 9])
    half = batches.halved(refused, batches.batch(refused, ROWS).rows)
    assert half.intent == Intent(first=1, last=1, count=5)
    assert half.dead == 0


def test_a_batch_fits_into_a_request() -> None:
    large = [(seq, attempt(seq, tags="x" * 1000)) for seq in range(1, 11)]
    assert [seq for seq, _ in batches.fitting(large, 3 * 1500)] == [1, 2, 3]
    assert [seq for seq, _ in batches.fitting(large, 10)] == [1]
    assert batches.fitting(large, 10**6) == large


@given(
    st.builds(
        Progress,
        seq=st.integers(0, 2**62),
        place=st.text(),
        dead=st.integers(0, 2**40),
        intent=st.none()
        | st.builds(
            Intent,
            first=st.integers(1, 2**62),
            last=st.integers(1, 2**62),
            count=st.integers(1, 10**6),
            excluded=st.lists(st.integers(1, 2**62)).map(tuple),
        ),
    )
)
def test_what_is_kept_is_what_is_read(progress: Progress) -> None:
    assert batches.decode(batches.encode(progress)) == progress
