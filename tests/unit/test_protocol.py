"""HTTP/1.1 towards callers: framing, pipelining, limits, slow and broken clients. Over real sockets."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drivetrain.config.schema import Server
from drivetrain.errors import DrivetrainError
from drivetrain.outbox import CROWD, Outbox
from drivetrain.server.exchange import BUFFER_BYTES, Exchange
from drivetrain.server.listen import Listener, tcp_socket
from drivetrain.server.protocol import HEAD_S, MAX_HEAD_BYTES, Connection

pytestmark = pytest.mark.anyio
Handler = Callable[[Exchange], Awaitable[None]]


@pytest.fixture(autouse=True, params=[0, CROWD], ids=["crowded", "alone"])
def crowd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether answers wait for the end of a turn of the loop, as among many, or not."""
    monkeypatch.setattr("drivetrain.outbox.CROWD", request.param)


class Site:
    """An application with one handler, and what became of its exchanges."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.leaving = False
        self.outbox = Outbox()
        self.cancelled = asyncio.Event()
        self.port = 0
        self.listener: Listener

    async def handle(self, exchange: Exchange) -> None:
        exchange.max_body_bytes = 4 * BUFFER_BYTES
        try:
            await self._handler(exchange)
        except DrivetrainError as error:
            await exchange.respond(error.status, error.message.encode())
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def says(self, *pieces: bytes) -> bytes:
        """Everything the server sends for these bytes until it closes."""
        reader, writer = await self.open()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def site(handler: Handler) -> AsyncGenerator[Site, None]:
    made = Site(handler)
    started = asyncio.Event()
    with tcp_socket("127.0.0.1", 0, advice="") as bound:
        made.port = bound.getsockname()[1]
        made.listener = Listener(made, Server(drain_s=1), started=started.set)  # type: ignore[arg-type]  # all it needs
        serving = asyncio.create_task(made.listener.serve(sockets=[bound]))
        await started.wait()
        yield made
        made.listener.stop()
        await serving


async def echo(exchange: Exchange) -> None:
    body = await exchange.body()
    await exchange.respond(200, f"{exchange.method} {exchange.path} {len(body)} ".encode() + body[:20], b"text/plain")


CLOSE = b"connection: close\r\n"


def bodies(answer: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]]


async def test_a_request_cut_at_every_byte_is_the_same_request() -> None:
    request = b"POST /a%20b?x=1 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n" + CLOSE + b"\r\nhello"
    async with site(echo) as served:
        for cut in range(1, len(request)):
            answer = await served.says(request[:cut], request[cut:])
            assert bodies(answer) == [b"POST /a b 5 hello"]


async def test_chunked_bodies_are_joined() -> None:
    request = (
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        + CLOSE
        + b"\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    async with site(echo) as served:
        assert bodies(await served.says(request)) == [b"POST / 5 abcde"]


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    first = b"POST /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
    last = b"GET /3 HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n"
    async with site(echo) as served:
        answer = await served.says(first + first.replace(b"/1 ", b"/2 ") + last)
    assert bodies(answer) == [b"POST /1 1 a", b"POST /2 1 a", b"GET /3 0 "]


async def test_a_response_is_one_write_with_its_length_and_a_stream_is_chunked() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.start(200, b"text/event-stream")
        await exchange.send_body(b"one", more=True)
        await exchange.send_body(b"two", more=False)

    async with site(stream) as served:
        answer = await served.says(b"GET / HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n")
    assert b"transfer-encoding: chunked\r\n" in answer
    assert answer.endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_head_has_the_headers_and_no_body() -> None:
    async with site(echo) as served:
        answer = await served.says(b"HEAD / HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n")
    assert b"content-length: 9\r\n" in answer
    assert bodies(answer) == [b""]


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end() -> None:
    async with site(echo) as served:
        assert bodies(await served.says(b"GET / HTTP/1.0\r\n\r\n")) == [b"GET / 0 "]


async def test_a_caller_who_waits_for_permission_to_send_gets_it() -> None:
    async with site(echo) as served:
        reader, writer = await served.open()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await reader.readuntil(b"POST / 2 ok")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


async def test_an_offer_to_speak_http_2_is_passed_over_and_the_body_is_read() -> None:
    request = (
        b"POST / HTTP/1.1\r\nconnection: Upgrade, HTTP2-Settings, close\r\ncontent-length: 2\r\nhost: x\r\n"
        b"http2-settings: AAEAAEAA\r\nupgrade: h2c\r\n\r\nhi"
    )
    async with site(echo) as served:
        assert bodies(await served.says(request)) == [b"POST / 2 hi"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_can_be_read_in_two_ways_is_refused(request_bytes: bytes) -> None:
    async def never(exchange: Exchange) -> None:
        await exchange.body()
        await exchange.respond(200, b"smuggled")

    async with site(never) as served:
        answer = await served.says(request_bytes)
    assert b"smuggled" not in answer


async def test_a_head_without_end_is_refused() -> None:
    async with site(echo) as served:
        answer = await served.says(b"GET / HTTP/1.1\r\n" + b"x-a: " + b"a" * (MAX_HEAD_BYTES + 10))
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_body_over_the_limit_is_refused_and_the_answer_arrives() -> None:
    size = 16 * BUFFER_BYTES
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
    async with site(echo) as served:
        answer = await served.says(head, *[b"x" * BUFFER_BYTES] * 16)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close\r\n" in answer


async def test_a_body_within_the_limit_and_larger_than_the_buffer_is_read_whole() -> None:
    size = 3 * BUFFER_BYTES
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % size + CLOSE + b"\r\n"
    async with site(echo) as served:
        answer = await served.says(head, *[b"x" * BUFFER_BYTES] * 3)
    assert bodies(answer)[0].startswith(b"POST / %d x" % size)


async def test_an_upload_is_taken_at_the_readers_pace() -> None:
    seen = 0

    async def count(exchange: Exchange) -> None:
        nonlocal seen
        async for piece in exchange.pieces():
            seen += len(piece)
        await exchange.respond(200)

    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % (32 * BUFFER_BYTES) + CLOSE + b"\r\n"
    async with site(count) as served:
        await served.says(head, *[b"x" * BUFFER_BYTES] * 32)
    assert seen == 32 * BUFFER_BYTES


async def test_a_caller_who_leaves_cancels_the_work_at_once() -> None:
    async def forever(_: Exchange) -> None:
        await asyncio.get_running_loop().create_future()

    async with site(forever) as served:
        _, writer = await served.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await writer.drain()
        writer.close()
        async with asyncio.timeout(1):
            await served.cancelled.wait()


async def test_a_caller_who_leaves_before_the_work_began_leaves_none_to_wait_for() -> None:
    async with site(echo) as served:
        state = served.listener.server_state
        connection = Connection(served.listener.config, state, {})
        connection.connection_made(asyncio.Transport())
        connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        (task,) = state.tasks
        connection.connection_lost(None)
        await asyncio.wait([task])
        assert (task.cancelled(), served.cancelled.is_set()) == (True, False)
        assert state.tasks == set()


async def test_a_slow_reader_holds_the_writer_and_not_the_memory() -> None:
    written = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal written
        await exchange.start(200, b"text/plain")
        for _ in range(1000):
            await exchange.send_body(b"x" * 2**16, more=True)
            written += 2**16
        await exchange.send_body(b"", more=False)

    async with site(flood) as served:
        reader, writer = await served.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n")
        await reader.read(1000)
        before = -1
        while before != written:  # until it stands still
            before = written
            await asyncio.sleep(0.1)
        assert written < 16 * 2**20  # what the sockets hold
        while await reader.read(2**20):
            pass
        assert written == 1000 * 2**16
        writer.close()


async def breaks(exchange: Exchange) -> None:
    await exchange.start(200, b"text/plain")
    await exchange.send_body(b"half", more=True)
    raise asyncio.CancelledError


async def test_a_broken_off_answer_is_not_taken_for_a_whole_one() -> None:
    async with site(breaks) as served:
        reader, writer = await served.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_what_came_before_an_answer_broke_off_has_been_sent() -> None:
    async with site(breaks) as served:
        assert (await served.says(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")).endswith(b"\r\n\r\n4\r\nhalf\r\n")


class Recorder(asyncio.Transport):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


async def test_what_is_no_request_is_refused_after_the_answer_before_it() -> None:
    async with site(echo) as served:
        connection, transport = Connection(served.listener.config, served.listener.server_state, {}), Recorder()
        connection.connection_made(transport)
        connection.write(b"answer ")
        connection.data_received(b"NO REQUEST\r\n\r\n")
        served.listener.server_state.connections.clear()
    assert transport.sent.startswith(b"answer HTTP/1.1 400 Bad Request\r\n")


async def test_silent_and_slow_callers_are_hung_up_on() -> None:
    async with site(echo) as served:
        idle, idle_writer = await served.open()
        slow, slow_writer = await served.open()
        slow_writer.write(b"GET / HTTP/1.1\r\nx-")
        await slow_writer.drain()
        connections: set[Connection] = served.listener.server_state.connections  # type: ignore[assignment]
        while len(connections) < 2 or all(connection._between for connection in connections):
            await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.sweep(time.monotonic() + HEAD_S + 1, idle_s=75)
        assert await slow.read() == b""
        for connection in list(connections):
            connection.sweep(time.monotonic() + 76, idle_s=75)
        assert await idle.read() == b""
        idle_writer.close()
        slow_writer.close()


async def test_a_request_whose_body_is_on_its_way_when_the_server_stops_is_still_answered() -> None:
    begun = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        begun.set()
        await echo(exchange)

    async with site(handler) as served:
        reader, writer = await served.open()
        writer.write(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        await begun.wait()
        (connection,) = served.listener.server_state.connections
        assert isinstance(connection, Connection)
        connection.shutdown()
        writer.write(b"hello")
        async with asyncio.timeout(5):
            assert bodies(await reader.read()) == [b"POST /a 5 hello"]
        writer.close()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with tcp_socket("127.0.0.1", 0, advice="") as bound:
        port = bound.getsockname()[1]
        with pytest.raises(
            DrivetrainError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; choose another"
        ):
            tcp_socket("127.0.0.1", port, advice="choose another")


# --- the end of a server ----------------------------------------------------------------------------------------------


async def test_who_was_not_told_of_the_end_in_a_long_answer_may_ask_once_more() -> None:
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        if exchange.path == "/slow":
            await exchange.start(200, b"text/plain")
            await exchange.send_body(b"a", more=True)
            await go_on.wait()
            await exchange.send_body(b"b", more=False)
        else:
            await exchange.respond(200, b"more", b"text/plain")

    async with site(slow) as made:
        reader, writer = await made.open()
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert CLOSE not in await reader.readuntil(b"1\r\na\r\n")
        made.leaving = True
        made.listener.stop()
        async with asyncio.timeout(10):
            while made.listener.servers[0].is_serving():
                await asyncio.sleep(0.01)
        go_on.set()
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.read()
        assert CLOSE in answer
        assert answer.endswith(b"more")
        writer.close()
