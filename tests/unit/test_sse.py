"""Server-sent events: framing does not depend on where the bytes were cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.sse import Frame, Reader, comment, frame, last
from drivetrain.errors import EngineFailed

STREAM = (
    'data: {"a":"😀"}\n\n'
    ": keep-alive\n\n"
    'data: {"b":"日本語"}\r\n\r\n'
    "event: delta\r\ndata: first\r\ndata: second 🎉\r\n\r\n"
    "data:no space\n\n\n"
    "id: 7\rdata: only CR\r\r\n"
    "retry: 10\n\n"
    'error: {"code":500}\n\n'
    "data: [DONE]\n\n"
).encode()

FRAMES: list[Frame] = [
    ('{"a":"😀"}'.encode(), 'data: {"a":"😀"}\n\n'.encode(), b""),
    ('{"b":"日本語"}'.encode(), 'data: {"b":"日本語"}\r\n\r\n'.encode(), b""),
    ("first\nsecond 🎉".encode(), "event: delta\r\ndata: first\r\ndata: second 🎉\r\n\r\n".encode(), b"delta"),
    (b"no space", b"data:no space\n\n", b""),
    (b"only CR", b"\nid: 7\rdata: only CR\r\r\n", b""),
    (b'{"code":500}', b'error: {"code":500}\n\n', b"error"),
    (b"[DONE]", b"data: [DONE]\n\n", b""),
]


def read(*pieces: bytes) -> list[Frame]:
    reader = Reader()
    return [found for piece in pieces for found in reader.feed(piece)]


def test_reads_every_form_of_a_frame() -> None:
    assert read(STREAM) == FRAMES


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_cut_at_any_byte_changes_nothing(at: int) -> None:
    assert read(STREAM[:at], STREAM[at:]) == FRAMES


def test_single_bytes_change_nothing() -> None:
    assert read(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == FRAMES


@given(
    st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\r", b"event: e", b":c", b"data:"]), max_size=12), st.data()
)
def test_any_lines_cut_anywhere_read_the_same(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(lines) + b"\n\n"
    at = data.draw(st.integers(0, len(stream)))
    assert read(stream[:at], stream[at:]) == read(stream)


def test_a_byte_order_mark_is_skipped() -> None:
    assert read(b"\xef\xbb\xbfdata: x\n\n")[0][0] == b"x"


def test_a_frame_is_handed_out_with_its_last_byte_and_not_later() -> None:
    reader = Reader()
    assert reader.feed(b"data: x\n") == []
    assert reader.feed(b"\n") == [(b"x", b"data: x\n\n", b"")]
    assert not reader.pending


def test_what_the_end_of_the_stream_completes_is_not_lost() -> None:
    reader = Reader()
    assert reader.feed(b"data: x") == []
    assert last(reader.rest()) == (b"x", b"data: x", b"")
    assert last(reader.rest()) is None


def test_a_frame_without_end_does_not_fill_the_memory() -> None:
    reader = Reader(limit_bytes=100)
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(EngineFailed, match="more than 100 bytes"):
        reader.feed(b"x" * 90)


def test_writes_frames_and_comments() -> None:
    assert frame(b"{}") == b"data: {}\n\n"
    assert comment("loading") == b": loading\n\n"
    assert read(frame(b"{}"), comment("loading")) == [(b"{}", b"data: {}\n\n", b"")]
