"""A second engine beside one that is slow to begin: when it is asked, who answers, and what both leave on record."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Budget, Hedge, Policy, Retries
from drivetrain.errors import EngineFailed, EngineUnavailable
from drivetrain.gateway import Call, Gateway, Receipt
from drivetrain.gateway.hedge import KNOWN, Times
from drivetrain.governance import Price
from drivetrain.quota import Hold, Refusal
from drivetrain.quota.memory import MemoryQuota
from drivetrain.types import Event, Health, Progress, Request, TextDelta, fold
from tests.fakes.engine import ANSWER, END, HELLO, ROLE, ScriptedEngine, Step, ask, gateway_over, leaving

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
SOON = Hedge(percent=100, least_s=0.01, most_s=0.01)
LONG = 60.0
SILENT: tuple[Step, ...] = ([ROLE], LONG, *ANSWER)
PRICE = Price(id="p", request=1_000_000)


async def collect(gateway: Gateway, call: Call = CALL) -> list[Event]:
    async with asyncio.timeout(20), aclosing(gateway.generate(ask(), call)) as batches:
        return [event async for events in batches for event in events]


def rows(notebook: object) -> list[tuple[str, str, str, bool]]:
    return [(row.engine, row.outcome, row.why, row.final) for row in notebook.attempts]  # type: ignore[attr-defined]


# --- how long is slow -------------------------------------------------------------------------------------------------


def test_until_a_models_times_are_known_only_the_longest_wait_is_slow() -> None:
    times = Times()
    for _ in range(KNOWN - 1):
        times.add(0.5)
    assert times.slow_s(Hedge(most_s=7.0)) == 7.0
    times.add(0.5)
    assert times.slow_s(Hedge(most_s=7.0)) == 0.5


def test_slow_is_beyond_the_quantile_of_the_models_times() -> None:
    times = Times()
    for number in range(100):
        times.add(number / 10)
    assert times.slow_s(Hedge(quantile=95)) == 9.5
    assert times.slow_s(Hedge(quantile=50)) == 5.0


def test_and_never_below_the_least_or_above_the_most() -> None:
    times = Times()
    for _ in range(KNOWN):
        times.add(1.0)
    assert times.slow_s(Hedge(least_s=2.0)) == 2.0
    assert times.slow_s(Hedge(most_s=0.5)) == 0.5


def test_old_times_are_forgotten() -> None:
    times = Times()
    for seconds in (9.0, 1.0):
        for _ in range(200):
            times.add(seconds)
    assert times.slow_s(Hedge()) == 1.0


# --- who answers ------------------------------------------------------------------------------------------------------


async def test_the_one_that_begins_first_answers_and_the_other_is_closed_and_on_record() -> None:
    slow, quick = ScriptedEngine("slow", SILENT), ScriptedEngine("quick")
    gateway, notebook = gateway_over(slow, quick, policy=Policy(hedge=SOON))
    receipt = Receipt()
    assert fold(await collect(gateway, replace(CALL, receipt=receipt))).choices[0].text == "Hello world"
    assert slow.closed == 1
    lost, won = sorted(notebook.attempts, key=lambda row: row.position)
    assert (lost.engine, lost.outcome, lost.why, lost.final) == ("slow", "cancelled", "hedge_lost", False)
    assert (won.engine, won.outcome, won.final) == ("quick", "ok", True)
    assert won.why.startswith("beside slow, which gave nothing in ")
    assert (receipt.engine, receipt.attempts) == ("quick", 2)
    assert notebook.answering == 0


async def test_the_first_one_may_still_win() -> None:
    first = ScriptedEngine("a", ([ROLE], 0.1, [HELLO], END))
    second = ScriptedEngine("b", SILENT)
    gateway, notebook = gateway_over(first, second, policy=Policy(hedge=SOON))
    receipt = Receipt()
    assert fold(await collect(gateway, replace(CALL, receipt=receipt))).choices[0].text == "Hello"
    assert second.closed == 1
    assert {(row.engine, row.outcome, row.final) for row in notebook.attempts} == {
        ("a", "ok", True),
        ("b", "cancelled", False),
    }
    assert receipt.engine == "a"


async def test_a_model_that_is_quick_enough_is_asked_once() -> None:
    first, second = ScriptedEngine("a"), ScriptedEngine("b")
    gateway, _ = gateway_over(first, second, policy=Policy(hedge=replace(SOON, least_s=30.0, most_s=30.0)))
    await collect(gateway)
    assert second.asked == []


async def test_without_the_policy_nobody_is_asked_beside_another() -> None:
    first, second = ScriptedEngine("a", ([ROLE], 0.05, *ANSWER)), ScriptedEngine("b")
    gateway, _ = gateway_over(first, second, policy=Policy(hedge=replace(SOON, percent=0)))
    await collect(gateway)
    assert second.asked == []


async def test_the_progress_of_the_first_is_shown_meanwhile() -> None:
    slow = ScriptedEngine("slow", ([Progress(stage="loading")], LONG))
    gateway, _ = gateway_over(slow, ScriptedEngine("quick", (0.05, *ANSWER)), policy=Policy(hedge=SOON))
    events = await collect(gateway)
    assert isinstance(events[0], Progress)
    assert fold(events).choices[0].text == "Hello world"


# --- failures ---------------------------------------------------------------------------------------------------------


async def test_the_failure_of_one_is_absorbed_while_the_other_runs() -> None:
    broken = ScriptedEngine("broken", ([ROLE], 0.05, EngineFailed("broke")))
    gateway, notebook = gateway_over(broken, ScriptedEngine("b", (0.1, *ANSWER)), policy=Policy(hedge=SOON))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.outcome) for row in notebook.attempts] == [("broken", "absorbed"), ("b", "ok")]
    assert gateway.retries.left("chat", gateway.catalog.resolve("chat").policy.retries) == 10  # that was no retry


async def test_if_both_fail_the_next_engine_is_tried() -> None:
    engines = (
        ScriptedEngine("a", ([ROLE], 0.1, EngineFailed("a broke"))),
        ScriptedEngine("b", ([ROLE], EngineFailed("b broke"))),
        ScriptedEngine("c"),
    )
    gateway, notebook = gateway_over(*engines, policy=Policy(hedge=SOON))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.outcome) for row in notebook.attempts] == [
        ("b", "absorbed"),
        ("a", "absorbed"),
        ("c", "ok"),
    ]


class SlowToClose(ScriptedEngine):
    """It takes a while to hear that nobody wants its answer."""

    async def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        try:
            async with aclosing(super().generate(request)) as batches:
                async for events in batches:
                    yield events
        finally:
            await asyncio.sleep(0.05)


async def test_a_winner_that_breaks_off_is_the_end_though_the_other_one_still_closes() -> None:
    slow, quick = SlowToClose("slow", SILENT), ScriptedEngine("quick", ([HELLO], EngineFailed("quick broke off")))
    gateway, notebook = gateway_over(slow, quick, policy=Policy(hedge=SOON))
    with pytest.raises(EngineFailed, match="quick broke off"):
        await collect(gateway)
    assert (len(slow.asked), len(quick.asked)) == (1, 1)
    assert sorted((row.engine, row.outcome, row.why) for row in notebook.attempts) == [
        ("quick", "error", "engine_failed"),
        ("slow", "cancelled", "hedge_lost"),
    ]


async def test_nobody_runs_ahead_of_the_caller() -> None:
    engine = ScriptedEngine("a", ([HELLO], [HELLO], EngineFailed("broke off")))
    rarely = replace(SOON, least_s=30.0, most_s=30.0)
    gateway, notebook = gateway_over(engine, ScriptedEngine("b"), policy=Policy(hedge=rarely))
    async with aclosing(gateway.generate(ask(), CALL)) as batches:
        assert await anext(batches) == [HELLO]
        await asyncio.sleep(0)
        assert notebook.attempts == []  # it has not failed yet
        assert await anext(batches) == [HELLO]
        with pytest.raises(EngineFailed):
            await anext(batches)


async def test_an_answer_that_is_watched_for_slowness_may_be_resumed_too() -> None:
    first = ScriptedEngine("a", ([TextDelta(text="It begins with")], EngineFailed("broke off")))
    second = ScriptedEngine("b", ([TextDelta(text=" this.")], END))
    first.kind = second.kind = "vllm"
    gateway, _ = gateway_over(first, second, policy=Policy(hedge=SOON, retries=Retries(resume=True)))
    assert fold(await collect(gateway)).choices[0].text == "It begins with this."


async def test_a_failure_before_that_is_a_retry_as_ever() -> None:
    broken = ScriptedEngine("a", ([ROLE], EngineFailed("a broke")))
    gateway, notebook = gateway_over(
        broken, ScriptedEngine("b"), policy=Policy(hedge=replace(SOON, most_s=30.0, least_s=30.0))
    )
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [row.outcome for row in notebook.attempts] == ["absorbed", "ok"]


async def test_a_caller_who_leaves_ends_both() -> None:
    first, second = ScriptedEngine("a", SILENT), ScriptedEngine("b", SILENT)
    gateway, notebook = gateway_over(first, second, policy=Policy(hedge=SOON))
    await leaving(collect(gateway), lambda: second.asked)
    assert (first.closed, second.closed) == (1, 1)
    assert [row.outcome for row in notebook.attempts] == ["cancelled", "cancelled"]
    assert notebook.answering == 0


async def test_a_stream_that_is_closed_half_way_ends_its_engine() -> None:
    engine = ScriptedEngine("a", ([HELLO], LONG))
    gateway, notebook = gateway_over(
        engine, ScriptedEngine("b"), policy=Policy(hedge=replace(SOON, least_s=30.0, most_s=30.0))
    )
    async with aclosing(gateway.generate(ask(), CALL)) as batches:
        async for _ in batches:
            break
    assert engine.closed == 1
    assert [row.outcome for row in notebook.attempts] == ["cancelled"]


# --- who is asked, and how often --------------------------------------------------------------------------------------


async def test_an_engine_that_is_away_is_not_asked_beside_another() -> None:
    first, away = ScriptedEngine("a", ([ROLE], 0.1, *ANSWER)), ScriptedEngine("b")
    gateway, _ = gateway_over(first, away, policy=Policy(hedge=SOON))
    gateway.pool.members["b"].health = Health(live=False, ready=False)
    await collect(gateway)
    assert away.asked == []


async def test_a_caller_who_wants_one_engine_gets_one() -> None:
    first, second = ScriptedEngine("a", ([ROLE], 0.1, *ANSWER)), ScriptedEngine("b")
    gateway, _ = gateway_over(first, second, policy=Policy(hedge=SOON))
    await collect(gateway, replace(CALL, alone=True))
    assert second.asked == []


async def test_no_more_than_a_share_of_the_requests_is_hedged() -> None:
    first, second = ScriptedEngine("a", ([ROLE], 0.02, *ANSWER)), ScriptedEngine("b", SILENT)
    gateway, _ = gateway_over(first, second, policy=Policy(hedge=replace(SOON, percent=5)))
    for _ in range(45):
        await collect(gateway)
    assert len(second.asked) == 2


# --- money ------------------------------------------------------------------------------------------------------------


async def test_both_cost() -> None:
    slow = ScriptedEngine("slow", SILENT)
    gateway, notebook = gateway_over(slow, ScriptedEngine("quick"), policy=Policy(hedge=SOON), prices=(PRICE,))
    usage = fold(await collect(gateway)).usage
    assert sorted(row.cost_micro_usd for row in notebook.attempts) == [1_000_000, 1_000_000]
    assert usage.cost_micro_usd is not None


async def test_a_budget_without_room_for_two_is_spent_on_one() -> None:
    first, second = ScriptedEngine("a", ([ROLE], 0.1, *ANSWER)), ScriptedEngine("b")
    policy = Policy(hedge=SOON, budgets=(Budget(usd=1.5, per="total"),))
    gateway, notebook = gateway_over(first, second, policy=policy, prices=(PRICE,))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert second.asked == []
    assert [row.outcome for row in notebook.attempts] == ["ok"]


class SlowQuota(MemoryQuota):
    """Takes its time to set aside more."""

    async def extend(self, hold: Hold, micro_usd: int) -> Hold | Refusal:
        await asyncio.sleep(0.1)
        return await super().extend(hold, micro_usd)


async def test_an_engine_that_could_not_be_paid_for_in_time_is_left_for_a_retry() -> None:
    first, second = ScriptedEngine("a", ([ROLE], 0.05, EngineFailed("a broke"))), ScriptedEngine("b")
    policy = Policy(hedge=SOON, budgets=(Budget(usd=9.0, per="total"),))
    gateway, notebook = gateway_over(first, second, policy=policy, prices=(PRICE,), quota=SlowQuota())
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.position, row.outcome) for row in notebook.attempts] == [
        ("a", 1, "absorbed"),
        ("b", 2, "ok"),
    ]


async def test_a_dead_pool_is_told_as_ever() -> None:
    engines: Sequence[ScriptedEngine] = [ScriptedEngine(name, (EngineUnavailable(f"{name} is away"),)) for name in "ab"]
    gateway, _ = gateway_over(*engines, policy=Policy(hedge=SOON))
    with pytest.raises(EngineUnavailable):
        await collect(gateway)
