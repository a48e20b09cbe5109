"""The upstream client over real sockets: exchanges, failures, deadlines, back-pressure, and closing as cancelling."""

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from drivetrain.engines._http import Answer, Upstream
from drivetrain.engines._http.connection import MAX_GATHERED_BYTES
from drivetrain.engines._http.upstream import reason_of
from drivetrain.errors import ConnectTimeout, EngineFailed, EngineTimeout, EngineUnavailable
from tests.fakes import FakeUpstream, Raw, Stream, Whole
from tests.fakes.pair import pair, post

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
OPEN_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def collect(answer: Answer, into: list[bytes]) -> None:
    while data := await answer.next():
        into.append(data)


async def test_requests_in_turn_share_one_connection() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        assert [await post(upstream) for _ in range(20)] == [b"ok"] * 20
        assert (server.accepted, upstream.open_connections, upstream.idle_connections) == (1, 1, 1)


async def test_requests_at_once_have_a_connection_each_and_all_are_kept() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"ok"], delay_s=0.05))
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(post(upstream))
        assert (server.accepted, upstream.idle_connections) == (5, 5)


async def test_a_request_goes_out_whole() -> None:
    async with pair(api_key="k", headers={"x-team": "a"}) as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        await post(upstream, body=b'{"a":1}')
        received = server.requests[0]
        assert (received.method, received.path, received.json) == ("POST", "/x", {"a": 1})
        assert received.headers == {
            "host": server.url.removeprefix("http://"),
            "user-agent": "drivetrain",
            "accept-encoding": "identity",
            "authorization": "Bearer k",
            "x-team": "a",
            "content-type": "application/json",
            "content-length": "7",
        }


async def test_the_prefix_of_the_url_precedes_every_path() -> None:
    async with FakeUpstream() as server:
        server.script("/api/v1/x", Raw(pieces=[OK]))
        upstream = Upstream(server.url + "/api/v1/")
        assert await post(upstream) == b"ok"
        await upstream.aclose()


async def test_a_large_body_goes_out_whole() -> None:
    body = random.Random(1).randbytes(3_000_000)
    async with pair() as (server, upstream):
        server.script("/x", lambda request: Whole(body=request.body))
        assert await post(upstream, body=body) == body
        assert upstream.idle_connections == 1


async def test_status_and_headers_are_there_before_the_body() -> None:
    async with pair() as (server, upstream):
        server.script(
            "/x", Raw(pieces=[b"HTTP/1.1 418 T\r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 9\r\n\r\n"], then="stall")
        )
        async with upstream.get("/x") as answer:
            assert (answer.status, answer.headers) == (418, {"x-a": "1, 2", "content-length": "9"})


async def test_data_arrives_when_it_is_sent() -> None:
    async with pair() as (server, upstream):
        gates = [asyncio.Event() for _ in range(3)]

        async def pieces() -> None:
            writer = server.requests[0].transport
            for number, gate in enumerate(gates):
                writer.write(b"1\r\n%d\r\n" % number)
                await gate.wait()
            writer.write(b"0\r\n\r\n")

        server.script("/x", Raw(pieces=[OPEN_HEAD], then="stall"))
        async with asyncio.TaskGroup() as group, upstream.get("/x") as answer:
            group.create_task(pieces())
            got = []
            while data := await answer.next():
                got.append(data)
                gates[len(got) - 1].set()  # only now may the next one be sent
            assert got == [b"0", b"1", b"2"]


# --- gathering --------------------------------------------------------------------------------------------------------


async def collected(upstream: Upstream, gather_s: float) -> list[bytes]:
    got = []
    async with upstream.get("/x") as answer:
        while data := await answer.next(gather_s):
            got.append(data)
    return got


async def test_what_is_gathered_is_read_at_the_answers_end() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"a", b"b", b"c"], pause_s=0.02))
        assert await collected(upstream, 60.0) == [b"abc"]
        assert upstream.idle_connections == 1


async def test_what_is_gathered_is_read_when_its_time_is_over() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"a", b"b"], cut_after=2, then="stall", pause_s=0.005))
        began_s = asyncio.get_running_loop().time()
        async with upstream.get("/x") as answer:
            assert await answer.next(0.1) == b"ab"
        assert asyncio.get_running_loop().time() - began_s >= 0.1


async def test_a_peer_that_sends_while_it_is_gathered_is_not_silent() -> None:
    async with pair(idle_s=0.06) as (server, upstream):
        server.script("/x", Stream(frames=[b"a", b"b"], cut_after=2, then="stall", pause_s=0.04))
        async with upstream.get("/x") as answer:
            assert await answer.next(0.2) == b"ab"
            with pytest.raises(EngineTimeout, match="in its answer"):
                await answer.next(0.2)


@pytest.mark.parametrize("then", ["reset", "close"])
async def test_what_was_gathered_before_the_break_is_delivered_first(then: Any) -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"hello"], cut_after=3, then=then, pause_s=0.02))
        async with upstream.get("/x") as answer:
            assert await answer.next(60.0) == b"hel"
            with pytest.raises(EngineFailed, match="engine 'e' broke off its answer"):
                await answer.next(60.0)


async def test_no_more_is_gathered_than_a_little() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"a" * 40_000] * 2, cut_after=80_000, then="stall", pause_s=0.02))
        async with upstream.get("/x") as answer:
            assert len(await answer.next(60.0)) > MAX_GATHERED_BYTES


async def test_a_connection_left_while_it_gathers_is_closed() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"a", b"b"], cut_after=2, then="stall", pause_s=0.02))
        async with upstream.get("/x") as answer:
            assert await answer.next() == b"a"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await answer.next(60.0)
        await server.requests[0].wait_closed()
        assert upstream.open_connections == 0


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_an_answer_cut_at_any_byte_is_an_error_and_never_a_short_success() -> None:
    wire = OPEN_HEAD + b"5\r\nhello\r\n0\r\n\r\n"
    async with pair() as (server, upstream):
        for cut in range(1, len(wire)):
            server.script("/x", Raw(pieces=[wire[:cut]], then="close"))
            with pytest.raises(EngineFailed):
                await post(upstream)
        await server.wait(lambda: server.open == 0)


async def test_what_came_before_the_break_is_delivered_first() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"hello"], cut_after=3, then="reset", pause_s=0.02))
        got: list[bytes] = []
        with pytest.raises(EngineFailed, match="engine 'e' broke off its answer"):
            async with upstream.get("/x") as answer:
                await collect(answer, got)
        assert got == [b"hel"]


async def test_nobody_listening_is_unavailable() -> None:
    async with pair() as (server, upstream):
        server.refuse()
        with pytest.raises(EngineUnavailable, match=r"^engine 'e' cannot be reached: Connection refused$"):
            await post(upstream)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('10.0.0.5', 8000)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("Multiple exceptions: [Errno 111] …10.0.0.5…"), "none of its addresses accepts a connection"),
        (ssl.SSLError(1, "certificate has expired"), "certificate has expired"),
    ],
)
def test_the_reason_does_not_tell_the_address(error: OSError, reason: str) -> None:
    assert reason_of(error) == reason


async def test_a_missing_socket_is_unavailable(tmp_path: Path) -> None:
    upstream = Upstream(f"unix:{tmp_path}/none.sock")
    with pytest.raises(EngineUnavailable):
        await post(upstream)


async def test_a_request_may_have_less_time_to_connect_than_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        upstream = Upstream(f"https://127.0.0.1:{mute.getsockname()[1]}", label="engine 'e'", connect_timeout_s=60)
        with pytest.raises(ConnectTimeout, match=r"did not accept a connection within 0\.05 s") as late:
            async with upstream.post("/", b"", connect_s=0.05):
                pass
        assert (late.value.within_s, late.value.code) == (0.05, "engine_unavailable")
        await upstream.aclose()


async def test_a_peer_that_does_not_shake_hands_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        upstream = Upstream(f"https://127.0.0.1:{mute.getsockname()[1]}", label="engine 'e'", connect_timeout_s=0.05)
        with pytest.raises(EngineUnavailable, match=r"engine 'e' did not accept a connection within 0\.05 s"):
            await post(upstream)
        assert upstream.open_connections == 0


@pytest.mark.parametrize(
    "reply",
    [Raw(then="stall"), Raw(pieces=[OK[:9]] * 1, then="stall"), Raw(pieces=[bytes([b]) for b in OK], pause_s=0.03)],
)
async def test_a_late_answer_is_a_timeout_even_if_its_head_trickles(reply: Raw) -> None:
    async with pair(first_byte_s=0.1) as (server, upstream):
        server.script("/x", reply)
        with pytest.raises(EngineTimeout, match="before its answer"):
            await post(upstream)
        await server.requests[0].wait_closed()


async def test_a_stream_that_pauses_too_long_is_a_timeout() -> None:
    async with pair(idle_s=0.08) as (server, upstream):
        server.script("/x", Stream(frames=[b"a", b"b"], cut_after=2, then="stall", pause_s=0.02))
        got: list[bytes] = []
        with pytest.raises(EngineTimeout, match="in its answer"):
            async with upstream.get("/x") as answer:
                await collect(answer, got)
        assert b"".join(got) == b"ab"
        await server.requests[0].wait_closed()


async def test_a_pause_without_length_is_a_timeout_and_not_the_end() -> None:
    async with pair(idle_s=0.05) as (server, upstream):
        server.script("/x", Raw(pieces=[b"HTTP/1.1 200 OK\r\n\r\nok"], then="stall"))
        with pytest.raises(EngineTimeout):
            await post(upstream)


async def test_a_steady_stream_may_last_longer_than_its_idle_time() -> None:
    async with pair(idle_s=0.06, first_byte_s=0.06) as (server, upstream):
        server.script("/x", Stream(frames=[b"a"] * 12, pause_s=0.02))
        assert await post(upstream) == b"a" * 12


async def test_a_body_over_the_limit_is_refused_and_the_connection_closed() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"a" * 100] * 100, then="stall"))
        with pytest.raises(EngineFailed, match="more than the 500 bytes"):
            async with upstream.get("/x") as answer:
                await answer.read(500)


# --- closing is cancelling --------------------------------------------------------------------------------------------

ENDLESS = Stream(frames=[b"token"] * 1000, pause_s=0.005)


async def test_leaving_early_closes_the_connection_at_once() -> None:
    async with pair() as (server, upstream):
        server.script("/x", ENDLESS)
        async with upstream.post("/x", b"{}") as answer:
            await answer.next()
        await server.requests[0].wait_closed()
        assert server.requests[0].closed_early
        assert (upstream.open_connections, upstream.idle_connections) == (0, 0)


@pytest.mark.parametrize("reply", [Raw(then="stall"), ENDLESS], ids=["before the head", "in the body"])
async def test_cancelling_closes_the_connection_at_once(reply: Any) -> None:
    async with pair() as (server, upstream):
        server.script("/x", reply)
        task = asyncio.create_task(post(upstream))
        received = await server.request()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await received.wait_closed()
        await server.wait(lambda: server.active == 0)
        assert upstream.open_connections == 0


async def test_cancelling_at_any_moment_leaks_nothing() -> None:
    chance = random.Random(7)
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"token"] * 3, pause_s=0.001))

        async def aborted() -> None:
            with anyio.move_on_after(chance.random() * 0.008):
                await post(upstream)

        for _ in range(12):
            async with asyncio.TaskGroup() as group:
                for _ in range(16):
                    group.create_task(aborted())
        await server.wait(lambda: server.active == 0)
        await server.wait(lambda: server.open == upstream.open_connections)
        assert upstream.open_connections == upstream.idle_connections
        assert await post(upstream) == b"token" * 3


async def test_aclose_ends_what_is_running_with_an_error() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[b"HTTP/1.1 200 OK\r\n\r\nok"], then="stall"))
        task = asyncio.create_task(post(upstream))
        await server.request()
        await upstream.aclose()
        with pytest.raises(EngineFailed, match="was closed"):
            await task
        with pytest.raises(EngineUnavailable, match="is closed"):
            await post(upstream)


async def test_a_reader_who_is_slow_stops_the_sender() -> None:
    async with pair() as (server, upstream):
        block = b"x" * 65536
        server.script(
            "/x", Raw(pieces=[b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (400 * len(block))], then="stall")
        )
        async with upstream.get("/x") as answer:
            transport = (await server.request()).transport
            for _ in range(400):
                transport.write(block)
            await anyio.sleep(0.1)  # time enough to send it all, were it not stopped
            connection = answer._entered
            assert connection.reader.buffered < 2_000_000
            assert transport.get_write_buffer_size() > 10_000_000
            assert len(await answer.read(10**8)) == 400 * len(block)
        assert upstream.idle_connections == 1


async def test_draining_waits_for_the_end_but_not_for_long() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Stream(frames=[b"last"], pause_s=0.02), Stream(frames=[b"last"], cut_after=4, then="stall"))
        for kept in (1, 0):
            async with upstream.get("/x") as answer:
                assert await answer.next() == b"last"
                await answer.drain(0.1)
            assert upstream.idle_connections == kept


# --- other kinds of connection ----------------------------------------------------------------------------------------


async def test_a_unix_socket_serves_as_well() -> None:
    async with pair(FakeUpstream(unix=True)) as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        assert [await post(upstream) for _ in range(3)] == [b"ok"] * 3
        assert (server.accepted, server.requests[0].headers["host"]) == (1, "localhost")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only itself vouches for, with its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=fake", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + path.with_suffix(".pem.crt").read_bytes())
    return path


def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


async def test_tls_serves_a_trusted_peer(certificate: Path) -> None:
    trust = ssl.create_default_context(cafile=str(certificate))
    async with pair(FakeUpstream(tls=tls_server(certificate)), tls=trust) as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        assert [await post(upstream) for _ in range(3)] == [b"ok"] * 3
        assert server.accepted == 1


async def test_tls_refuses_a_peer_that_nobody_vouches_for(certificate: Path) -> None:
    async with pair(FakeUpstream(tls=tls_server(certificate))) as (server, upstream):
        with pytest.raises(EngineUnavailable, match=r"cannot be reached.*certificate"):
            await post(upstream)
        assert server.requests == []


async def test_leaving_a_tls_stream_early_closes_it_at_once(certificate: Path) -> None:
    trust = ssl.create_default_context(cafile=str(certificate))
    async with pair(FakeUpstream(tls=tls_server(certificate)), tls=trust) as (server, upstream):
        server.script("/x", ENDLESS)
        async with upstream.post("/x", b"{}") as answer:
            await answer.next()
        await server.requests[0].wait_closed()
        assert server.requests[0].closed_early


async def test_an_answer_to_head_ends_at_its_head() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK[:-2]]))
        async with upstream.head("/x") as answer:
            assert (answer.status, await answer.read(10)) == (200, b"")


async def test_an_answer_that_comes_before_the_request_is_sent_is_read_and_the_connection_dropped() -> None:
    left = asyncio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        with contextlib.suppress(ConnectionError):
            while await reader.read(10_000):
                pass
        left.set()
        writer.close()

    async with await asyncio.start_server(hasty, "127.0.0.1", 0) as server:
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with upstream.post("/x", b"x" * 30_000_000) as answer:
            assert (answer.status, await answer.read(10)) == (413, b"big")
        assert upstream.idle_connections == 0
        async with asyncio.timeout(2):
            await left.wait()


async def test_lost_connections_leave_no_garbage_behind() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]), Raw(then="close"))
        await post(upstream)
        with pytest.raises(EngineFailed):
            await post(upstream)
    gc.collect()  # an unclosed transport would warn here, and a warning is an error
