"""NDJSON framing: the same lines however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivetrain.dialects.ndjson import Lines
from drivetrain.errors import EngineFailed


def _lines(pieces: list[bytes]) -> list[bytes]:
    lines = Lines()
    found = [line for piece in pieces for line in lines.feed(piece)]
    rest = lines.rest()
    return [*found, rest] if rest else found


def test_lines_come_out_when_their_newline_comes() -> None:
    lines = Lines()
    assert lines.feed(b'{"a":') == []
    assert lines.feed(b'1}\n{"b"') == [b'{"a":1}']
    assert lines.feed(b":2}") == []
    assert lines.rest() == b'{"b":2}'
    assert lines.rest() == b""


def test_blank_lines_and_carriage_returns_vanish() -> None:
    assert _lines([b"\n", b'\r\n{"a":1}\r\n\r\n \n', b'{"b":2}\n\n']) == [b'{"a":1}', b'{"b":2}']


def test_a_stream_cut_at_every_byte_gives_the_same_lines() -> None:
    stream = '{"é":"日本"}\r\n\n{"b":"👩‍👩‍👧"}\n{"c":3}'.encode()
    whole = _lines([stream])
    assert whole == ['{"é":"日本"}'.encode(), '{"b":"👩‍👩‍👧"}'.encode(), b'{"c":3}']
    for cut in range(len(stream) + 1):
        assert _lines([stream[:cut], stream[cut:]]) == whole
    assert _lines([stream[at : at + 1] for at in range(len(stream))]) == whole


@given(st.lists(st.binary(max_size=12)), st.lists(st.integers(0, 80)))
def test_any_cuts_give_the_same_lines(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"\n".join(lines)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert _lines(pieces) == [line for part in stream.split(b"\n") if (line := part.strip())]


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    lines = Lines(limit=10)
    lines.feed(b"123456789")
    with pytest.raises(EngineFailed, match="more than 10 bytes without a newline"):
        lines.feed(b"012")
