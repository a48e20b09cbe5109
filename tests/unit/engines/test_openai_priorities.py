"""What an engine with a queue by priorities is told of a request's class."""

import pytest
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.engines import EngineSettings
from drivetrain.engines.contract import bare, chat, collect
from drivetrain.engines.openai import OpenAI
from drivetrain.errors import BadRequest
from drivetrain.types import Request, Source
from tests.fakes import FakeUpstream
from tests.fakes.host import NoHost
from tests.fakes.manners import MODEL

BULK, DEFAULT, INTERACTIVE, SYSTEM = range(4)


async def told(kind: str, *requests: Request, priorities: bool = True) -> list[int | None]:
    """The priority in the body of each request."""
    async with FakeUpstream() as upstream:
        settings = EngineSettings(kind=kind, url=upstream.url, options={"priorities": priorities})
        engine = OpenAI("gpu-a", settings, NoHost())
        for request in requests:
            await collect(engine, request)
        await engine.aclose()
        return [received.json.get("priority") for received in upstream.requests]


def of_class(urgency: int) -> Request:
    return replace(chat(MODEL), urgency=urgency)


@pytest.mark.parametrize(("kind", "expected"), [("vllm", [3, 2, 1, 0]), ("sglang", [0, 1, 2, 3])])
async def test_each_kind_is_told_in_its_own_numbers(kind: str, expected: list[int]) -> None:
    assert await told(kind, *map(of_class, (BULK, DEFAULT, INTERACTIVE, SYSTEM))) == expected


async def test_bare_completions_have_a_class_too() -> None:
    assert await told("vllm", replace(bare(MODEL), urgency=INTERACTIVE)) == [1]


async def test_nothing_is_told_unless_the_engine_was_started_for_it() -> None:
    assert await told("vllm", of_class(SYSTEM), priorities=False) == [None]


async def test_a_priority_in_the_callers_own_words_gives_way_to_its_class() -> None:
    fields = {"model": Raw(b'"m"'), "messages": Raw(b'[{"role":"user","content":"Hi"}]'), "priority": Raw(b"-100")}
    request = replace(chat(MODEL), source=Source(dialect="openai.chat", fields=fields), urgency=BULK)
    assert await told("vllm", request) == [3]


def test_a_kind_that_has_no_priorities_says_so() -> None:
    settings = EngineSettings(kind="openai", url="http://box", options={"priorities": True})
    with pytest.raises(BadRequest, match=r"engines\.gpu-a\.priorities: kind 'openai' has none"):
        OpenAI("gpu-a", settings, NoHost())
