"""What is written in one turn of the event loop goes at its end, in order, a few together."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import pytest

from drivetrain.outbox import CROWD, TOGETHER, Outbox

pytestmark = pytest.mark.anyio


class Transport(asyncio.Transport):
    """Tells a shared tape what it sends."""

    def __init__(self, name: str, tape: list[str]) -> None:
        super().__init__()
        self._name = name
        self._tape = tape
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._tape.append(f"{self._name} {bytes(data).decode()}")

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True


class Post(Protocol):
    def __call__(self, transport: Transport, data: bytes, under_way: int = CROWD) -> None: ...


def opened() -> tuple[Outbox, list[str], Callable[[str], Transport], Post]:
    outbox, tape, loop = Outbox(), list[str](), asyncio.get_running_loop()

    def post(transport: Transport, data: bytes, under_way: int = CROWD) -> None:
        outbox.post(loop, transport, data, under_way=under_way)

    return outbox, tape, lambda name: Transport(name, tape), post


async def test_what_is_posted_in_one_turn_goes_at_its_end_in_order() -> None:
    _, tape, transport, post = opened()
    a, b = transport("a"), transport("b")
    post(a, b"1")
    post(b, b"2")
    post(a, b"3")
    assert tape == []
    await asyncio.sleep(0)
    assert tape == ["a 1", "b 2", "a 3"]


async def test_where_few_are_under_way_it_goes_at_once_but_never_before_what_waits() -> None:
    _, tape, transport, post = opened()
    one = transport("a")
    post(one, b"1", under_way=CROWD - 1)
    assert tape == ["a 1"]
    post(one, b"2")
    post(one, b"3", under_way=1)
    assert tape == ["a 1"]
    await asyncio.sleep(0)
    assert tape == ["a 1", "a 2", "a 3"]


async def test_nobody_waits_for_more_than_a_few_others() -> None:
    _, tape, transport, post = opened()
    one = transport("a")
    for number in range(TOGETHER + 1):
        post(one, b"%d" % number)
    assert tape == [f"a {number}" for number in range(TOGETHER)]
    await asyncio.sleep(0)
    assert tape[-1] == f"a {TOGETHER}"


async def test_what_belongs_to_a_closed_transport_is_dropped_and_nothing_else() -> None:
    _, tape, transport, post = opened()
    gone, there = transport("gone"), transport("there")
    post(gone, b"1")
    post(there, b"2")
    gone.close()
    await asyncio.sleep(0)
    assert tape == ["there 2"]


async def test_it_is_known_whose_writes_have_not_gone() -> None:
    outbox, _, transport, post = opened()
    one, other = transport("a"), transport("b")
    post(one, b"1")
    assert (outbox.holds(one), outbox.holds(other)) == (True, False)
    outbox.flush()
    assert not outbox.holds(one)
