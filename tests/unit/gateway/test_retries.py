"""Further attempts: to whom, after which failures, how many, and when an engine is to be left alone."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drivetrain.config.schema import Limits, Policy
from drivetrain.config.schema import Retries as Rule
from drivetrain.errors import (
    DeadlineExceeded,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    LoadFailed,
)
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.retries import Budget, Retries, pause_s, retried
from drivetrain.router import Facts
from drivetrain.types import Event, fold
from tests.fakes.engine import ANSWER, HELLO, ROLE, ScriptedEngine, ask, gateway_over, leaving, route_to

CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
RULE = Rule()


async def collect(gateway: Gateway, call: Call = CALL, *, model: str = "chat") -> list[Event]:
    async with aclosing(gateway.generate(ask(model=model), call)) as batches:
        return [event async for events in batches for event in events]


def low() -> float:
    return 0.0


def frozen(gateway: Gateway) -> None:
    """No chance in pauses."""
    gateway.retries.draw = low


# --- the budget -------------------------------------------------------------------------------------------------------


def test_a_fifth_of_the_requests_of_a_minute_may_be_tried_again() -> None:
    budget, rule = Budget(), Rule(least=0)
    for _ in range(100):
        budget.asked(1000.0)
    assert [budget.take(rule, 1000.0) for _ in range(21)] == [True] * 20 + [False]


def test_a_few_may_be_tried_again_however_few_requests_there_are() -> None:
    budget = Budget()
    budget.asked(1000.0)
    assert [budget.take(Rule(least=3), 1000.0) for _ in range(4)] == [True, True, True, False]


def test_what_was_tried_again_a_minute_ago_is_forgotten_and_so_are_its_requests() -> None:
    budget, rule = Budget(), Rule(least=0)
    for _ in range(10):
        budget.asked(1000.0)
    assert budget.take(rule, 1000.0)
    assert budget.left(rule, 1059.0) == 1
    assert budget.left(rule, 1060.0) == 0
    for _ in range(5):
        budget.asked(1061.0)
    assert budget.left(rule, 1061.0) == 1


def test_a_budget_that_nobody_used_for_long_begins_anew() -> None:
    budget = Budget()
    for _ in range(100):
        budget.asked(0.0)
    assert budget.left(Rule(least=0), 1e6) == 0


@given(
    steps=st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=200),
    percent=st.integers(0, 100),
    least=st.integers(0, 5),
)
def test_further_attempts_never_exceed_their_share_of_the_last_minute(
    steps: Sequence[tuple[float, bool]], percent: int, least: int
) -> None:
    budget, rule, now_s = Budget(), Rule(budget_percent=percent, least=least), 1000.0
    asked: list[float] = []
    taken: list[float] = []
    for passed_s, again in steps:
        now_s += passed_s
        if not again:
            budget.asked(now_s)
            asked.append(now_s)
        elif budget.take(rule, now_s):
            taken.append(now_s)
            begun = (now_s // 5 - 11) * 5  # the minute goes by slices of five seconds
            requests, retries = (sum(at >= begun for at in each) for each in (asked, taken))
            assert retries <= max(least, requests * percent / 100)


def test_each_model_has_its_own_budget_however_its_name_is_written() -> None:
    retries, rule = Retries(clock=lambda: 1000.0), Rule(least=1)
    assert retries.take("chat", rule)
    assert not retries.take("Chat:latest", rule)
    assert retries.take("code", rule)


# --- which failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "rule", "attempts", "again"),
    [
        (EngineFailed("broke"), RULE, 1, True),
        (EngineFailed("broke"), RULE, 2, True),
        (EngineFailed("broke"), RULE, 3, False),
        (EngineFailed("broke"), Rule(max=0), 1, False),
        (EngineTimeout("late"), Rule(on=("engine_failed",)), 1, False),
        (EngineFailed("broke"), Rule(on=("engine_failed",)), 1, True),
    ],
)
def test_a_failure_is_tried_again_if_its_kind_and_the_number_of_attempts_allow(
    error: EngineError, rule: Rule, attempts: int, again: bool
) -> None:
    assert retried(error, rule, attempts) is again


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (EngineFailed("broke"), 0.05, 0.15),
        (EngineUnavailable("away"), 0.05, 0.15),
        (EngineOverloaded("busy", retry_after_s=1.0), 1.05, 1.15),
        (EngineOverloaded("busy", retry_after_s=3.0), None, None),
        (EngineTimeout("late"), None, None),
        (LoadFailed("no memory"), None, None),
    ],
)
def test_the_same_engine_is_asked_again_after_a_pause_or_not_at_all(
    error: EngineError, least: float | None, most: float | None
) -> None:
    assert pause_s(error, lambda: 0.0) == least
    assert pause_s(error, lambda: 1.0) == (pytest.approx(most) if most is not None else None)


# --- one request ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_lone_engine_is_asked_once_more_and_the_caller_sees_one_answer() -> None:
    engine = ScriptedEngine("a", ([ROLE], EngineFailed("a broke")), ANSWER)
    gateway, notebook = gateway_over(engine)
    frozen(gateway)
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.outcome, row.position) for row in notebook.attempts] == [
        ("a", "absorbed", 1),
        ("a", "ok", 2),
    ]


@pytest.mark.anyio
async def test_a_lone_engine_is_asked_once_more_only() -> None:
    engine = ScriptedEngine("a", (EngineFailed("a broke"),))
    gateway, notebook = gateway_over(engine)
    with pytest.raises(EngineFailed, match="a broke"):
        await collect(gateway)
    assert [row.outcome for row in notebook.attempts] == ["absorbed", "error"]


@pytest.mark.anyio
async def test_nothing_is_tried_again_once_content_has_come() -> None:
    engine = ScriptedEngine("a", ([HELLO], EngineFailed("a broke")), ANSWER)
    gateway, _ = gateway_over(engine)
    with pytest.raises(EngineFailed):
        await collect(gateway)
    assert len(engine.asked) == 1


@pytest.mark.anyio
async def test_a_request_has_no_more_attempts_than_its_policy_says() -> None:
    engines = [ScriptedEngine(name, (EngineFailed(f"{name} broke"),)) for name in "abcd"]
    gateway, _ = gateway_over(*engines, policy=Policy(retries=Rule(max=1)))
    with pytest.raises(EngineFailed, match="b broke"):
        await collect(gateway)
    assert [len(engine.asked) for engine in engines] == [1, 1, 0, 0]


@pytest.mark.anyio
async def test_a_caller_who_wants_no_fallback_gets_the_first_engine_or_its_error() -> None:
    first, second = ScriptedEngine("a", (EngineTimeout("a is slow"),)), ScriptedEngine("b")
    gateway, _ = gateway_over(first, second)
    with pytest.raises(EngineTimeout, match="a is slow"):
        await collect(gateway, replace(CALL, alone=True))
    assert second.asked == []


@pytest.mark.anyio
async def test_a_caller_who_wants_no_fallback_may_be_asked_for_twice_at_the_same_engine_only() -> None:
    first, second = (ScriptedEngine(name, (EngineFailed(f"{name} broke"),)) for name in "ab")
    gateway, _ = gateway_over(first, second)
    with pytest.raises(EngineFailed, match="a broke"):
        await collect(gateway, replace(CALL, alone=True))
    assert (len(first.asked), second.asked) == (2, [])


@pytest.mark.anyio
async def test_no_pause_is_made_that_would_outlast_the_request() -> None:
    engine = ScriptedEngine("a", (EngineOverloaded("busy", retry_after_s=1.0),))
    gateway, _ = gateway_over(engine)
    with pytest.raises(EngineOverloaded):
        await collect(gateway, replace(CALL, timeout_s=0.5))
    assert len(engine.asked) == 1


@pytest.mark.anyio
async def test_the_deadline_holds_for_all_attempts_together() -> None:
    first, second, third = (
        ScriptedEngine("a", (EngineFailed("broke"),)),
        ScriptedEngine("b", (60.0,)),
        ScriptedEngine("c"),
    )
    gateway, _ = gateway_over(first, second, third)
    with pytest.raises(DeadlineExceeded):
        await collect(gateway, replace(CALL, timeout_s=0.25))
    assert (len(second.asked), third.asked) == (1, [])


# --- an engine that wants to be left alone ----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_engine_is_not_asked_before_it_said_it_may_be() -> None:
    busy, other = ScriptedEngine("a", (EngineOverloaded("a is busy", retry_after_s=60.0),)), ScriptedEngine("b")
    gateway, _ = gateway_over(busy, other)
    for _ in range(3):
        await collect(gateway)
    assert (len(busy.asked), len(other.asked)) == (1, 3)


@pytest.mark.anyio
async def test_when_all_want_to_be_left_alone_the_caller_is_told_when_to_come_back() -> None:
    engine = ScriptedEngine("a", (EngineOverloaded("a is busy", retry_after_s=60.0),))
    gateway, notebook = gateway_over(engine)
    with pytest.raises(EngineOverloaded, match="a is busy"):
        await collect(gateway)
    with pytest.raises(EngineOverloaded, match="asked to be left alone for 60 s more") as refusal:
        await collect(gateway)
    assert refusal.value.retry_after_s == pytest.approx(60.0, abs=1.0)
    assert len(engine.asked) == 1
    assert [(row.engine, row.status) for row in notebook.attempts] == [("a", 503), ("", 503)]


@pytest.mark.anyio
async def test_an_engine_is_asked_again_when_its_time_has_come() -> None:
    engine = ScriptedEngine("a", (EngineOverloaded("a is busy", retry_after_s=60.0),), ANSWER)
    gateway, _ = gateway_over(engine)
    with pytest.raises(EngineOverloaded):
        await collect(gateway)
    gateway.pool.members["a"].not_before_s = time.monotonic() - 0.001
    assert fold(await collect(gateway)).choices[0].text == "Hello world"


@pytest.mark.anyio
async def test_a_short_rest_of_a_lone_engine_is_waited_for() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine)
    gateway.pool.members["a"].not_before_s = due_s = time.monotonic() + 0.05
    await collect(gateway)
    assert time.monotonic() >= due_s


# --- a dead pool ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("error", [EngineUnavailable("away"), EngineFailed("broke")])
async def test_a_dead_pool_is_not_stormed(error: EngineError) -> None:
    engines = [ScriptedEngine(name, (type(error)(error.message),)) for name in "abc"]
    gateway, _ = gateway_over(*engines)
    frozen(gateway)
    for _ in range(200):
        with pytest.raises(EngineError):
            await collect(gateway)
    assert sum(len(engine.asked) for engine in engines) <= 1.2 * 200


@pytest.mark.anyio
async def test_a_dead_pool_says_when_to_come_back_and_why_no_other_was_asked() -> None:
    engines = [ScriptedEngine(name, (EngineUnavailable(f"{name} is away"),)) for name in "ab"]
    gateway, _ = gateway_over(*engines, policy=Policy(retries=Rule(least=0, budget_percent=0)))
    with pytest.raises(EngineUnavailable) as refusal:
        await collect(gateway)
    assert refusal.value.message == "a is away; no other attempt was made, for too many of this model's requests fail"
    assert (refusal.value.status, refusal.value.retry_after_s) == (503, 1.0)


@pytest.mark.anyio
async def test_when_every_engine_has_failed_the_caller_is_told_when_to_come_back() -> None:
    engines = [ScriptedEngine(name, (EngineFailed(f"{name} broke"),)) for name in "abc"]
    gateway, notebook = gateway_over(*engines)
    with pytest.raises(EngineUnavailable) as refusal:
        await collect(gateway)
    assert refusal.value.message == "c broke; every engine of model 'chat' has failed or is set aside"
    assert (refusal.value.status, refusal.value.retry_after_s) == (503, 1.0)
    assert [row.status for row in notebook.attempts] == [502, 502, 502]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rule", "retry_after_s"), [(Rule(max=0), None), (Rule(least=0, budget_percent=0), 1.0)], ids=["max", "budget"]
)
async def test_an_engine_that_could_still_be_asked_leaves_the_error_of_the_one_that_failed(
    rule: Rule, retry_after_s: float | None
) -> None:
    engines = [ScriptedEngine(name, (EngineFailed(f"{name} broke"),)) for name in "ab"]
    gateway, _ = gateway_over(*engines, policy=Policy(retries=rule))
    with pytest.raises(EngineFailed, match="a broke") as refusal:
        await collect(gateway)
    assert refusal.value.retry_after_s == retry_after_s


@pytest.mark.anyio
async def test_a_lone_engine_that_has_rested_and_is_able_leaves_its_error() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", (EngineFailed("a broke"),)))
    gateway.pool.members["a"].not_before_s = time.monotonic() + 0.05
    with pytest.raises(EngineFailed, match=r"a broke$"):
        await collect(gateway)


@pytest.mark.anyio
async def test_a_stream_that_has_begun_ends_with_the_error_of_its_engine_though_nobody_else_is_left() -> None:
    failed, broke = EngineFailed("b failed"), EngineFailed("b broke")
    engines = ScriptedEngine("a", (EngineFailed("a broke"),)), ScriptedEngine("b", (failed,), ([HELLO], broke))
    gateway, _ = gateway_over(*engines)
    with pytest.raises(EngineFailed, match=r"b broke$"):
        await collect(gateway)


@pytest.mark.anyio
async def test_a_lone_engine_that_is_set_aside_is_a_dead_pool_too() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", (EngineFailed("a broke"),)))
    frozen(gateway)
    with pytest.raises(EngineFailed):
        await collect(gateway)
    while gateway.pool.members["a"].standing().state == "closed":
        with pytest.raises(EngineError):
            await collect(gateway)
    with pytest.raises(EngineUnavailable, match="set aside"):
        await collect(gateway)


@pytest.mark.anyio
async def test_a_lone_engine_that_fails_every_third_time_keeps_its_traffic_and_callers_see_no_error() -> None:
    scripts = [(EngineFailed("a broke"),) if n % 3 == 2 else ANSWER for n in range(15)]
    engine = ScriptedEngine("a", *scripts)
    gateway, _ = gateway_over(engine)
    frozen(gateway)
    for _ in range(10):
        await collect(gateway)
    assert len(engine.asked) == 14


@pytest.mark.anyio
async def test_a_fallback_that_is_there_goes_before_engines_that_are_known_to_be_away() -> None:
    away, spare = ScriptedEngine("a", (EngineUnavailable("away"),)), ScriptedEngine("b")
    routes = {"chat": route_to(away, fallbacks=["spare"]), "spare": route_to(spare)}
    gateway, _ = gateway_over(away, spare, routes=routes)
    for _ in range(3):
        await collect(gateway)
    assert (len(away.asked), len(spare.asked)) == (1, 3)


@pytest.mark.anyio
async def test_a_caller_who_wants_no_fallback_is_not_given_one_though_the_engine_is_away() -> None:
    away, spare = ScriptedEngine("a", (EngineTimeout("a is slow"),)), ScriptedEngine("b")
    routes = {"chat": route_to(away, fallbacks=["spare"]), "spare": route_to(spare)}
    gateway, _ = gateway_over(away, spare, routes=routes)
    gateway.pool.members["a"].lost("away")
    with pytest.raises(EngineTimeout, match="a is slow"):
        await collect(gateway, replace(CALL, alone=True))
    assert spare.asked == []


@pytest.mark.anyio
async def test_a_fallback_that_nobody_has_any_more_is_passed_over() -> None:
    broken, spare = ScriptedEngine("a", (EngineTimeout("a is slow"),)), ScriptedEngine("b")
    routes = {"chat": route_to(broken, fallbacks=["gone", "spare"]), "spare": route_to(spare)}
    gateway, _ = gateway_over(broken, spare, routes=routes)
    assert fold(await collect(gateway)).choices[0].text == "Hello world"


@pytest.mark.anyio
async def test_a_caller_who_leaves_during_a_pause_is_on_record() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a", (EngineOverloaded("busy", retry_after_s=1.5),)))
    await leaving(collect(gateway), lambda: notebook.attempts)
    assert [(row.outcome, row.position, row.final) for row in notebook.attempts] == [
        ("absorbed", 1, False),
        ("cancelled", 2, True),
    ]
    assert notebook.answering == 0


@pytest.mark.anyio
async def test_a_caller_who_leaves_the_line_of_a_fallback_is_on_record() -> None:
    broken, spare = ScriptedEngine("a", (EngineTimeout("a is slow"),)), ScriptedEngine("b", ([HELLO], 60.0))
    routes = {"chat": route_to(broken, fallbacks=["spare"]), "spare": route_to(spare)}
    gateway, notebook = gateway_over(broken, spare, routes=routes, policy=Policy(limits=Limits(concurrency=1)))
    holding = asyncio.create_task(collect(gateway, model="spare"))
    while not spare.asked:
        await asyncio.sleep(0)
    await leaving(collect(gateway), lambda: notebook.queued)
    assert [(row.outcome, row.final) for row in notebook.attempts] == [("absorbed", False), ("cancelled", True)]
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert (notebook.answering, notebook.queued) == (0, 0)


@pytest.mark.anyio
async def test_an_engine_that_goes_while_a_request_waits_for_its_turn_is_on_record() -> None:
    engine = ScriptedEngine("a", ([HELLO], 60.0))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=1)))
    holding = asyncio.create_task(collect(gateway))
    while not engine.asked:
        await asyncio.sleep(0)
    waiting = asyncio.create_task(collect(gateway))
    while not notebook.queued:
        await asyncio.sleep(0)
    gateway.pool.members.clear()
    holding.cancel()
    with pytest.raises(EngineUnavailable, match="'a' is not configured"):
        await waiting
    assert notebook.attempts[0].outcome == "cancelled"
    assert {(row.engine, row.outcome, row.status) for row in notebook.attempts[1:-1]} <= {("a", "absorbed", 503)}
    last = notebook.attempts[-1]
    assert (last.engine, last.outcome, last.status, last.prompt_tokens) == ("a", "error", 503, 0)


@pytest.mark.anyio
async def test_what_engines_took_is_no_time_of_ours() -> None:
    slow, spare = ScriptedEngine("a", (0.2, EngineFailed("a broke"))), ScriptedEngine("b")
    gateway, notebook = gateway_over(slow, spare)
    await collect(gateway, replace(CALL, received_s=time.time()))
    first, second = notebook.attempts
    assert first.total_s >= 0.2
    assert second.overhead_s < first.total_s


# --- a dry run --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_dry_run_tells_where_a_request_would_go_and_asks_nobody() -> None:
    first, second, spare = (ScriptedEngine(name) for name in "abc")
    routes = {"chat": route_to(first, second, fallbacks=["spare"]), "spare": route_to(spare)}
    gateway, notebook = gateway_over(first, second, spare, routes=routes)
    gateway.pool.members["a"].not_before_s = time.monotonic() + 60
    told = await gateway.explain("chat", Facts(prompt_tokens=100, output_tokens=50))
    assert [(choice.model, [seen.engine for seen in choice.candidates]) for choice in told.choices] == [
        ("chat", ["b", "a"]),
        ("spare", ["c"]),
    ]
    assert [seen.state for seen in told.choices[0].candidates] == ["able", "resting"]
    assert (told.retries, told.retries_left, told.total_s) == (2, 10, 3600.0)
    assert first.asked == second.asked == spare.asked == []
    assert notebook.attempts == []
