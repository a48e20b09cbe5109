"""An answer that is given whole: nothing of it goes to the caller before its end, so an engine that breaks off in the
middle of it is failed over as one that had not begun, and nothing of what it said is left."""

from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Cache, Hedge, Policy, Retries, Timeouts
from drivetrain.errors import BadRequest, EngineError, EngineFailed, EngineTimeout, EngineUnavailable
from drivetrain.gateway import Call, Gateway, Receipt
from drivetrain.gateway.attempt import GATHER_S
from drivetrain.types import ChoiceFinished, Finished, Progress, ReasoningDelta, Request, Response, TextDelta, fold
from tests.fakes.engine import ANSWER, END, HELLO, ROLE, ScriptedEngine, ask, gateway_over, leaving

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
LOST = TextDelta(text="The answer to all of this")
BROKE = EngineFailed("a broke off")


async def answer(gateway: Gateway, request: Request | None = None, call: Call = CALL) -> Response:
    async with aclosing(gateway.generate(request or ask(stream=False), call)) as batches:
        return fold([event async for events in batches for event in events])


async def text(gateway: Gateway, request: Request | None = None, call: Call = CALL) -> str:
    return (await answer(gateway, request, call)).choices[0].text


@pytest.mark.parametrize("dialect", ["openai.chat", "openai.completions", "ollama.chat", "ollama.generate"])
@pytest.mark.parametrize("error", [EngineFailed("a broke off"), EngineUnavailable("a left"), EngineTimeout("idle")])
async def test_the_next_engine_begins_anew_after_one_that_broke_off(error: EngineError, dialect: str) -> None:
    first, second = ScriptedEngine("a", ([ROLE], [LOST], error)), ScriptedEngine("b")
    gateway, notebook = gateway_over(first, second)
    receipt = Receipt()
    told = await answer(gateway, call=replace(CALL, dialect=dialect, receipt=receipt))
    assert (told.choices[0].text, told.usage.prompt, told.usage.completion) == ("Hello world", 5, 2)
    assert (receipt.engine, receipt.attempts) == ("b", 2)
    assert [(row.engine, row.outcome, row.completion_tokens, row.final) for row in notebook.attempts] == [
        ("a", "absorbed", 1, False),
        ("b", "ok", 2, True),
    ]


async def test_reasoning_and_an_end_without_its_usage_are_thrown_away_too() -> None:
    begun = ([ReasoningDelta(text="Hm")], [LOST], [ChoiceFinished(reason="length")], BROKE)
    gateway, _ = gateway_over(ScriptedEngine("a", begun), ScriptedEngine("b"))
    (choice,) = (await answer(gateway)).choices
    assert (choice.text, choice.reasoning, choice.reason) == ("Hello world", "", "stop")


async def test_an_engine_that_goes_silent_after_its_first_token_is_left_for_the_next() -> None:
    policy = Policy(timeouts=Timeouts(idle_s=0.05))
    gateway, _ = gateway_over(ScriptedEngine("a", ([LOST], 60.0)), ScriptedEngine("b"), policy=policy)
    assert await text(gateway) == "Hello world"


async def test_a_lone_engine_is_asked_once_more() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a", ([LOST], BROKE), ANSWER))
    assert await text(gateway) == "Hello world"
    assert [row.outcome for row in notebook.attempts] == ["absorbed", "ok"]


async def test_the_number_of_attempts_and_their_budget_hold() -> None:
    engines = [ScriptedEngine(name, ([LOST], BROKE)) for name in "abcd"]
    gateway, _ = gateway_over(*engines, policy=Policy(retries=Retries(max=1)))
    with pytest.raises(EngineError, match="a broke off"):
        await answer(gateway)
    assert [len(engine.asked) for engine in engines] == [1, 1, 0, 0]
    gateway, _ = gateway_over(*engines, policy=Policy(retries=Retries(least=0, budget_percent=0)))
    with pytest.raises(EngineError, match="too many of this model's requests fail"):
        await answer(gateway)
    assert [len(engine.asked) for engine in engines] == [2, 1, 0, 0]


async def test_a_stream_that_has_begun_is_not_begun_anew() -> None:
    second = ScriptedEngine("b")
    gateway, _ = gateway_over(ScriptedEngine("a", ([LOST], BROKE)), second)
    with pytest.raises(EngineFailed, match="a broke off"):
        await answer(gateway, ask())
    assert second.asked == []


async def test_a_mistake_of_the_caller_that_the_next_engine_finds_is_told() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", ([LOST], BROKE)), ScriptedEngine("b", (BadRequest("no"),)))
    with pytest.raises(BadRequest, match="no"):
        await answer(gateway)


async def test_a_winner_of_a_race_that_breaks_off_is_followed_too() -> None:
    hedge = Hedge(percent=100, least_s=0.01, most_s=0.01)
    slow, quick = ScriptedEngine("slow", (60.0,)), ScriptedEngine("quick", ([LOST], BROKE), ANSWER)
    gateway, notebook = gateway_over(slow, quick, policy=Policy(hedge=hedge))
    assert await text(gateway) == "Hello world"
    assert sorted((row.position, row.engine, row.outcome) for row in notebook.attempts)[:2] == [
        (1, "slow", "cancelled"),
        (2, "quick", "absorbed"),
    ]


# --- where answers are resumed ----------------------------------------------------------------------------------------

RESUMES = Policy(retries=Retries(resume=True))


def servers(kind: str, *scripts: Any) -> list[ScriptedEngine]:
    engines = [ScriptedEngine(name, script) for name, script in zip("abc", scripts, strict=False)]
    for engine in engines:
        engine.kind = kind
    return engines


async def test_where_the_policy_says_so_the_rest_is_asked_for() -> None:
    first, second = servers("vllm", ([LOST], BROKE), ([TextDelta(text=" is 42.")], END))
    gateway, _ = gateway_over(first, second, policy=RESUMES)
    assert await text(gateway) == "The answer to all of this is 42."
    assert second.asked[0].resumes


async def test_where_the_rest_cannot_be_asked_for_the_answer_is_begun_anew() -> None:
    first, second = servers("scripted", ([LOST], BROKE), ANSWER)
    gateway, _ = gateway_over(first, second, policy=RESUMES)
    assert await text(gateway) == "Hello world"
    assert not second.asked[0].resumes


async def test_who_may_not_be_asked_for_the_rest_is_no_engine_that_failed() -> None:
    first, second = servers("vllm", ([LOST], BROKE), ANSWER)
    rule = Retries(resume=True, least=0, budget_percent=0)
    gateway, _ = gateway_over(first, second, policy=Policy(retries=rule))
    with pytest.raises(EngineFailed, match=r"^a broke off; no other attempt was made, for too many"):
        await text(gateway)
    assert second.asked == []


async def test_what_was_begun_anew_is_resumed_from_there() -> None:
    begun = ([HELLO], [ReasoningDelta(text="Hm")], BROKE)
    engines = servers("vllm", begun, ([LOST], BROKE), ([TextDelta(text=" is 42.")], END))
    gateway, _ = gateway_over(*engines, policy=RESUMES)
    told = await answer(gateway)
    assert (told.choices[0].text, told.choices[0].reasoning) == ("The answer to all of this is 42.", "")
    assert [engine.asked[0].resumes for engine in engines] == [False, False, True]


# --- what is kept, and who leaves -------------------------------------------------------------------------------------


async def test_a_kept_answer_has_nothing_of_the_attempt_that_broke_off() -> None:
    first = ScriptedEngine("a", ([LOST], BROKE))
    gateway, notebook = gateway_over(first, ScriptedEngine("b"), policy=Policy(cache=Cache(ttl_s=60, answers="all")))
    assert [await text(gateway), await text(gateway)] == ["Hello world", "Hello world"]
    assert [row.why for row in notebook.attempts][2:] == ["cache"]


async def test_a_caller_who_leaves_in_the_middle_ends_the_engines_work() -> None:
    engine = ScriptedEngine("a", ([Progress(stage="prompt")], [LOST], 60.0))
    gateway, notebook = gateway_over(engine)
    await leaving(answer(gateway), lambda: engine.silences)
    assert (engine.closed, [(row.outcome, row.completion_tokens) for row in notebook.attempts]) == (
        1,
        [("cancelled", 1)],
    )


async def test_it_comes_in_one_batch_when_it_has_ended() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"))
    async with aclosing(gateway.generate(ask(stream=False), CALL)) as batches:
        (events,) = [events async for events in batches]
    assert [type(event) for event in events][-2:] == [ChoiceFinished, Finished]


@pytest.mark.parametrize(
    ("stream", "idle_s", "gather_s"), [(False, 60.0, GATHER_S), (False, 0.2, 0.05), (True, 60.0, 0.0)]
)
async def test_its_pieces_may_be_gathered_but_not_so_long_that_the_engine_looks_silent(
    stream: bool, idle_s: float, gather_s: float
) -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=Policy(timeouts=Timeouts(idle_s=idle_s)))
    await answer(gateway, ask(stream=stream))
    assert engine.asked[0].gather_s == gather_s
