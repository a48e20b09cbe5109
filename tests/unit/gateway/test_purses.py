"""A hard budget is not overspent by answers that turn out longer than their requests let expect."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from drivetrain.config.schema import Policy
from drivetrain.errors import BudgetExceeded
from drivetrain.gateway import Call, Gateway, Receipt
from drivetrain.governance import Attempt, Price, Principal, Rule
from drivetrain.types import ChoiceFinished, Event, Finished, Request, Sampling, TextDelta, Usage
from tests.fakes.engine import ScriptedEngine, ask, gateway_over

pytestmark = pytest.mark.anyio
CUT = BudgetExceeded.code
A_CENT_A_TOKEN = Price(id="p", output=10_000 * 1_000_000)
CENT = 10_000
END: Sequence[Event] = [ChoiceFinished(reason="stop"), Finished(usage=Usage(prompt=3, completion=100))]


def engine(words: int = 100) -> ScriptedEngine:
    """Says so many words, and others get their turn in between."""
    return ScriptedEngine(
        "a", (*(step for number in range(words) for step in ([TextDelta(text=f"{number} ")], 0.0)), END)
    )


def budget(cents: int, *, hard: bool = True) -> Rule:
    return Rule(id="key:K1:B1", owner="key 'ci'", resource="money", amount=cents * CENT, per="total", hard=hard)


def call(*rules: Rule) -> Call:
    who = Principal(key_id="K1", rules=rules)
    return Call(id="req_1", dialect="openai.chat", received_s=0.0, who=who, receipt=Receipt())


async def collect(gateway: Gateway, asked: Call, request: Request) -> Sequence[Event]:
    async with aclosing(gateway.generate(request, asked)) as batches:
        return [event async for events in batches for event in events]


async def answered(words: int, rule: Rule, reserved: int) -> tuple[Sequence[Event], Attempt]:
    gateway, notebook = gateway_over(
        engine(words), policy=Policy(reserve_output_tokens=reserved), prices=[A_CENT_A_TOKEN]
    )
    events = await collect(gateway, call(rule), ask())
    (row,) = notebook.attempts
    return events, row


@pytest.mark.parametrize("reserved", [1, 7, 40])
async def test_an_answer_ends_where_the_budget_does(reserved: int) -> None:
    events, row = await answered(100, budget(40), reserved)
    assert sum(isinstance(event, TextDelta) for event in events) == 40
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["length"]
    assert (row.outcome, row.why, row.usage_estimated, row.cost_micro_usd) == ("ok", CUT, True, 40 * CENT)


async def test_an_answer_that_the_budget_covers_goes_on_beyond_what_was_expected() -> None:
    events, row = await answered(100, budget(150), 10)
    assert events[-2:] == [END[0], events[-1]]
    assert (row.completion_tokens, row.cost_micro_usd, row.usage_estimated) == (100, 100 * CENT, False)


async def test_answers_at_once_share_what_there_is() -> None:
    source, rule = engine(), budget(150)
    gateway, notebook = gateway_over(source, policy=Policy(reserve_output_tokens=5), prices=[A_CENT_A_TOKEN])
    await asyncio.gather(*(collect(gateway, call(rule), ask()) for _ in range(3)))
    assert sum(row.cost_micro_usd for row in notebook.attempts) <= rule.amount
    assert sum(row.cost_micro_usd for row in notebook.attempts) > rule.amount - 15 * CENT
    assert source.closed >= 2


async def test_a_soft_budget_cuts_nobody_off() -> None:
    _, row = await answered(100, budget(40, hard=False), 10)
    assert (row.completion_tokens, row.why == CUT) == (100, False)


async def test_an_answer_that_keeps_to_the_limit_that_was_named_ends_by_itself() -> None:
    gateway, notebook = gateway_over(engine(39), policy=Policy(), prices=[A_CENT_A_TOKEN])
    request = ask()
    request = type(request)(model=request.model, messages=request.messages, sampling=Sampling(max_tokens=40))
    events = await collect(gateway, call(budget(40)), request)
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["stop"]
    assert notebook.attempts[0].outcome == "ok"


async def test_time_that_has_a_price_is_set_aside_too() -> None:
    steps = [step for number in range(400) for step in ([TextDelta(text=f"{number} ")], 0.001)]
    source = ScriptedEngine("a", (*steps, END))
    by_time = Price(id="t", second=1_000_000)  # a dollar a second: far more than the first expectation covers
    gateway, notebook = gateway_over(source, policy=Policy(), prices=[by_time])
    rule = Rule(id="key:K1:B1", owner="key 'ci'", resource="money", amount=60_100_000, per="total")
    events = await collect(gateway, call(rule), ask())
    assert [event.reason for event in events if isinstance(event, ChoiceFinished)] == ["stop"]
    assert notebook.attempts[0].cost_micro_usd < rule.amount
