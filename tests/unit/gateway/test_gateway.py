"""One request's path: failover before the first content only, accounting of every attempt, deadlines, limits."""

import asyncio
import time
from contextlib import aclosing

import pytest

from drivetrain.config.schema import Limits, Policy, Queue, Retries, Timeouts
from drivetrain.errors import (
    BadRequest,
    Busy,
    DrivetrainError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    ModelNotFound,
    RateLimited,
)
from drivetrain.gateway import Call, Gateway
from drivetrain.types import Embeddings, EmbedRequest, Event, Experts, Finished, Progress, Request, Usage, fold
from tests.fakes.engine import ANSWER, END, HELLO, ROLE, WORLD, ScriptedEngine, ask, gateway_over

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)


async def collect(gateway: Gateway, request: Request | None = None) -> list[Event]:
    async with aclosing(gateway.generate(request or ask(), CALL)) as batches:
        return [event async for events in batches for event in events]


async def test_the_answer_comes_through_whole_and_the_engine_is_asked_by_its_own_name() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine)
    assert await collect(gateway) == [ROLE, HELLO, WORLD, *END]
    assert [request.model for request in engine.asked] == ["a-model"]


async def test_fails_over_before_the_first_content_and_the_caller_sees_one_answer() -> None:
    gateway, notebook = gateway_over(
        ScriptedEngine("a", ([ROLE], EngineFailed("a broke"))), ScriptedEngine("b", ([ROLE], [HELLO], END))
    )
    assert await collect(gateway) == [ROLE, HELLO, *END]
    assert [(row.engine, row.outcome, row.position) for row in notebook.attempts] == [
        ("a", "absorbed", 1),
        ("b", "ok", 2),
    ]


async def test_never_fails_over_after_the_first_content() -> None:
    second = ScriptedEngine("b")
    gateway, notebook = gateway_over(ScriptedEngine("a", ([ROLE], [HELLO], EngineFailed("a broke"))), second)
    seen: list[Event] = []
    with pytest.raises(EngineFailed, match="a broke"):
        async with aclosing(gateway.generate(ask(), CALL)) as batches:
            async for events in batches:
                seen += events
    assert seen == [ROLE, HELLO]
    assert second.asked == []
    assert [(row.outcome, row.completion_tokens, row.usage_estimated) for row in notebook.attempts] == [
        ("error", 1, True)
    ]


async def test_a_callers_mistake_is_not_tried_elsewhere() -> None:
    second = ScriptedEngine("b")
    gateway, notebook = gateway_over(ScriptedEngine("a", (BadRequest("bad"),)), second)
    with pytest.raises(BadRequest):
        await collect(gateway)
    assert second.asked == []
    assert [row.outcome for row in notebook.attempts] == ["rejected"]


async def test_an_engine_without_the_model_is_passed_over_and_not_blamed() -> None:
    bare = ScriptedEngine("a", *[(ModelNotFound("model 'a-model' not found", param="model"),)] * 40)
    gateway, notebook = gateway_over(bare, ScriptedEngine("b"), policy=Policy(retries=Retries(budget_percent=100)))
    for _ in range(30):
        assert await collect(gateway) == [ROLE, HELLO, WORLD, *END]
    tried = [(row.engine, row.outcome, row.why) for row in notebook.attempts if row.engine == "a"]
    assert set(tried) == {("a", "absorbed", "model_missing")}
    assert len(tried) > 5  # as often as any other: for other models there is nothing wrong with it
    assert gateway.pool.members["a"].breaker.state(time.monotonic()) == "closed"


async def test_a_model_that_no_engine_has_is_not_found() -> None:
    engine = ScriptedEngine("a", (ModelNotFound("model 'a-model' not found", param="model"),))
    gateway, notebook = gateway_over(engine)
    with pytest.raises(ModelNotFound, match=r"^model 'a-model' not found$") as told:
        await collect(gateway)
    assert told.value.param == "model"
    assert [(row.outcome, row.status, row.why) for row in notebook.attempts] == [("error", 404, "model_missing")]


async def test_when_all_fail_the_last_error_is_the_callers() -> None:
    gateway, _ = gateway_over(
        ScriptedEngine("a", (EngineUnavailable("a is away"),)), ScriptedEngine("b", (EngineOverloaded("b is busy"),))
    )
    with pytest.raises(EngineOverloaded, match="b is busy"):
        await collect(gateway)


async def test_an_engine_that_cannot_be_reached_is_known_to_be_away_at_once() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", (EngineUnavailable("refused"),)), ScriptedEngine("b"))
    await collect(gateway)
    assert gateway.pool.members["a"].health.ready is False


async def test_an_answer_without_its_end_is_an_engine_failure() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", ([HELLO],)))
    with pytest.raises(EngineFailed, match="without saying so"):
        await collect(gateway)


async def test_closing_the_answer_stops_the_engine_and_leaves_an_estimated_row() -> None:
    engine = ScriptedEngine("a", ([ROLE], [HELLO], [WORLD], 60.0, END))
    gateway, notebook = gateway_over(engine)
    async with aclosing(gateway.generate(ask("x" * 40), CALL)) as batches:
        async for events in batches:
            if WORLD in events:
                break
    assert engine.closed == 1
    assert gateway.pool.members["a"].outstanding == 0
    (row,) = notebook.attempts
    assert (row.outcome, row.status, row.prompt_tokens, row.completion_tokens) == ("cancelled", 499, 10, 2)
    assert row.usage_estimated


async def test_usage_that_the_engine_reports_is_the_one_that_counts() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a"))
    await collect(gateway)
    (row,) = notebook.attempts
    assert (row.outcome, row.prompt_tokens, row.completion_tokens, row.usage_estimated) == ("ok", 5, 2, False)
    assert row.first_token_s is not None
    assert row.first_token_s <= row.total_s


async def test_progress_reaches_a_waiting_caller_before_any_content() -> None:
    loading = Progress(stage="loading", fraction=0.5)
    gateway, _ = gateway_over(ScriptedEngine("a", ([loading], [ROLE], [HELLO], END)))
    assert (await collect(gateway))[:3] == [loading, ROLE, HELLO]


async def test_an_engine_that_never_answers_is_left_at_the_first_token_deadline() -> None:
    black_hole = ScriptedEngine("a", ([ROLE], 60.0))
    gateway, notebook = gateway_over(
        black_hole, ScriptedEngine("b"), policy=Policy(timeouts=Timeouts(first_token_s=0.05))
    )
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert black_hole.closed == 1
    assert [(row.engine, row.why) for row in notebook.attempts] == [
        ("a", "engine_timeout"),
        ("b", "tier 1, next by load 0"),
    ]


async def test_an_engine_that_falls_silent_in_its_answer_is_cut_at_the_idle_deadline() -> None:
    gateway, _ = gateway_over(
        ScriptedEngine("a", ([HELLO], 60.0, END)), policy=Policy(timeouts=Timeouts(first_token_s=5, idle_s=0.05))
    )
    with pytest.raises(EngineTimeout, match=r"fell silent within 0\.05 s"):
        await collect(gateway)


async def test_a_slow_reader_is_not_an_idle_engine() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"), policy=Policy(timeouts=Timeouts(first_token_s=0.05, idle_s=0.05)))
    async with aclosing(gateway.generate(ask(), CALL)) as batches:
        async for _ in batches:
            await asyncio.sleep(0.12)  # the reader, not the engine, takes its time


async def test_the_total_deadline_ends_an_answer_that_keeps_talking() -> None:
    talk = tuple(step for _ in range(100) for step in ([WORLD], 0.01))
    gateway, _ = gateway_over(ScriptedEngine("a", talk), policy=Policy(timeouts=Timeouts(total_s=0.1)))
    with pytest.raises(EngineTimeout, match=r"did not finish within 0\.1 s"):
        await collect(gateway)


async def test_an_unknown_model_is_named_in_the_error() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a"))
    with pytest.raises(ModelNotFound, match="nobody"):
        await collect(gateway, ask(model="nobody"))
    (row,) = notebook.attempts
    assert (row.engine, row.outcome, row.status, row.why) == ("", "rejected", 404, "model_not_found")


# --- limits ---------------------------------------------------------------------------------------------------------


async def test_concurrency_admits_exactly_as_many_as_it_says_and_the_next_waits() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.05, END))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=2)))
    first, second = (asyncio.create_task(collect(gateway)) for _ in range(2))
    third = asyncio.create_task(collect(gateway))
    while len(engine.asked) < 2:
        await asyncio.sleep(0)
    assert gateway.pool.members["a"].outstanding == 2
    assert (notebook.answering, notebook.queued) == (2, 1)
    await asyncio.gather(first, second, third)
    assert len(engine.asked) == 3
    assert (notebook.answering, notebook.queued) == (0, 0)


async def test_a_full_queue_refuses_and_a_slow_one_gives_up() -> None:
    engine = ScriptedEngine("a", ([HELLO], 60.0, END))
    queue = Queue(size=1, timeout_s=0.05)
    gateway, _ = gateway_over(engine, policy=Policy(limits=Limits(concurrency=1), queue=queue))
    running = asyncio.create_task(collect(gateway))
    while not engine.asked:
        await asyncio.sleep(0)
    waiting = asyncio.create_task(collect(gateway))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="maximum pending requests exceeded"):
        await collect(gateway)
    with pytest.raises(Busy, match=r"no slot of policy 'default' within 0\.05 s"):
        await waiting
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_slots_survive_a_thousand_aborts_and_errors() -> None:
    engine = ScriptedEngine("a", *[([HELLO], 60.0, END), ([HELLO], EngineFailed("broke")), ANSWER] * 400)
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=3)))

    async def one() -> None:
        task = asyncio.create_task(collect(gateway))
        done, _ = await asyncio.wait({task}, timeout=0.001)
        if not done:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(one() for _ in range(1000)))
    assert gateway.pool.members["a"].outstanding == 0
    assert len([row for row in notebook.attempts if row.engine]) == len(engine.asked)
    engine.play(([HELLO], 60.0, END))
    asked = len(engine.asked)
    tasks = [asyncio.create_task(collect(gateway)) for _ in range(4)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(engine.asked) - asked == 3  # exactly as many as before the storm
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_refusal_tells_exactly_when_to_come_back() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"), policy=Policy(limits=Limits(requests_per_minute=2)))
    await collect(gateway)
    await collect(gateway)
    with pytest.raises(RateLimited) as refusal:
        await collect(gateway)
    assert refusal.value.retry_after_s == pytest.approx(60.0, abs=1.0)


# --- embeddings -----------------------------------------------------------------------------------------------------


async def test_embeddings_fail_over_and_are_accounted_like_answers() -> None:
    vectors = Embeddings(vectors=((1.0, 0.0),), usage=Usage(prompt=3))
    gateway, notebook = gateway_over(
        ScriptedEngine("a", vectors=EngineUnavailable("away")), ScriptedEngine("b", vectors=vectors)
    )
    assert await gateway.embed(EmbedRequest(model="chat", inputs=("hi",)), CALL) == vectors
    assert [(row.engine, row.outcome, row.prompt_tokens) for row in notebook.attempts] == [
        ("a", "absorbed", 0),
        ("b", "ok", 3),
    ]


async def test_every_error_of_the_gateway_is_one_of_ours() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"))
    with pytest.raises(DrivetrainError):
        await gateway.embed(EmbedRequest(model="chat", inputs=("hi",)), CALL)


async def test_durations_that_an_engine_does_not_tell_are_measured_for_callers_who_are_told_them() -> None:
    engine = ScriptedEngine("a", ([Progress(stage="loading")], 0.05, [Progress(stage="loading")], 0.05, [HELLO], END))
    gateway, _ = gateway_over(engine)
    native = Call(id="req_1", dialect="ollama.chat", received_s=0.0)
    async with aclosing(gateway.generate(ask(), native)) as batches:
        timings = [event.timings async for events in batches for event in events if isinstance(event, Finished)]
    (told,) = timings
    assert told is not None
    assert told.load_s >= 0.05
    assert told.prompt_s >= 0.05
    assert told.completion_s < 0.05


async def test_what_a_model_says_before_its_prompt_is_passed_on_and_is_no_loading() -> None:
    ready = Progress(stage="prompt", experts=Experts(hits=1))
    engine = ScriptedEngine("a", ([ready], 0.02, [HELLO], END))
    gateway, _ = gateway_over(engine)
    native = Call(id="req_1", dialect="ollama.chat", received_s=0.0)
    async with aclosing(gateway.generate(ask(), native)) as batches:
        events = [event async for events in batches for event in events]
    assert events[0] == ready
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.timings is not None
    assert end.timings.load_s == 0.0
