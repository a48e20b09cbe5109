"""What one replica has found out, the others need not: a board in a real Redis, and what becomes of it without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drivetrain.quota.board import Board, Found
from tests.services_redis import RedisServer
from tests.unit.quota.wirecut import way_to

pytestmark = pytest.mark.anyio
ENGINES = [f"engine-{number}" for number in range(600)]


@asynccontextmanager
async def board(url: str, *, deadline_s: float = 5.0) -> AsyncIterator[Board]:
    made = Board(url, deadline_s=deadline_s)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(made.run())
        try:
            yield made
        finally:
            running.cancel()


async def test_of_many_who_ask_one_has_the_turn_and_all_hear_what_it_found(redis_url: str) -> None:
    async with board(redis_url) as one, board(redis_url) as two:
        asked = await asyncio.gather(
            *[each.look("gpu", fresh_s=10, turn_s=10) for each in (one, two) for _ in range(5)]
        )
        assert sum(found.mine for found in asked if found is not None) == 1
        await two.post("gpu", "it is well", keep_s=10)
        heard = await one.look("gpu", fresh_s=10, turn_s=10)
        assert heard is not None
        assert (heard.text, heard.mine) == ("it is well", False)
        assert 0 <= heard.age_s < 10


async def test_what_is_too_old_is_found_out_anew_by_one(redis_url: str) -> None:
    async with board(redis_url) as one, board(redis_url) as two:
        await one.post("gpu", "it is well", keep_s=10)
        first = await one.look("gpu", fresh_s=0, turn_s=10)
        second = await two.look("gpu", fresh_s=0, turn_s=10)
        assert first is not None
        assert second is not None
        assert (first.text, first.mine, second.mine) == ("it is well", True, False)
        await one.post("gpu", "it is ill", keep_s=10)
        third = await two.look("gpu", fresh_s=0, turn_s=10)  # whose turn it was, it is no longer
        assert third is not None
        assert (third.text, third.mine) == ("it is ill", True)


async def test_the_turn_of_one_who_does_not_tell_passes_to_another(redis_url: str) -> None:
    async with board(redis_url) as one, board(redis_url) as two:
        assert await one.look("gpu", fresh_s=1, turn_s=0.05) == Found(text=None, age_s=-1, mine=True)
        async with asyncio.timeout(5):
            while not (found := await two.look("gpu", fresh_s=1, turn_s=10)) or not found.mine:
                await asyncio.sleep(0.01)


async def test_a_warning_reaches_all_but_the_one_who_gave_it_and_ends(redis_url: str) -> None:
    async with board(redis_url) as one, board(redis_url) as two:
        one.warn("engine-599", 0.3)
        async with asyncio.timeout(5):
            while await two.warned(ENGINES) != {"engine-599"}:
                await asyncio.sleep(0.01)
            assert await one.warned(ENGINES) == frozenset()
            while await two.warned(ENGINES):
                await asyncio.sleep(0.01)


async def test_a_connection_that_has_fallen_silent_is_given_up_for_another(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivetrain.quota.wire.SILENCE_S", 0.1)
    async with way_to(redis_server.port) as way, board(redis_url) as two, board(way.url, deadline_s=0.05) as one:
        await two.post("gpu", "it is well", keep_s=60)
        await hears(one, "it is well")
        way.delay_s = 1e6  # as packets that are lost: what is connected stays silent for ever
        assert await one.look("gpu", fresh_s=60, turn_s=1) is None
        way.delay_s = 0.0
        await hears(one, "it is well")


async def hears(one: Board, text: str) -> None:
    async with asyncio.timeout(30):
        while (found := await one.look("gpu", fresh_s=60, turn_s=1)) is None or found.text != text:
            await asyncio.sleep(0.01)


async def test_while_it_is_away_nobody_has_said_anything(redis_server: RedisServer) -> None:
    away = Board("redis://127.0.0.1:1", deadline_s=0.02)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(away.run())
        assert await away.look("gpu", fresh_s=1, turn_s=1) is None
        await away.post("gpu", "it is well", keep_s=1)
        away.warn("gpu", 1)
        assert await away.warned(["gpu"]) == frozenset()
        running.cancel()
