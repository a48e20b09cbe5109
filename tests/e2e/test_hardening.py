"""What a hostile caller may send to a real port: ambiguous framing, floods, drops, bombs. Raw bytes, no library."""

import asyncio
import gzip
import logging
import time
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from drivetrain.config.schema import Server
from drivetrain.server.protocol import BODY_BYTES_PER_S, BODY_S, HEAD_S, MAX_HEAD_BYTES, MAX_HEADERS, STALLED_S
from drivetrain.store import Store
from tests.e2e.governed import Governed, governed
from tests.fakes.engine import END, HELLO

pytestmark = pytest.mark.anyio
LIMIT = 100_000
CLOSE = b"connection: close\r\n"
PATH = b"/v1/chat/completions"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Governed, None]:
    store = Store.open(f"sqlite:///{tmp_path}/state/drivetrain.db", tmp_path)
    async with governed(store, tmp_path, server=Server(max_body_bytes=LIMIT)) as made:
        yield made
    store.close()


@pytest.fixture
def key(server: Governed) -> bytes:
    return b"authorization: Bearer %b\r\n" % server.secret("inference", "models", "metrics").encode()


def head(*lines: bytes, method: bytes = b"POST", path: bytes = PATH) -> bytes:
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, path, b"".join(lines))


HOST = b"host: localhost\r\n"


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


# --- what can be read in two ways -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        [HOST, HOST],
        [HOST, b"host: evil.example.com\r\n"],
        [HOST, b"content-length: 2\r\n", b"content-length: 2\r\n"],
        [HOST, b"content-length: 2\r\n", b"Content-Length: 3\r\n"],
        [HOST, b"content-length: 2\r\n", b"transfer-encoding: chunked\r\n"],
        [HOST, b"transfer-encoding: chunked\r\n", b"transfer-encoding: chunked\r\n"],
        [HOST, b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n"],
        [HOST, b"transfer-encoding: identity, chunked, identity\r\n"],
        [HOST, b"transfer-encoding: xchunked\r\n"],
        [HOST, b"transfer-encoding: \x0bchunked\r\n"],
        [HOST, b"content-length: 2, 2\r\n"],
        [HOST, b"content-length: +2\r\n"],
        [HOST, b"content-length: 0x2\r\n"],
        [HOST, b"content-length: -2\r\n"],
        [HOST, b"content-length: 99999999999999999999999\r\n"],
        [HOST, b"content-length : 2\r\n"],
        [HOST, b" content-length: 2\r\n"],
        [HOST, b"x: a\x00b\r\n", b"content-length: 2\r\n"],
        [HOST, b"x: a\nb\r\n", b"content-length: 2\r\n"],
        [HOST, b"authorization: Bearer one\r\n"],
        [HOST, b"x-api-key: one\r\n", b"X-API-Key: two\r\n"],
    ],
)
async def test_what_can_be_read_in_two_ways_reaches_nobody(server: Governed, key: bytes, lines: list[bytes]) -> None:
    smuggled = head(HOST, key, CLOSE, method=b"DELETE", path=b"/v1/models/chat")
    answer = await server.says(head(key, *lines), b"{}", smuggled)
    assert set(statuses(answer)) <= {400}
    assert server.engine.asked == []


async def test_two_keys_are_refused_with_the_name_of_the_header(server: Governed, key: bytes) -> None:
    answer = await server.says(head(HOST, key, key))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"two headers authorization; send one")


async def test_trailers_do_not_become_headers_of_the_next_request(server: Governed, key: bytes) -> None:
    """Between a proxy and us one connection carries the requests of many callers."""
    first = head(HOST, b"transfer-encoding: chunked\r\n", path=b"/api/version", method=b"GET")
    chunks = b"2\r\n{}\r\n0\r\n" + key + b"x-api-key: a\r\n\r\n"
    second = head(HOST, CLOSE, method=b"GET", path=b"/v1/models")
    assert statuses(await server.says(first + chunks + second)) == [200, 401]


@pytest.mark.parametrize(
    "target", [b"http://evil.example.com/v1/models", b"http://localhost@evil.example.com/v1/models"]
)
async def test_an_address_in_the_first_line_changes_nothing(server: Governed, key: bytes, target: bytes) -> None:
    bare = await server.says(head(HOST, CLOSE, method=b"GET", path=target))
    assert statuses(bare) in ([401], [400])
    known = await server.says(head(HOST, CLOSE, key, method=b"GET", path=target))
    assert statuses(known) in ([200], [400])


@pytest.mark.parametrize(
    "path", [b"*", b"/%2e%2e/v1/models", b"/v1/models/..%2f..%2fadmin", b"/v1/models/%00", b"/%ff", b"/%"]
)
async def test_odd_paths_lead_nowhere(server: Governed, key: bytes, path: bytes) -> None:
    assert statuses(await server.says(head(HOST, CLOSE, key, method=b"GET", path=path)))[0] in (400, 404)


async def test_nothing_of_a_request_gets_between_the_lines_of_an_answer(server: Governed, key: bytes) -> None:
    lines = (HOST, CLOSE, key, b"x-request-id: a\tset-cookie: b\r\n", b"origin: http://localhost\r\n")
    answer = await server.says(head(*lines, method=b"GET", path=b"/v1/models/a%0d%0aset-cookie:%20b"))
    assert b"\nset-cookie" not in answer.lower().partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("host", [b"evil.example.com", b"localhost.evil.example.com", b"8.8.8.8"])
async def test_a_name_that_was_bent_to_this_machine_is_refused(server: Governed, key: bytes, host: bytes) -> None:
    answer = await server.says(head(b"host: %b\r\n" % host, CLOSE, key, method=b"GET", path=b"/v1/models"))
    assert statuses(answer) == [403]


# --- too much ---------------------------------------------------------------------------------------------------------


async def test_a_flood_of_headers_is_refused(server: Governed, key: bytes) -> None:
    lines = [b"x-%d: a\r\n" % n for n in range(MAX_HEADERS)]
    assert statuses(await server.says(head(HOST, key, *lines))) == [431]
    assert statuses(await server.says(head(HOST, CLOSE, key, *lines[:-10], method=b"GET", path=b"/v1/models"))) == [200]


@pytest.mark.parametrize(
    "flood",
    [b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\n" + b"x: a\r\n" * 20_000, b"GET / HTTP/1.1\r\n" + b"x" * 200_000],
)
async def test_a_head_without_end_is_refused(server: Governed, flood: bytes) -> None:
    assert len(flood) > MAX_HEAD_BYTES
    assert set(statuses(await server.says(flood))) <= {400, 431}


async def test_trailers_without_end_cost_no_memory(server: Governed, key: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head(HOST, key, b"transfer-encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n")
    for n in range(2000):
        writer.write(b"x-%d: %b\r\n" % (n, b"a" * 1000))
    await writer.drain()
    await connected(server)
    (connection,) = server.connections()
    assert len(connection._headers) == 0
    writer.close()
    del reader


@pytest.mark.parametrize(
    "body",
    [
        [b"content-length: %d\r\n\r\n" % (LIMIT + 1)],
        [b"content-length: 999999999999\r\n\r\n"],
        [b"transfer-encoding: chunked\r\n\r\n", b"%x\r\n" % (LIMIT + 1), b"x" * (LIMIT + 1), b"\r\n0\r\n\r\n"],
        [b"transfer-encoding: chunked\r\n\r\n", *[b"1000\r\n" + b"x" * 4096 + b"\r\n"] * 100],
    ],
)
async def test_a_body_over_the_limit_is_refused(server: Governed, key: bytes, body: list[bytes]) -> None:
    answer = await server.says(b"POST %b HTTP/1.1\r\n" % PATH + HOST + CLOSE + key + body[0], *body[1:])
    assert statuses(answer) == [413]
    assert b"server.max_body_bytes" in answer


async def test_who_shows_no_key_is_refused_before_the_body_is_wanted(server: Governed) -> None:
    lines = (HOST, b"content-length: 50000\r\n", b"expect: 100-continue\r\n")
    answer = await server.says(head(*lines))
    assert statuses(answer) == [401]  # and no 100 before it


@pytest.mark.parametrize("encoding", [b"gzip", b"GZIP", b"deflate", b"br", b"zstd", b"identity, gzip", b"x-gzip"])
async def test_a_compressed_body_is_refused_and_never_unpacked(server: Governed, key: bytes, encoding: bytes) -> None:
    bomb = gzip.compress(bytes(50_000_000), 9) if b"gzip" in encoding.lower() else zlib.compress(bytes(50_000_000), 9)
    lines = (HOST, CLOSE, key, b"content-encoding: %b\r\n" % encoding, b"content-length: %d\r\n" % len(bomb))
    answer = await server.says(head(*lines) + bomb)
    assert statuses(answer) == [415]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 90_000,
        b'{"a":' * 15_000,
        b'{"model":"chat","messages":' + b"[" * 50_000,
        b'{"model":"chat","messages":[],"x":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b'{"model":"chat","temperature":' + b"9" * 5000 + b',"messages":[{"role":"user","content":"a"}]}',
        b'{"model":"chat","max_tokens":1e999,"messages":[]}',
        b'{"model":"' + b"\\u0000" * 1000 + b'","messages":[{"role":"user","content":"a"}]}',
        b'{"model":"\xff","messages":[]}',
        b'\xef\xbb\xbf{"model":"chat"}',
    ],
)
@pytest.mark.parametrize("path", [PATH, b"/api/chat"])
async def test_a_body_made_to_break_a_parser_is_a_mistake_of_the_caller(
    server: Governed, key: bytes, path: bytes, body: bytes
) -> None:
    server.engine.play(([HELLO], END))
    answer = await server.says(head(HOST, CLOSE, key, b"content-length: %d\r\n" % len(body), path=path) + body)
    assert statuses(answer)[0] < 500


# --- too slow ---------------------------------------------------------------------------------------------------------


async def connected(server: Governed, *, reading: bool = True) -> None:
    """Until the one connection has a request whose body is being read."""
    async with asyncio.timeout(10):
        while not server.connections() or (reading and server.connections()[0]._reading is None):
            await asyncio.sleep(0.01)


def sweep(server: Governed, after_s: float) -> None:
    for connection in server.connections():
        connection.sweep(time.monotonic() + after_s, idle_s=75)


async def test_who_takes_for_ever_over_the_head_is_hung_up_on(server: Governed) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nx-a: b\r\n")
    await writer.drain()
    async with asyncio.timeout(10):
        while not server.connections() or server.connections()[0]._between:
            await asyncio.sleep(0.01)
    sweep(server, HEAD_S - 5)
    assert server.connections()
    sweep(server, HEAD_S + 1)
    assert await reader.read() == b""
    writer.close()


async def test_who_takes_for_ever_over_the_body_is_told_so_and_hung_up_on(server: Governed, key: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head(HOST, key, b"content-length: 1000\r\n") + b"{")
    await connected(server)
    sweep(server, BODY_S / 2)
    writer.write(b" ")  # a byte now and then buys next to nothing
    await asyncio.sleep(0.05)
    sweep(server, BODY_S / 2 + BODY_S)
    answer = await reader.read()
    assert statuses(answer) == [408]
    assert (b"connection: close" in answer, b'"code":"request_timeout"' in answer) == (True, True)
    assert b"x-should-retry: false" in answer
    writer.close()


async def test_who_sends_a_body_slowly_but_steadily_is_heard_out(server: Governed, key: bytes) -> None:
    size = 50_000
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head(HOST, CLOSE, key, b"content-length: %d\r\n" % size))
    await connected(server)
    (connection,) = server.connections()
    came = 0
    for second in range(1, 6):
        writer.write(b" " * BODY_BYTES_PER_S * 10)
        came += BODY_BYTES_PER_S * 10
        while connection._reading is not None and connection._body_bytes < BODY_BYTES_PER_S * 10:
            await asyncio.sleep(0.01)
        sweep(server, second * 10)
    writer.write(b" " * (size - came))
    assert statuses(await reader.read()) == [400]  # a body of spaces, but a whole one
    writer.close()


async def test_a_body_that_waits_for_its_turn_does_not_run_out_of_time(server: Governed, key: bytes) -> None:
    """The line is held while the request before it is answered; afterwards its body is read on."""
    body = b'{"model":"chat","messages":[{"role":"user","content":"a"}]}'
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    second = head(HOST, CLOSE, key, b"content-length: %d\r\n" % len(body))
    slow = head(HOST, key, b"content-length: 2\r\n")
    writer.write(slow + b"{")
    await connected(server)
    writer.write(b"}" + second + body[:10])
    assert b"400" in await reader.readuntil(b"\r\n")
    writer.write(body[10:])
    async with asyncio.timeout(10):
        rest = await reader.read()
    assert b"HTTP/1.1 200 OK" in rest
    writer.close()


async def test_who_does_not_read_the_answer_is_hung_up_on(server: Governed, key: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    writer.write(head(HOST, key, method=b"GET", path=b"/v1/models"))
    await connected(server, reading=False)
    (connection,) = server.connections()
    connection.pause_writing()
    sweep(server, STALLED_S - 5)
    assert not connection._transport.is_closing()
    sweep(server, STALLED_S + 1)
    assert connection._transport.is_closing()
    writer.close()
    del reader


# --- nothing is left behind -------------------------------------------------------------------------------------------


async def test_keys_and_prompts_are_in_no_log(server: Governed, key: bytes, caplog: pytest.LogCaptureFixture) -> None:
    secret = key.split(b"-")[-1].strip().decode()
    body = b'{"model":"nobody","messages":[{"role":"user","content":"the prompt that nobody may read"}]}'
    with caplog.at_level(logging.DEBUG):
        for path in (PATH, b"/api/chat", b"/v1/nothing", b"/admin/v1/keys"):
            await server.says(head(HOST, CLOSE, key, b"content-length: %d\r\n" % len(body), path=path) + body)
    logged = caplog.text + repr([record.__dict__ for record in caplog.records])
    assert secret not in logged
    assert "nobody may read" not in logged
