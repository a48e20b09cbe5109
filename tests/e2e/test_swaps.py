"""Two models and room for one, in real worker processes: nobody is cut off, nobody waits for ever, swaps are few."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from drivetrain.engines import EngineSettings
from drivetrain.engines.llamacpp import LlamaCpp
from drivetrain.errors import LoadFailed
from drivetrain.residency import Terms
from drivetrain.types import Event, Message, ModelSpec, Progress, Request, Sampling, Text, fold
from tests.e2e.servers import small_model
from tests.fakes.host import ShelfHost

pytestmark = pytest.mark.anyio
SMALL = {"num_ctx": 512, "n_parallel": 2, "cache_ram": 0}
A, B = (ModelSpec(id=name, weights=str(small_model()), settings=SMALL) for name in ("a", "b"))
LONG = {"2": -100.0}  # the token that ends an answer never comes


def ask(model: str, max_tokens: int = 8) -> Request:
    message = Message(role="user", content=(Text(text="Tell me about the sea."),))
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, logit_bias=LONG)
    return Request(model=model, messages=(message,), sampling=sampling, stream=True)


async def answered(engine: LlamaCpp, request: Request) -> list[Event]:
    async with aclosing(engine.generate(request)) as batches:
        return [event async for events in batches for event in events]


def tokens(events: list[Event]) -> int:
    return fold(events).usage.completion


@asynccontextmanager
async def engine_on(host: ShelfHost) -> AsyncIterator[LlamaCpp]:
    engine = LlamaCpp("local", EngineSettings(kind="llamacpp"), host)
    try:
        yield engine
    finally:
        await engine.aclose()


def loads(host: ShelfHost) -> int:
    return sum(notice.name == "model.ready" for notice in host.told)


async def test_two_callers_of_two_models_do_not_swap_them_with_every_request(tmp_path: Path) -> None:
    least_s, turns = 4.0, 4
    host = ShelfHost(tmp_path, A, B, max_loaded=1, least_resident_s=least_s, patience_s=0.0)

    async def caller(engine: LlamaCpp, model: str) -> None:
        for _ in range(turns):
            assert tokens(await answered(engine, ask(model, 4))) == 4  # never cut off
            await asyncio.sleep(0.1)  # he thinks; the model is idle, and the other one is wanted

    async with engine_on(host) as engine:
        async with asyncio.TaskGroup() as group:
            for model in "ab":
                group.create_task(caller(engine, model))
        stays = stays_s(host)  # the one that is in memory at the end has not been pushed out
    assert min(stays, default=least_s) >= least_s


def stays_s(host: ShelfHost) -> list[float]:
    """How long each model that was unloaded had been in memory, in order."""
    since: dict[str | None, float] = {}
    stays = []
    for notice in host.told:
        if notice.name == "model.ready":
            since[notice.model] = notice.at_s
        elif notice.name == "model.unloading":
            stays.append(notice.at_s - since[notice.model])
    return stays


async def test_a_model_that_is_always_busy_makes_room_and_its_running_answer_is_whole(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, A, B, max_loaded=1, least_resident_s=0.0, patience_s=0.3)
    async with engine_on(host) as engine:
        await engine.load("a")
        done = asyncio.Event()
        behind: list[int] = []

        async def keep_busy() -> None:
            while not done.is_set():
                behind.append(tokens(await answered(engine, ask("a", 16))))

        async with asyncio.TaskGroup() as group:
            for _ in range(2):  # there is never a moment without a request
                group.create_task(keep_busy())
            events = await answered(engine, ask("b"))
            done.set()
    assert tokens(events) == 8
    assert set(behind) == {16}
    assert events[0] == Progress(stage="queued")  # b's caller heard that he was not forgotten
    assert host.names("b")[-3:] == ["model.ready", "model.unloading", "model.unloaded"]


async def test_a_model_that_nobody_waits_for_any_longer_pushes_nobody_out(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, A, B, max_loaded=1, least_resident_s=60.0)
    async with engine_on(host) as engine:
        await engine.load("a")
        batches = engine.generate(ask("b"))
        assert await anext(batches) == (Progress(stage="queued"),)
        await batches.aclose()
        async with asyncio.timeout(10):
            while "model.unloaded" not in host.names("b"):
                await asyncio.sleep(0.01)
        assert [loaded.model.id for loaded in await engine.loaded()] == ["a"]
        assert "model.failed" not in host.names("b")


async def test_a_pinned_model_outlives_its_time_and_the_wish_for_another(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, A, B, max_loaded=1, default_keep_alive_s=0.0, pins={"a"})
    async with engine_on(host) as engine:
        await engine.load("a", keep_alive_s=0)
        await answered(engine, ask("a"))
        [loaded] = await engine.loaded()
        assert (loaded.model.id, loaded.expires_s) == ("a", None)
        with pytest.raises(LoadFailed, match=r"'a' are pinned \(`residency.pin`\)"):
            await engine.load("b")
        assert tokens(await answered(engine, ask("a"))) == 8


async def test_options_that_differ_do_not_push_out_a_model_that_has_just_come(tmp_path: Path) -> None:
    host = ShelfHost(tmp_path, A, least_resident_s=60.0)
    async with engine_on(host) as engine:
        await engine.load("a")
        batches = engine.generate(replace(ask("a"), options={"num_ctx": 256}))
        assert await anext(batches) == (Progress(stage="queued"),)
        assert tokens(await answered(engine, ask("a"))) == 8  # while the other one waits
        host.terms = Terms()
        rest = [event async for events in batches for event in events]
        assert tokens(rest) == 8
        assert [loaded.context_length for loaded in await engine.loaded()] == [256]
        assert loads(host) == 2
