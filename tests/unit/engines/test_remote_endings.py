"""Streams that end in an unusual way: what was told is told at once, and a complete answer is one."""

from contextlib import aclosing
from typing import Any

import pytest

from drivetrain.engines import EngineSettings, _remote
from drivetrain.engines.openai import OpenAI
from drivetrain.errors import EngineFailed
from drivetrain.types import ChoiceFinished, Event, Finished, Request, Sampling, TextDelta, Usage
from tests.fakes import FakeUpstream, Stream
from tests.fakes.host import NoHost
from tests.fakes.manners import MODEL
from tests.fakes.replies import sse

pytestmark = pytest.mark.anyio
TEXT = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
BOOM = {"error": {"message": "boom"}}
BEGINNING = b'data: {"choices":[],"usage":{"prom'


async def told(*frames: bytes, then: Any, n: int = 1) -> tuple[list[Event], str]:
    """The events of an answer, and the error that ended it. After the frames, `then` comes without an end."""
    size, events = sum(map(len, frames)), list[Event]()
    async with FakeUpstream() as upstream:
        upstream.script("/v1/chat/completions", Stream(frames=frames, cut_after=size, then=then))
        engine = OpenAI("a", EngineSettings(kind="openai", url=upstream.url), NoHost())
        try:
            async with aclosing(engine.generate(Request(model=MODEL, stream=True, sampling=Sampling(n=n)))) as batches:
                async for batch in batches:
                    events += batch
        except EngineFailed as error:
            return events, error.message
        finally:
            await engine.aclose()
    return events, ""


@pytest.mark.parametrize("then", ["stall", "reset"])
async def test_an_error_in_the_same_bytes_as_content_is_raised_at_once(then: Any) -> None:
    """Not when the engine has been silent for too long, or its connection broke."""
    assert await told(b"".join(sse(TEXT, BOOM)), then=then) == ([TextDelta(text="a")], "boom")


COMPLETE = [TextDelta(text="a"), ChoiceFinished(reason="stop"), Finished(usage=Usage(completion=1, estimated=True))]


@pytest.mark.parametrize("rest", [b"", BEGINNING])
@pytest.mark.parametrize("then", ["stall", "reset", "close"])
async def test_an_answer_whose_choices_have_finished_is_complete_without_its_end(
    rest: bytes, then: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_remote, "ENDING_S", 0.05)
    assert await told(*sse(TEXT, FINISH), *[rest][: len(rest)], then=then) == (COMPLETE, "")


async def test_accounts_that_follow_the_finish_are_waited_for() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    events, error = await told(*sse(TEXT, FINISH, usage, "[DONE]"), then="reset")
    assert (events[-1], error) == (Finished(usage=Usage(prompt=3, completion=2)), "")


@pytest.mark.parametrize("frames", [(TEXT, FINISH, BOOM), (TEXT, BOOM)])
async def test_an_error_that_the_engine_tells_stays_one(frames: Any) -> None:
    assert (await told(*sse(*frames), then="stall"))[1] == "boom"


async def test_an_answer_that_lacks_a_choice_is_not_complete() -> None:
    events, error = await told(*sse(TEXT, FINISH), then="reset", n=2)
    assert events == COMPLETE[:2]
    assert error != ""
