"""Which connections the upstream client uses again, how long it keeps them, and what it does with a stale one."""

from typing import Any

import anyio
import pytest

from drivetrain.errors import EngineFailed
from tests.fakes import FakeUpstream, Raw, Whole
from tests.fakes.pair import pair, post

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

# --- stale connections ------------------------------------------------------------------------------------------------


async def test_a_connection_closed_while_idle_is_replaced_without_a_word() -> None:
    async with pair(FakeUpstream(idle_close_s=0.01)) as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        for _ in range(3):
            assert await post(upstream) == b"ok"
            await server.wait(lambda: server.open == 0)
        assert server.accepted == 3


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_reused_connection_that_closes_before_any_byte_is_tried_once_more(then: Any) -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]), Raw(then=then), Raw(pieces=[OK]))
        assert [await post(upstream) for _ in range(2)] == [b"ok", b"ok"]
        assert [received.connection for received in server.requests] == [1, 1, 2]


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_the_second_try_is_the_last(then: Any) -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]), Raw(then=then))
        await post(upstream)
        with pytest.raises(EngineFailed, match="engine 'e' closed the connection before answering"):
            await post(upstream)
        assert len(server.requests) == 3


async def test_a_fresh_connection_that_closes_is_not_tried_again() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(then="close"))
        with pytest.raises(EngineFailed):
            await post(upstream)
        assert len(server.requests) == 1


async def test_a_reused_connection_that_breaks_off_is_not_tried_again() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]), Raw(pieces=[OK[:20]], then="close"))
        await post(upstream)
        with pytest.raises(EngineFailed, match="broke off its answer"):
            await post(upstream)
        assert len(server.requests) == 2


async def test_a_reused_connection_that_closes_late_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.engines._http.connection.STALE_WITHIN_S", 0.0)
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]), Raw(then="close"))
        await post(upstream)
        with pytest.raises(EngineFailed):
            await post(upstream)
        assert len(server.requests) == 2


# --- what may be reused -----------------------------------------------------------------------------------------------

SPOILT = {
    "extra bytes": Raw(pieces=[OK + b"x"]),
    "a second answer": Raw(pieces=[OK + OK]),
    "connection: close": Whole(body=b"ok", headers={"connection": "close"}),
    "an old version": Raw(pieces=[b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"]),
    "no length": Raw(pieces=[b"HTTP/1.1 200 OK\r\n\r\nok"], then="close"),
    "kept too shortly": Whole(body=b"ok", headers={"keep-alive": "timeout=1"}),
}


@pytest.mark.parametrize("reply", SPOILT.values(), ids=SPOILT)
async def test_only_a_clean_connection_is_used_again(reply: Any) -> None:
    async with pair() as (server, upstream):
        server.script("/x", reply)
        assert [await post(upstream) for _ in range(3)] == [b"ok"] * 3
        assert [received.connection for received in server.requests] == [1, 2, 3]


async def test_a_peer_that_closes_its_half_after_the_answer_is_asked_on_another_connection() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK], then="half_close"))
        assert [await post(upstream) for _ in range(3)] == [b"ok"] * 3
        assert server.accepted == 3


async def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        await post(upstream)
        server.requests[0].transport.write(OK)
        await server.requests[0].wait_closed()
        assert await post(upstream) == b"ok"
        assert server.accepted == 2


async def test_an_answer_that_is_complete_but_unread_leaves_the_connection_usable() -> None:
    async with pair() as (server, upstream):
        server.script("/x", Raw(pieces=[OK]))
        for _ in range(2):
            async with upstream.post("/x", b"{}") as answer:
                assert answer.status == 200
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("options", "header"), [({"keep_idle_s": 0.05}, {}), ({"keep_idle_s": 9}, {"keep-alive": "timeout=1"})]
)
async def test_idle_connections_are_closed_in_time(options: Any, header: dict[str, str]) -> None:
    async with pair(**options) as (server, upstream):
        server.script("/x", Whole(body=b"ok", headers=header))
        await post(upstream)
        await server.requests[0].wait_closed()
        assert (upstream.open_connections, upstream.idle_connections) == (0, 0)


async def test_the_peers_hint_outweighs_the_default() -> None:
    async with pair(keep_idle_s=0.01) as (server, upstream):
        server.script("/x", Whole(body=b"ok", headers={"keep-alive": "max=100, timeout=5"}))
        await post(upstream)
        await anyio.sleep(0.05)  # longer than the default keeps it
        await post(upstream)
        assert server.accepted == 1
