"""Copies of requests for a new arm: when they go, what they cost, how they compare, and that no caller is touched."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Budget, Limits, Policy, Target
from drivetrain.errors import EngineFailed
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.shadow import alike
from drivetrain.governance import Attempt, Price, Principal
from drivetrain.rollouts.plan import Arm, Plan, Prompt, Rollout, Shadow, Stage
from drivetrain.types import Choice, Response, ToolCall, fold
from tests.fakes.engine import ANSWER, END, HELLO, ScriptedEngine, ask, gateway_over, route_to
from tests.unit.quota.counting import shared

pytestmark = pytest.mark.anyio
WHO = Principal(key_id="k", user="u", project="p", team="t", org="o")
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0, who=WHO)
NEW = (Target(engine="new", model="new-model"),)
SHADOW = Shadow(compare="exact")
ROLLOUT = Rollout(
    id="R",
    model="chat",
    arms=(Arm(name="baseline"), Arm(name="new", targets=NEW)),
    stages=(Stage(percent=0.0, shadow=True), Stage(percent=100.0)),
    shadow=SHADOW,
)
PRICE = Price(id="p", engine="new", request=1_000_000)


class House:
    """A gateway with a shadow, which is at work while it is entered."""

    def __init__(self, *, rollout: Rollout = ROLLOUT, **members: Any) -> None:
        self.old, self.new = ScriptedEngine("old"), ScriptedEngine("new")
        plan = Plan(rollouts={"chat": rollout}, prompts={"p@1": Prompt(name="p", version=1, text="Be brief.")})
        self.gateway, self.notebook = gateway_over(
            self.old, self.new, route=route_to(self.old), plan=lambda: plan, **members
        )

    async def ask(self, call: Call = CALL) -> str:
        async with aclosing(self.gateway.generate(ask(), call)) as batches:
            return fold([event async for events in batches for event in events]).choices[0].text

    def idle(self) -> bool:
        return not self.gateway.shadows.under_way("R")

    @property
    def copies(self) -> list[Attempt]:
        return [row for row in self.notebook.attempts if row.rollout.endswith(":shadow")]


@asynccontextmanager
async def at_work(gateway: Gateway) -> AsyncGenerator[None, None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(gateway.shadows.run())
        yield
        task.cancel()


async def seen(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


# --- a copy -----------------------------------------------------------------------------------------------------------


async def test_a_copy_goes_to_the_new_arm_once_the_caller_has_been_answered() -> None:
    house = House()
    assert await house.ask() == "Hello world"
    assert house.new.asked == []  # nobody is at work yet, and the caller has its answer
    async with at_work(house.gateway):
        await seen(lambda: house.notebook.comparisons)
    assert house.new.asked[0].model == "new-model"
    assert house.new.asked[0].messages == ask().messages


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_copied_before_the_last_of_the_answer_has_gone_to_the_caller(stream: bool) -> None:
    house = House()
    async with aclosing(house.gateway.generate(ask(stream=stream), CALL)) as batches:
        assert [house.idle() async for _ in batches].count(False) == 0
    assert not house.idle()


async def test_its_row_is_charged_to_nobody_and_counts_as_no_request() -> None:
    house = House(prices=(PRICE,))
    await house.ask()
    async with at_work(house.gateway):
        await seen(lambda: house.copies)
    row = house.copies[0]
    assert (row.request_id, row.rollout, row.model, row.final) == ("req_1", "R:new:shadow", "shadow:R", False)
    assert (row.key_id, row.user_id, row.project_id, row.team_id, row.org_id) == ("", "", "", "", "")
    assert (row.cost_micro_usd, row.position) == (1_000_000, 1001)
    assert [other.rollout for other in house.notebook.attempts if other is not row] == ["R:baseline"]
    assert house.notebook.answering == 0


async def test_the_two_answers_are_compared() -> None:
    house = House()
    house.new.play(([HELLO], END))
    await house.ask()
    house.new.play(ANSWER)
    async with at_work(house.gateway):
        await seen(lambda: house.notebook.comparisons)
        await house.ask()
        house.new.play(([HELLO], END))
        await seen(lambda: len(house.notebook.comparisons) == 2)
    first = house.notebook.comparisons[0]
    assert (first.request_id, first.rollout, first.arm, first.how, first.value) == ("req_1", "R", "new", "exact", 1.0)
    assert first.first_token_s is not None
    assert first.baseline_first_token_s == house.notebook.attempts[0].first_token_s
    assert first.baseline_total_s == house.notebook.attempts[0].total_s


async def test_a_copy_that_fails_is_on_record_and_compared_with_nothing() -> None:
    house = House()
    house.new.play((EngineFailed("new broke"),))
    async with at_work(house.gateway):
        assert await house.ask() == "Hello world"
        await seen(lambda: house.copies)
        await seen(house.idle)
    assert [row.outcome for row in house.copies] == ["error"]
    assert house.notebook.comparisons == []
    assert len(house.new.asked) == 1  # it is not tried again


async def test_the_arms_prompt_goes_with_it() -> None:
    arms = (ROLLOUT.arms[0], Arm(name="new", prompt="p@1", parameters={"temperature": 0.5}))
    house = House(rollout=replace(ROLLOUT, arms=arms))
    async with at_work(house.gateway):
        await house.ask()
        await seen(lambda: house.copies)
    copied = house.old.asked[1]
    assert (copied.messages[0].text, copied.sampling.temperature) == ("Be brief.", 0.5)
    assert house.copies[0].prompt_version == "p@1"


# --- when there is none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rollout",
    [
        replace(ROLLOUT, shadow=None),
        replace(ROLLOUT, state="paused"),
        replace(ROLLOUT, stage=1),
        replace(ROLLOUT, shadow=replace(SHADOW, percent=0.0)),
        replace(ROLLOUT, shadow=replace(SHADOW, concurrency=0)),
    ],
    ids=["none", "paused", "a later stage", "no share", "no room"],
)
async def test_nothing_is_copied_unless_the_stage_says_so(rollout: Rollout) -> None:
    house = House(rollout=rollout)
    async with at_work(house.gateway):
        await house.ask()
    assert house.copies == []
    assert not house.gateway.shadows.under_way("R")


async def test_an_answer_that_broke_off_has_no_copy() -> None:
    house = House()
    house.old.play(([HELLO], EngineFailed("old broke")))
    with pytest.raises(EngineFailed):
        await house.ask()
    assert not house.gateway.shadows.under_way("R")


async def test_no_more_are_under_way_at_once_than_it_says() -> None:
    house = House(rollout=replace(ROLLOUT, shadow=replace(SHADOW, concurrency=2)))
    for _ in range(5):
        await house.ask()
    assert house.gateway.shadows.under_way("R") == 2
    async with at_work(house.gateway):
        await seen(house.idle)
    assert len(house.copies) == 2


# --- its own budget ---------------------------------------------------------------------------------------------------


async def test_copies_end_when_their_budget_is_used_up_and_callers_go_on() -> None:
    house = House(rollout=replace(ROLLOUT, shadow=replace(SHADOW, usd=2.5)), prices=(PRICE,))
    async with at_work(house.gateway):
        for _ in range(4):
            assert await house.ask() == "Hello world"
            await seen(house.idle)
    assert len(house.copies) == 2


# Of several processes that count together, as replicas do in Redis.


@asynccontextmanager
async def replicas(url: str, shadow: Shadow) -> AsyncGenerator[Sequence[House], None]:
    async with AsyncExitStack() as stack:
        quotas = [await stack.enter_async_context(shared(url)) for _ in range(2)]
        yield [House(rollout=replace(ROLLOUT, shadow=shadow), prices=(PRICE,), quota=each) for each in quotas]


async def test_the_budget_is_one_for_all_replicas(redis_url: str) -> None:
    async with replicas(redis_url, replace(SHADOW, usd=3.5)) as houses, AsyncExitStack() as stack:
        for house in houses:
            await stack.enter_async_context(at_work(house.gateway))
        for number in range(8):
            house = houses[number % 2]
            assert await house.ask() == "Hello world"
            await seen(house.idle)
        assert [len(house.copies) for house in houses] == [2, 1]


async def test_so_many_are_under_way_at_once_at_all_replicas_together_and_the_others_are_dropped(
    redis_url: str,
) -> None:
    async with replicas(redis_url, replace(SHADOW, concurrency=1)) as [first, second]:
        first.new.play(([HELLO], 60.0, END))  # it takes its time
        async with at_work(first.gateway), at_work(second.gateway):
            await first.ask()
            await seen(lambda: first.new.asked)
            await second.ask()
            await seen(second.idle)
            assert (len(second.new.asked), second.copies, second.notebook.refusals) == (0, [], [])


async def test_limits_and_budgets_of_the_policy_are_not_touched() -> None:
    policy = Policy(limits=Limits(requests_per_minute=2), budgets=(Budget(usd=1e-6, per="total"),))
    house = House(policy=policy, prices=(PRICE,))
    async with at_work(house.gateway):
        for _ in range(2):
            await house.ask()
            await seen(house.idle)
    assert len(house.copies) == 2


async def test_the_budget_of_retries_is_not_touched() -> None:
    house = House()
    house.new.play((EngineFailed("new broke"),))
    rule = house.gateway.catalog.resolve("chat").policy.retries
    async with at_work(house.gateway):
        await house.ask()
        await seen(lambda: house.copies)
    assert house.gateway.retries.left("chat", rule) == rule.least


# --- how much two answers have in common ------------------------------------------------------------------------------


def said(text: str = "", *calls: tuple[str, str]) -> Response:
    tools = tuple(ToolCall(id=str(id(call)), name=call[0], arguments=call[1]) for call in calls)
    return Response(choices=(Choice(index=0, text=text, tool_calls=tools),))


@pytest.mark.parametrize(
    ("how", "one", "other", "value"),
    [
        ("exact", said("Yes. "), said("Yes."), 1.0),
        ("exact", said("Yes."), said("yes."), 0.0),
        ("exact", said("", ("f", '{"a":1}')), said("", ("f", '{ "a": 1 }')), 1.0),
        ("json", said('{"a":1,"b":2}'), said('```json\n{"b": 2, "a": 1}\n```'), 1.0),
        ("json", said('{"a":1}'), said('{"a":2}'), 0.0),
        ("json", said("no"), said("no"), 0.0),
        ("json", said("", ("f", "{}")), said("", ("f", "{ }")), 1.0),
        ("similarity", said("the cat sat"), said("the cat sat"), 1.0),
        ("similarity", said("the cat sat"), said("The Cat sat"), 1.0),
        ("similarity", said("the cat sat"), said("the cat ran"), 0.6),
        ("similarity", said("the cat sat"), said("no idea"), 0.0),
        ("similarity", said(""), said(""), 1.0),
    ],
)
def test_what_counts_as_alike(how: Any, one: Response, other: Response, value: float) -> None:
    assert alike(how, one, other) == pytest.approx(value)
    assert alike(how, other, one) == pytest.approx(value)
