"""Log-probabilities of the chosen tokens alone, which a llama-server cannot give."""

import json
from typing import Any

import pytest

from drivetrain.dialects import Surface
from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.engines import EngineSettings
from drivetrain.engines.contract import collect
from drivetrain.engines.openai import OpenAI
from drivetrain.types import LogprobDelta, TextDelta, TokenLogprob
from tests.fakes import FakeUpstream, Stream
from tests.fakes.host import NoHost
from tests.fakes.replies import sse

TOKEN = {"token": "a", "logprob": -0.5, "bytes": [97]}
OTHERS = {"content": [TOKEN | {"top_logprobs": [TOKEN, TOKEN | {"logprob": -2}]}]}
SAID = {"index": 0, "delta": {"content": "a"}, "logprobs": OTHERS, "finish_reason": None}
WRITTEN = {"index": 0, "text": "a", "logprobs": OTHERS, "finish_reason": None}
END = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
ASK = [{"role": "user", "content": "x"}]


async def answered(surface: Surface, kind: str, choice: dict[str, Any], **asked: Any) -> tuple[Any, list[Any]]:
    """The body that an engine of this kind got, and the events of its answer."""
    body = json.dumps({"model": "m", "stream": True, **asked}).encode()
    async with FakeUpstream() as upstream:
        frames = [{"id": "e", "created": 1, "model": "m", "choices": [choice]} for choice in (choice, END)]
        upstream.script("/v1" + surface.path, Stream(frames=sse(*frames)))
        engine = OpenAI("box", EngineSettings(kind=kind, url=upstream.url), NoHost())
        events = await collect(engine, surface.decode_request(body))
        await engine.aclose()
        return upstream.requests[0].json, [event for event in events if isinstance(event, TextDelta | LogprobDelta)]


@pytest.mark.parametrize("asked", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 0}])
async def test_a_llama_server_is_asked_for_one_alternative_which_the_caller_does_not_get(asked: dict[str, Any]) -> None:
    sent, (text, told) = await answered(CHAT, "llama-server", SAID, messages=ASK, **asked)
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 1)
    assert told.tokens == (TokenLogprob(token="a", logprob=-0.5, bytes=(97,)),)
    frame = json.loads(text.raw.removeprefix(b"data: "))
    assert frame["choices"][0]["logprobs"] == {"refusal": None, "content": [TOKEN | {"top_logprobs": []}]}
    assert (frame["id"], told.raw) == ("e", b"")


async def test_a_text_may_be_the_name_of_the_member() -> None:
    said = {"index": 0, "delta": {"content": "top_logprobs"}, "finish_reason": None}
    _, (text,) = await answered(CHAT, "llama-server", said, messages=ASK, logprobs=True)
    assert text.raw == sse({"id": "e", "created": 1, "model": "m", "choices": [said]})[0]


async def test_of_a_bare_completion_too() -> None:
    sent, (_, told) = await answered(COMPLETIONS, "llama-server", WRITTEN, prompt="p", logprobs=0)
    assert sent["logprobs"] == 1
    assert told.tokens == (TokenLogprob(token="a", logprob=-0.5, bytes=(97,)),)


async def test_alternatives_that_were_asked_for_come() -> None:
    sent, (_, told) = await answered(CHAT, "llama-server", SAID, messages=ASK, logprobs=True, top_logprobs=2)
    assert (sent["top_logprobs"], len(told.tokens[0].top)) == (2, 2)


async def test_other_kinds_are_told_in_the_callers_own_words() -> None:
    sent, _ = await answered(CHAT, "vllm", SAID, messages=ASK, logprobs=True, top_logprobs=0)
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 0)
    sent, _ = await answered(COMPLETIONS, "vllm", WRITTEN, prompt="p", logprobs=0)
    assert sent["logprobs"] == 0
