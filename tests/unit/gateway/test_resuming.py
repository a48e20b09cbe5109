"""An answer that breaks off is continued by another engine: what that one is asked, and what the caller sees."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Policy
from drivetrain.config.schema import Retries as Rule
from drivetrain.dialects import openai
from drivetrain.errors import BadRequest, EngineFailed
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.resume import thread
from drivetrain.types import (
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    Grammar,
    JsonObject,
    Message,
    Opaque,
    ReasoningDelta,
    Request,
    Sampling,
    Text,
    TextDelta,
    Tool,
    Usage,
    fold,
)
from tests.fakes.engine import ROLE, ScriptedEngine, Step, ask, gateway_over

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
RESUMES = Policy(retries=Rule(resume=True))
BROKE = EngineFailed("a broke off")
END = (ChoiceFinished(reason="stop"), Finished(usage=Usage(prompt=20, cached=8, completion=3)))


class LlamaServer(ScriptedEngine):
    kind = "llama-server"


def says(*words: str) -> list[Step]:
    return [[TextDelta(text=word, raw=word.encode())] for word in words]


BEGUN: tuple[Step, ...] = ([ROLE], *says("The answer ", "to all ", "of this "))
REST: tuple[Step, ...] = ([ROLE], *says("is ", "42."), END)


async def collect(gateway: Gateway, request: Request) -> list[Event]:
    async with aclosing(gateway.generate(request, CALL)) as batches:
        return [event async for events in batches for event in events]


def pair(rest: Sequence[Step] = REST, *, begun: Sequence[Step] = (*BEGUN, BROKE)) -> tuple[Any, ...]:
    """A gateway over an engine that breaks off and one that says the rest."""
    first, second = LlamaServer("a", begun), LlamaServer("b", rest)
    return *gateway_over(first, second, policy=RESUMES), first, second


async def test_the_caller_sees_one_answer_with_one_beginning_and_one_end() -> None:
    gateway, notebook, _, _ = pair()
    events = await collect(gateway, ask())
    assert fold(events).choices[0].text == "The answer to all of this is 42."
    assert [type(event) for event in events].count(Opaque) == 1
    assert [type(event) for event in events].count(Finished) == 1
    assert [(row.engine, row.outcome, row.final) for row in notebook.attempts] == [
        ("a", "absorbed", False),
        ("b", "ok", True),
    ]


async def test_the_other_engine_is_told_how_far_the_answer_came_and_how_much_is_left() -> None:
    gateway, _, _, second = pair()
    await collect(gateway, replace(ask(), sampling=Sampling(max_tokens=10)))
    asked: Request = second.asked[0]
    assert asked.messages[-1] == Message(role="assistant", content=(Text(text="The answer to all of this"),))
    assert (asked.resumes, asked.sampling.max_tokens) == (True, 7)


async def test_what_an_engine_says_again_is_not_shown_again() -> None:
    gateway, _, _, _ = pair([[ROLE], *says("The answer to all of this is", " 42."), END])
    assert fold(await collect(gateway, ask())).choices[0].text == "The answer to all of this is 42."


@pytest.mark.parametrize("rest", [("is 42.",), (" is 42.",), (" ", "is 42.")])
async def test_white_space_at_the_seam_is_there_once(rest: tuple[str, ...]) -> None:
    gateway, _, _, _ = pair([*says(*rest), END])
    assert fold(await collect(gateway, ask())).choices[0].text == "The answer to all of this is 42."


async def test_usage_is_that_of_the_whole_answer() -> None:
    gateway, _, _, _ = pair()
    usage = fold(await collect(gateway, ask())).usage
    assert (usage.prompt, usage.cached, usage.completion, usage.estimated) == (17, 8, 6, True)


async def test_frames_of_the_second_engine_are_encoded_anew() -> None:
    gateway, _, _, _ = pair()
    events = await collect(gateway, ask())
    assert [event.raw for event in events] == [b"role", b"The answer ", b"to all ", b"of this ", None, None, None, None]


async def test_what_only_an_engine_understands_is_said_again_but_not_the_limit_that_is_used_up() -> None:
    body = b'{"model":"chat","messages":[{"role":"user","content":"Hi","x":1}],"max_tokens":10,"thinking":false}'
    gateway, _, _, second = pair()
    await collect(gateway, openai.CHAT.decode_request(body))
    sent = msgspec.json.decode(openai.CHAT.encode_request(second.asked[0]))
    assert sent["messages"] == [
        {"role": "user", "content": "Hi", "x": 1},
        {"role": "assistant", "content": "The answer to all of this"},
    ]
    assert (sent["thinking"], sent["max_tokens"]) == (False, 7)


async def test_an_answer_may_break_off_twice() -> None:
    engines = (
        LlamaServer("a", (*BEGUN, BROKE)),
        LlamaServer("b", (*says("is "), EngineFailed("b broke off"))),
        LlamaServer("c", (*says("42."), END)),
    )
    gateway, notebook = gateway_over(*engines, policy=RESUMES)
    assert fold(await collect(gateway, ask())).choices[0].text == "The answer to all of this is 42."
    assert engines[2].asked[0].messages[-1].text == "The answer to all of this is"
    assert [row.outcome for row in notebook.attempts] == ["absorbed", "absorbed", "ok"]


async def test_a_raw_text_is_continued_by_any_engine() -> None:
    engines = ScriptedEngine("a", (*says("b"), BROKE)), ScriptedEngine("b", (*says("c"), END))
    gateway, _ = gateway_over(*engines, policy=RESUMES)
    raw = Request(model="chat", completion=Completion(prompts=("a",)), stream=True)
    assert fold(await collect(gateway, raw)).choices[0].text == "bc"
    completion = engines[1].asked[0].completion
    assert completion is not None
    assert completion.prompts == ("ab",)


async def test_an_engine_that_cannot_go_on_with_a_chat_is_not_asked() -> None:
    first, second = LlamaServer("a", (*BEGUN, BROKE)), ScriptedEngine("b", REST)
    gateway, notebook = gateway_over(
        first, second, policy=Policy(retries=Rule(resume=True, max=1, on=("engine_failed",)))
    )
    gateway.pool.members["a"].not_before_s = 0.0
    gateway.retries.draw = lambda: 0.0
    with pytest.raises(EngineFailed):
        await collect(gateway, ask())
    assert second.asked == []
    assert [row.engine for row in notebook.attempts] == ["a", "a"]  # itself once more, after a pause


async def test_without_the_policy_an_answer_that_breaks_off_ends_there() -> None:
    first, second = LlamaServer("a", (*BEGUN, BROKE)), LlamaServer("b", REST)
    gateway, _ = gateway_over(first, second)
    with pytest.raises(EngineFailed, match="a broke off"):
        await collect(gateway, ask())
    assert second.asked == []


async def test_if_the_rest_is_refused_the_caller_is_told_what_broke_off() -> None:
    gateway, notebook, _, _ = pair([BadRequest("no prefill with thinking")])
    with pytest.raises(EngineFailed, match="a broke off"):
        await collect(gateway, ask())
    assert [row.outcome for row in notebook.attempts] == ["absorbed", "rejected"]


@pytest.mark.parametrize(
    "begun",
    [
        says("Hi"),  # too little to tell a repetition from a continuation
        [[ReasoningDelta(text="I wonder what the answer is")]],
        [*says("The answer to all of this"), [ChoiceFinished(reason="stop")]],
    ],
    ids=["short", "reasoning", "finished"],
)
async def test_what_cannot_be_continued_soundly_is_not(begun: list[Step]) -> None:
    gateway, _, _, second = pair(begun=(*begun, BROKE))
    with pytest.raises(EngineFailed, match="a broke off"):
        await collect(gateway, ask())
    assert second.asked == []


@pytest.mark.parametrize(
    "members",
    [
        {"tools": (Tool(name="clock"),)},
        {"output": JsonObject()},
        {"output": Grammar(text='root ::= "a"')},
        {"sampling": Sampling(n=2)},
        {"sampling": Sampling(logprobs=True)},
        {"messages": (Message(role="assistant", content=(Text(text="I say"),)),)},
        {"messages": (), "completion": Completion(prompts=("a", "b"))},
        {"messages": (), "completion": Completion(prompts=((1, 2),))},
        {"messages": (), "completion": Completion(prompts=("a",), suffix="b")},
        {"messages": (), "completion": Completion(prompts=("a",), echo=True)},
    ],
)
def test_requests_whose_answers_have_a_form_are_never_resumed(members: dict[str, Any]) -> None:
    assert thread(replace(ask(), **members), RESUMES) is None
