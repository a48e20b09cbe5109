"""The reader takes exactly one well-formed answer per request out of any bytes, cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain.engines._http.reader import MAX_HEAD_BYTES, AnswerReader, Malformed

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n w\xc3\xb6rl\r\n1\r\nd\r\n0\r\nX-Trailer: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nhello w\xc3\xb6rld"
UNSIZED = b"HTTP/1.1 200 OK\r\n\r\nhello w\xc3\xb6rld"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SIZED
BODY = "hello wörld".encode()
SHAPES = {"chunked": CHUNKED, "sized": SIZED, "interim": INTERIM}


def read(*pieces: bytes, bodiless: bool = False) -> AnswerReader:
    reader = AnswerReader()
    reader.begin(bodiless=bodiless)
    for piece in pieces:
        reader.feed(piece)
    return reader


@pytest.mark.parametrize("wire", SHAPES.values(), ids=SHAPES)
def test_an_answer_reads_the_same_however_it_is_cut(wire: bytes) -> None:
    for cut in range(1, len(wire)):
        reader = read(wire[:cut], wire[cut:])
        assert (reader.status, reader.take(), reader.complete, reader.reusable) == (200, BODY, True, True), cut


@pytest.mark.parametrize("wire", SHAPES.values(), ids=SHAPES)
def test_an_answer_reads_the_same_byte_by_byte(wire: bytes) -> None:
    reader = read(*(wire[at : at + 1] for at in range(len(wire))))
    assert (reader.status, reader.take(), reader.complete, reader.reusable) == (200, BODY, True, True)


@pytest.mark.parametrize("wire", SHAPES.values(), ids=SHAPES)
def test_an_answer_that_ends_early_is_an_error_at_every_offset(wire: bytes) -> None:
    for cut in range(len(wire)):
        reader = read(*([wire[:cut]] if cut else []))
        with pytest.raises(Malformed):
            reader.eof()
        assert not reader.complete
        assert not reader.reusable


def test_a_body_without_length_ends_where_the_connection_does() -> None:
    for cut in range(1, len(UNSIZED)):
        reader = read(UNSIZED[:cut], UNSIZED[cut:])
        assert not reader.complete
        reader.eof()
        assert (reader.take(), reader.complete, reader.reusable) == (BODY, True, False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=12), st.lists(st.integers(0, 4000), max_size=8))
def test_any_chunks_cut_anywhere_give_their_content(contents: list[bytes], cuts: list[int]) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    wire = head + b"".join(b"%x\r\n%b\r\n" % (len(content), content) for content in contents) + b"0\r\n\r\n"
    edges = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    reader = read(*(wire[start:end] for start, end in pairwise(edges)))
    assert (reader.take(), reader.complete, reader.reusable) == (b"".join(contents), True, True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4))
def test_garbage_is_refused_or_waited_out_but_never_taken_for_an_answer(pieces: list[bytes]) -> None:
    reader = AnswerReader()
    try:
        for piece in pieces:
            reader.feed(piece)
        reader.eof()
    except Malformed:
        assert not reader.complete


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(CHUNKED) - 1), st.integers(0, 255))
def test_a_flipped_byte_never_lets_more_content_through_than_was_sent(position: int, byte: int) -> None:
    wire = bytearray(CHUNKED)
    wire[position] = byte
    reader = AnswerReader()
    try:
        reader.feed(bytes(wire))
        reader.eof()
    except Malformed:
        pass
    assert len(reader.take()) <= len(CHUNKED)


REFUSED = {
    "length and coding": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nhi",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi",
    "two codings": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "compression": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",
    "a bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
    "a folded header": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
    "a space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nhi",
    "a huge chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhi",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "switched protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "status 000": b"HTTP/1.1 000 No\r\nContent-Length: 2\r\n\r\nhi",
}


@pytest.mark.parametrize("wire", REFUSED.values(), ids=REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_at_every_cut(wire: bytes) -> None:
    for cut in range(1, len(wire)):
        reader = AnswerReader()
        with pytest.raises(Malformed):
            reader.feed(wire[:cut])
            reader.feed(wire[cut:])
        assert not reader.complete


@pytest.mark.parametrize("step", [100, 8192, 10**6])
@pytest.mark.parametrize(
    ("start", "unit"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"a"),
    ],
    ids=["one header", "many headers", "interim answers", "trailer"],
)
def test_headers_are_limited(start: bytes, unit: bytes, step: int) -> None:
    wire = start + unit * (2 * MAX_HEAD_BYTES // len(unit))
    reader = AnswerReader()
    with pytest.raises(Malformed, match="bytes of headers"):
        for at in range(0, len(wire), step):
            reader.feed(wire[at : at + step])


def test_a_long_body_in_one_piece_with_its_head_is_no_long_header() -> None:
    body = b"x" * (2 * MAX_HEAD_BYTES)
    reader = read(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    assert reader.take() == body


JUNK = [b"\r\n\r\nx", b"XX", SIZED, CHUNKED, b"\x00"]


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("wire", SHAPES.values(), ids=SHAPES)
def test_bytes_after_the_end_spoil_the_connection_but_not_the_answer(wire: bytes, junk: bytes) -> None:
    for pieces in ((wire + junk,), (wire, junk)):
        reader = read(*pieces)
        assert (reader.take(), reader.complete, reader.reusable) == (BODY, True, False)


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body_whatever_their_headers_say(status: int) -> None:
    reader = read(b"HTTP/1.1 %d No\r\nContent-Length: 3\r\n\r\n" % status)
    assert (reader.status, reader.take(), reader.complete, reader.reusable) == (status, b"", True, True)


def test_the_answer_to_head_has_no_body_and_ends_the_connection() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", bodiless=True)
    assert (reader.take(), reader.complete, reader.reusable) == (b"", True, False)


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_reuse_follows_the_version_and_the_connection_header(head: bytes, reusable: bool) -> None:
    assert read(head + b"Content-Length: 2\r\n\r\nhi").reusable is reusable


def test_one_reader_reads_the_answers_of_one_connection_in_turn() -> None:
    reader = AnswerReader()
    for wire in [SIZED, CHUNKED, INTERIM, CHUNKED]:
        reader.begin()
        reader.feed(wire)
        assert (reader.status, reader.take(), reader.complete, reader.reusable) == (200, BODY, True, True)


def test_header_names_are_lower_case_and_trailers_are_dropped() -> None:
    reader = read(CHUNKED)
    assert reader.headers == [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]
