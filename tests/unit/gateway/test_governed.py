"""What keys, policies and prices do to a request: who is let in, what is set aside, what is charged, what is told."""

import asyncio
from contextlib import aclosing

import pytest

from drivetrain.config.schema import Budget, Limits, Policy, Route, Target, Timeouts
from drivetrain.errors import BadRequest, BudgetExceeded, EngineFailed, EngineUnavailable, Forbidden, RateLimited
from drivetrain.gateway import Call, Gateway, Receipt
from drivetrain.governance import Price, Principal, Rule
from drivetrain.types import Embeddings, EmbedRequest, Event, Finished, Model, Opaque, Request, Usage
from tests.fakes.engine import END, HELLO, WORLD, ScriptedEngine, ask, gateway_over, route_to

pytestmark = pytest.mark.anyio
CENT = 10_000  # micro-dollars
PER_MILLION = Price(id="p1", input=2_000_000, output=10_000_000)  # $2 and $10
A_CENT_EACH = Price(id="p2", request=CENT)


def call(who: Principal | None = None, receipt: Receipt | None = None) -> Call:
    return Call(
        id="req_1",
        dialect="openai.chat",
        received_s=0.0,
        who=who or Principal(key_id="K1"),
        receipt=receipt or Receipt(),
    )


async def collect(gateway: Gateway, asked: Call | None = None, request: Request | None = None) -> list[Event]:
    async with aclosing(gateway.generate(request or ask(), asked or call())) as batches:
        return [event async for events in batches for event in events]


def budget(amount: int, *, model: str | None = None) -> Rule:
    return Rule(id=f"key:K1:{model}", owner="key 'ci'", resource="money", amount=amount, per="total", model=model)


# --- what it costs ----------------------------------------------------------------------------------------------------


async def test_an_answer_is_charged_by_the_price_of_the_engine_that_gave_it() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a"), prices=[PER_MILLION])
    await collect(gateway)
    (row,) = notebook.attempts
    assert (row.cost_micro_usd, row.price_id, row.key_id) == (5 * 2 + 2 * 10, "p1", "K1")


async def test_the_end_of_an_answer_tells_what_the_whole_request_cost() -> None:
    receipt = Receipt()
    gateway, _ = gateway_over(ScriptedEngine("a", ([HELLO], END)), prices=[Price(id="p", request=7, output=1_000_000)])
    end = (await collect(gateway, call(receipt=receipt)))[-1]
    assert isinstance(end, Finished)
    assert end.usage.cost_micro_usd == 9
    assert receipt.cost_micro_usd == 9


async def test_the_ledger_says_what_the_caller_was_told_though_time_has_a_price_and_went_on() -> None:
    price = Price(id="p", second=3600 * 100 * CENT)
    gateway, notebook = gateway_over(ScriptedEngine("a", ([HELLO], END, 0.02)), prices=[price])
    end = (await collect(gateway))[-1]
    assert isinstance(end, Finished)
    assert end.usage.cost_micro_usd == notebook.attempts[0].cost_micro_usd > 0


async def test_without_a_price_nothing_is_said_of_cost() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a"))
    end = (await collect(gateway))[-1]
    assert isinstance(end, Finished)
    assert end.usage.cost_micro_usd is None
    assert (notebook.attempts[0].cost_micro_usd, notebook.attempts[0].price_id) == (0, "")


async def test_an_attempt_that_gave_nothing_costs_nothing() -> None:
    gateway, notebook = gateway_over(
        ScriptedEngine("a", (EngineUnavailable("away"),)), ScriptedEngine("b"), prices=[A_CENT_EACH]
    )
    await collect(gateway)
    assert [(row.engine, row.cost_micro_usd, row.final) for row in notebook.attempts] == [
        ("a", 0, False),
        ("b", CENT, True),
    ]


async def test_an_explicit_zero_of_the_engine_is_charged_as_zero() -> None:
    nothing = Finished(usage=Usage(prompt=0, completion=0))
    gateway, notebook = gateway_over(ScriptedEngine("a", ([HELLO], [nothing])), prices=[PER_MILLION])
    await collect(gateway)
    assert (notebook.attempts[0].cost_micro_usd, notebook.attempts[0].usage_estimated) == (0, False)


@pytest.mark.parametrize(
    ("on_disconnect", "cost", "why"),
    [("estimate", 10 * 2 + 2 * 10, "cancelled"), ("free", 0, "cancelled, not charged")],
)
async def test_a_caller_who_leaves_is_charged_as_the_policy_says(on_disconnect: str, cost: int, why: str) -> None:
    engine = ScriptedEngine("a", ([HELLO], [WORLD], 60.0, END))
    policy = Policy(on_disconnect="free" if on_disconnect == "free" else "estimate")
    gateway, notebook = gateway_over(engine, policy=policy, prices=[PER_MILLION])
    async with aclosing(gateway.generate(ask("x" * 40), call())) as batches:
        async for events in batches:
            if WORLD in events:
                break
    (row,) = notebook.attempts
    assert (row.outcome, row.cost_micro_usd, row.why, row.completion_tokens) == ("cancelled", cost, why, 2)


async def test_a_drained_answer_is_read_to_its_end_for_the_true_usage() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.01, [WORLD], 0.01, END))
    gateway, notebook = gateway_over(engine, policy=Policy(on_disconnect="drain"), prices=[PER_MILLION])
    async with aclosing(gateway.generate(ask(), call())) as batches:
        async for _ in batches:
            break
    while not notebook.attempts:
        await asyncio.sleep(0.001)
    (row,) = notebook.attempts
    assert (row.outcome, row.why, row.usage_estimated, row.cost_micro_usd) == ("cancelled", "drained", False, 30)
    assert engine.closed == 0
    assert notebook.answering == 0


async def test_a_request_whose_caller_leaves_before_an_engine_was_asked_is_not_drained() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.05, END))
    gateway, notebook = gateway_over(engine, policy=Policy(on_disconnect="drain", limits=Limits(concurrency=1)))
    first = asyncio.create_task(collect(gateway))
    while not engine.asked:
        await asyncio.sleep(0)
    waiting = asyncio.create_task(collect(gateway))
    while not notebook.queued:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await first
    await gateway.cut()
    assert len(engine.asked) == 1
    assert [row.outcome for row in notebook.attempts] == ["cancelled", "ok"]
    assert (notebook.queued, notebook.answering) == (0, 0)


async def test_for_a_caller_who_has_left_nothing_is_tried_again() -> None:
    broken, spare = ScriptedEngine("a", ([Opaque(raw=b"role")], 0.05, EngineFailed("a broke"))), ScriptedEngine("b")
    gateway, notebook = gateway_over(broken, spare, policy=Policy(on_disconnect="drain"))
    asking = asyncio.create_task(collect(gateway))
    while not broken.asked:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while not notebook.attempts:
        await asyncio.sleep(0.001)
    assert [(row.engine, row.outcome, row.final) for row in notebook.attempts] == [("a", "error", True)]
    assert spare.asked == []


async def test_what_is_drained_is_cut_at_the_end_though_its_reader_takes_nothing() -> None:
    engine = ScriptedEngine("a", [[HELLO]] * 100)
    gateway, notebook = gateway_over(engine, policy=Policy(on_disconnect="drain"))
    batches = gateway.generate(ask(), call())
    await anext(batches)
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.wait_for(gateway.cut(), 5)
    assert [row.outcome for row in notebook.attempts] == ["cancelled"]
    assert notebook.answering == 0
    await batches.aclose()


# --- budgets and limits -----------------------------------------------------------------------------------------------


async def test_two_hundred_at_once_spend_exactly_their_budget() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.01, END))
    gateway, notebook = gateway_over(engine, prices=[A_CENT_EACH])
    who = Principal(key_id="K1", rules=(budget(100 * CENT),))
    answers = await asyncio.gather(*(collect(gateway, call(who)) for _ in range(200)), return_exceptions=True)
    assert sum(row.cost_micro_usd for row in notebook.attempts) == 100 * CENT
    assert [type(answer) for answer in answers].count(BudgetExceeded) == 100
    assert len(engine.asked) == 100


async def test_what_was_set_aside_and_not_used_can_be_spent_by_the_next() -> None:
    price = Price(id="p", output=1_000_000)  # a micro-dollar per token; a request sets 1024 aside, and takes 2
    gateway, notebook = gateway_over(ScriptedEngine("a"), prices=[price])
    who = Principal(key_id="K1", rules=(budget(1030),))
    for _ in range(3):
        await collect(gateway, call(who))
    assert [row.reserved_micro_usd for row in notebook.attempts] == [1024] * 3
    with pytest.raises(BudgetExceeded):
        for _ in range(2):
            await collect(gateway, call(who))


async def test_a_refusal_is_on_record_and_names_whose_limit_it_was() -> None:
    receipt = Receipt()
    limit = Rule(id="key:K1:L1", owner="key 'ci'", resource="requests", amount=1, per="minute")
    gateway, notebook = gateway_over(ScriptedEngine("a"))
    who = Principal(key_id="K1", rules=(limit,))
    await collect(gateway, call(who))
    with pytest.raises(RateLimited, match="key 'ci' allows 1 requests per minute"):
        await collect(gateway, call(who, receipt))
    assert [(row.outcome, row.status) for row in notebook.attempts] == [("ok", 200), ("rejected", 429)]
    assert [(standing.rule.id, standing.remaining) for standing in receipt.standings] == [("key:K1:L1", 0)]


async def test_tokens_are_counted_by_what_an_answer_took() -> None:
    engine = ScriptedEngine("a", ([HELLO], [Finished(usage=Usage(prompt=400, completion=100))]))
    policy = Policy(limits=Limits(tokens_per_minute=1000), reserve_output_tokens=1)
    gateway, _ = gateway_over(engine, policy=policy)
    await collect(gateway)
    await collect(gateway)
    with pytest.raises(RateLimited, match="1000 tokens per minute"):
        await collect(gateway)


async def test_answers_that_never_came_do_not_shorten_the_time_that_is_set_aside() -> None:
    price = Price(id="p", second=CENT)
    gateway, notebook = gateway_over(ScriptedEngine("a", (BadRequest("no such parameter"),)), prices=[price])
    who = Principal(key_id="K1", rules=(budget(1000 * CENT),))
    for _ in range(2):
        with pytest.raises(BadRequest):
            await collect(gateway, call(who))
    assert [row.reserved_micro_usd for row in notebook.attempts] == [60 * CENT] * 2


async def test_a_soft_budget_lets_everybody_in() -> None:
    soft = Policy(budgets=(Budget(usd=0.01, per="day", hard=False),))
    gateway, notebook = gateway_over(ScriptedEngine("a"), policy=soft, prices=[A_CENT_EACH])
    for _ in range(3):
        await collect(gateway)
    assert sum(row.cost_micro_usd for row in notebook.attempts) == 3 * CENT


async def test_a_rule_for_one_model_does_not_count_another() -> None:
    a, b = ScriptedEngine("a"), ScriptedEngine("b")
    gateway, _ = gateway_over(a, b, routes={"chat": route_to(a), "other": route_to(b)}, prices=[A_CENT_EACH])
    who = Principal(key_id="K1", rules=(budget(CENT, model="other"),))
    for _ in range(3):
        await collect(gateway, call(who))
    await collect(gateway, call(who), ask(model="other"))
    with pytest.raises(BudgetExceeded):
        await collect(gateway, call(who), ask(model="other"))


# --- who may use what -------------------------------------------------------------------------------------------------


async def test_a_key_reaches_only_the_models_that_it_may_use() -> None:
    gateway, notebook = gateway_over(ScriptedEngine("a"))
    with pytest.raises(Forbidden, match="may not use model 'chat'"):
        await collect(gateway, call(Principal(key_id="K1", models=("other*",))))
    assert [(row.outcome, row.status, row.key_id) for row in notebook.attempts] == [("rejected", 403, "K1")]


async def test_a_fallback_never_reaches_a_model_that_the_key_may_not_use() -> None:
    broken, spare = ScriptedEngine("a", (EngineFailed("a broke"),)), ScriptedEngine("b")
    gateway, _ = gateway_over(
        broken, spare, routes={"chat": route_to(broken, fallbacks=["secret"]), "secret": route_to(spare)}
    )
    with pytest.raises(EngineFailed, match="a broke"):
        await collect(gateway, call(Principal(key_id="K1", models=("chat",))))
    assert spare.asked == []


async def test_a_fallback_is_charged_at_its_own_price() -> None:
    broken, spare = ScriptedEngine("a", (EngineFailed("a broke"),)), ScriptedEngine("b")
    gateway, notebook = gateway_over(
        broken,
        spare,
        routes={"chat": route_to(broken, fallbacks=["spare"]), "spare": route_to(spare)},
        prices=[Price(id="cheap", engine="a", request=1), Price(id="dear", engine="b", request=CENT)],
    )
    await collect(gateway)
    assert [(row.engine, row.price_id, row.cost_micro_usd) for row in notebook.attempts] == [
        ("a", "", 0),
        ("b", "dear", CENT),
    ]


async def test_a_fallback_that_the_budget_does_not_cover_is_not_tried() -> None:
    broken, spare = ScriptedEngine("a", (EngineFailed("a broke"),)), ScriptedEngine("b")
    gateway, notebook = gateway_over(
        broken,
        spare,
        prices=[Price(id="cheap", engine="a", request=1), Price(id="dear", engine="b", request=CENT)],
    )
    with pytest.raises(EngineFailed, match="a broke"):
        await collect(gateway, call(Principal(key_id="K1", rules=(budget(100),))))
    assert spare.asked == []
    assert [(row.outcome, row.status) for row in notebook.attempts] == [("absorbed", 502), ("rejected", 402)]
    assert notebook.refusals == ["money"]


async def test_a_request_stays_one_when_a_fallback_answers_it() -> None:
    receipt = Receipt()
    broken, spare = ScriptedEngine("a", (EngineFailed("a broke"),)), ScriptedEngine("b")
    gateway, notebook = gateway_over(
        broken, spare, routes={"chat": route_to(broken, fallbacks=["spare"]), "spare": route_to(spare)}
    )
    once = Rule(id="key:K1:L1", owner="key 'ci'", resource="requests", amount=1, per="minute")
    alone = Rule(id="key:K1:L2", owner="key 'ci'", resource="concurrency", amount=1)
    asked = call(Principal(key_id="K1", rules=(once, alone)), receipt)
    assert HELLO in await asyncio.wait_for(collect(gateway, asked), 5)
    assert [(row.engine, row.model, row.outcome) for row in notebook.attempts] == [
        ("a", "chat", "absorbed"),
        ("b", "spare", "ok"),
    ]
    assert [(standing.rule.id, standing.remaining) for standing in receipt.standings] == [("key:K1:L1", 0)]
    with pytest.raises(RateLimited):
        await collect(gateway, asked)


async def test_what_fallbacks_count_is_found_though_one_of_them_has_gone() -> None:
    a, b = ScriptedEngine("a"), ScriptedEngine("b")
    routes = {"chat": route_to(a, fallbacks=["gone", "spare"]), "spare": route_to(b)}
    gateway, _ = gateway_over(a, b, routes=routes)
    entry = gateway.catalog.resolve("chat")
    assert not gateway.limited(entry, Principal(key_id="K1"))
    assert gateway.limited(entry, Principal(key_id="K1", rules=(budget(CENT, model="spare"),)))


@pytest.mark.parametrize("limit", [None, "Phi"])
async def test_nobody_gets_a_limit_of_his_own_by_another_spelling(limit: str | None) -> None:
    engine = ScriptedEngine("a")
    policy = Policy() if limit else Policy(limits=Limits(requests_per_minute=1))
    gateway, notebook = gateway_over(engine, policy=policy)
    gateway.pool.members["a"].models = (Model(id="phi:latest"),)
    own = Rule(id="key:K1:L1", owner="key 'ci'", resource="requests", amount=1, per="minute", model=limit)
    who = Principal(key_id="K1", rules=(own,) if limit else ())
    await collect(gateway, call(who), ask(model="phi"))
    with pytest.raises(RateLimited):
        await collect(gateway, call(who), ask(model="PHI:latest"))
    assert notebook.attempts[0].model == "phi:latest"


@pytest.mark.parametrize(
    ("version", "digest", "told"),
    [("", "", ""), ("", "sha256:" + "0123456789ab" * 5 + "cdef", "0123456789ab"), ("v2", "ab" * 32, "v2")],
)
async def test_a_row_tells_the_version_of_the_model_as_configured_or_as_its_digest_begins(
    version: str, digest: str, told: str
) -> None:
    engine = ScriptedEngine("a")
    route = Route(targets=(Target(engine="a", model="phi:latest", version=version),))
    gateway, notebook = gateway_over(engine, route=route)
    gateway.pool.members["a"].models = (Model(id="phi:latest", digest=digest),)
    await collect(gateway)
    assert [row.model_version for row in notebook.attempts] == [told]


# --- lines ------------------------------------------------------------------------------------------------------------


async def test_who_came_first_is_served_first_and_nobody_overtakes() -> None:
    engine = ScriptedEngine("a", ([HELLO], 0.005, END))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=1)))
    names = [f"caller {number}" for number in range(8)]
    tasks = []
    for name in names:
        tasks.append(asyncio.create_task(collect(gateway, request=ask(name))))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert [request.messages[0].text for request in engine.asked] == names
    assert notebook.queued == 0
    assert [row.queued_s > 0 for row in notebook.attempts] == [False] + [True] * 7


async def test_the_key_and_the_policy_both_limit_how_many_run_at_once() -> None:
    engine = ScriptedEngine("a", ([HELLO], 60.0, END))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=3)))
    own = Rule(id="key:K1:L1", owner="key 'ci'", resource="concurrency", amount=1)
    tasks = [asyncio.create_task(collect(gateway, call(Principal(key_id="K1", rules=(own,))))) for _ in range(3)]
    tasks += [asyncio.create_task(collect(gateway, call(Principal(key_id="K2")))) for _ in range(3)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert (len(engine.asked), notebook.queued) == (3, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (notebook.queued, notebook.answering) == (0, 0)
    engine.play(([HELLO], END))
    await collect(gateway, call(Principal(key_id="K1", rules=(own,))))


# --- what the caller is told ------------------------------------------------------------------------------------------


async def test_the_receipt_tells_which_engine_answered_after_how_many_attempts() -> None:
    receipt = Receipt()
    gateway, _ = gateway_over(ScriptedEngine("a", (EngineUnavailable("away"),)), ScriptedEngine("b"))
    await collect(gateway, call(receipt=receipt))
    assert (receipt.engine, receipt.model, receipt.attempts) == ("b", "b-model", 2)


async def test_an_engine_is_asked_under_the_callers_trace() -> None:
    from drivetrain.gateway import Trace

    engine = ScriptedEngine("a")
    gateway, notebook = gateway_over(engine)
    traced = Call(
        id="req_1", dialect="openai.chat", received_s=0.0, trace=Trace(id="ab" * 16, parent="cd" * 8, sampled=True)
    )
    await collect(gateway, traced)
    (row,) = notebook.attempts
    assert engine.asked[0].traceparent == f"00-{'ab' * 16}-{row.span_id}-01"
    assert (row.trace_id, row.parent_span_id) == ("ab" * 16, "cd" * 8)


async def test_an_engine_is_connected_to_within_the_policys_time() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=Policy(timeouts=Timeouts(connect_s=0.5)))
    await collect(gateway)
    assert engine.asked[0].connect_s == 0.5


async def test_so_it_is_for_embeddings() -> None:
    class Embedder(ScriptedEngine):
        wanted: EmbedRequest

        async def embed(self, request: EmbedRequest) -> Embeddings:
            self.wanted = request
            return Embeddings(vectors=((1.0,),), usage=Usage(prompt=1))

    engine = Embedder("a")
    gateway, _ = gateway_over(engine, policy=Policy(timeouts=Timeouts(connect_s=0.5)))
    await gateway.embed(EmbedRequest(model="chat", inputs=("Hi",)), call())
    assert engine.wanted.connect_s == 0.5
