"""What the terms of a key, and of all above it, do to its requests: stricter for it, and for nobody else."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Limits, Policy, Queue, Reserved, Timeouts
from drivetrain.errors import Busy, ConnectTimeout, DeadlineExceeded, EngineTimeout, EngineUnavailable, RateLimited
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.deadline import Deadline, deadlines, unconnected
from drivetrain.gateway.terms import MOST, Policies
from drivetrain.governance import Price, Principal, Said, Terms
from drivetrain.policies.terms import own
from drivetrain.types import Embeddings, EmbedRequest, Event, TextDelta
from tests.fakes.engine import END, HELLO, WORLD, Notebook, ScriptedEngine, ask, gateway_over, route_to

pytestmark = pytest.mark.anyio
LONG = 60.0
PER_MILLION = Price(id="p1", input=2_000_000, output=10_000_000)
ONE_SLOT = Policy(limits=Limits(concurrency=1), queue=Queue(reserved=Reserved(default=0)))


def said(owner: str, terms: Terms) -> Said:
    kind, name = owner.split()
    return Said(id=f"{kind}:{name}", owner=f"{kind} {name!r}", terms=terms)


def caller(*chain: tuple[str, Terms], key: str = "K1") -> Call:
    who = Principal(key_id=key, terms=tuple(said(*each) for each in chain))
    return Call(id="req_1", dialect="openai.chat", received_s=0.0, who=who)


OTHER = caller(key="K2")


async def collect(gateway: Gateway, call: Call, model: str = "chat") -> list[Event]:
    async with aclosing(gateway.generate(ask(model=model), call)) as batches:
        return [event async for events in batches for event in events]


async def until_quiet(turns: int = 50) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


# --- times ------------------------------------------------------------------------------------------------------------


async def test_a_key_that_waits_less_long_for_a_first_token_is_told_so_and_no_other_engine_is_asked() -> None:
    slow, spare = ScriptedEngine("a", (LONG,)), ScriptedEngine("b")
    gateway, notebook = gateway_over(slow, spare)
    with pytest.raises(DeadlineExceeded) as told:
        await collect(gateway, caller(("key ci", Terms(first_token_s=0.05))))
    assert told.value.status == 504
    assert told.value.message == (
        "the 0.05 s that first_token_s of key 'ci' allows are over; engine 'a' was asked and has not begun"
    )
    assert (slow.closed, spare.asked) == (1, [])
    assert [(row.outcome, row.why) for row in notebook.attempts] == [("error", "deadline_exceeded")]


async def test_an_impatient_key_does_not_set_an_engine_aside_for_the_others() -> None:
    engine = ScriptedEngine("a", (LONG,))
    gateway, _ = gateway_over(engine)
    for _ in range(gateway.config.breaker.failures + 1):
        with pytest.raises(DeadlineExceeded):
            await collect(gateway, caller(("key ci", Terms(first_token_s=0.01))))
    assert gateway.pool.members["a"].standing("a-model").able
    engine.play(([HELLO], END))
    assert HELLO in await collect(gateway, OTHER)


async def test_a_policy_that_waits_less_long_than_the_key_blames_the_engine_and_asks_another() -> None:
    slow, spare = ScriptedEngine("a", (LONG,)), ScriptedEngine("b", ([WORLD], END))
    gateway, notebook = gateway_over(slow, spare, policy=Policy(timeouts=Timeouts(first_token_s=0.05)))
    assert WORLD in await collect(gateway, caller(("key ci", Terms(first_token_s=30.0))))
    assert notebook.attempts[0].why == EngineTimeout.code


async def test_silence_is_borne_as_long_as_the_strictest_owner_says() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", ([HELLO], LONG, END)))
    heard: list[Event] = []
    with pytest.raises(DeadlineExceeded) as told:
        async with aclosing(
            gateway.generate(ask(), caller(("key ci", Terms(idle_s=LONG)), ("team t", Terms(idle_s=0.05))))
        ) as batches:
            async for events in batches:
                heard += events
    assert heard == [HELLO]
    assert told.value.message == (
        "the 0.05 s that idle_s of team 't' allows are over; engine 'a' was asked and has not finished"
    )


async def test_the_whole_time_of_a_key_ends_an_answer_that_is_still_being_written() -> None:
    script = [step for _ in range(1000) for step in ([WORLD], 0.01)]
    gateway, _ = gateway_over(ScriptedEngine("a", script))
    with pytest.raises(DeadlineExceeded, match=r"the 0\.1 s that total_s of org 'acme' allows are over"):
        await collect(gateway, caller(("org acme", Terms(total_s=0.1))))


def test_the_whole_time_of_a_key_is_told_apart_from_the_policys_and_the_callers() -> None:
    keys = Deadline(at_s=1005.0, limit_s=5.0, source="total_s of key 'ci'")
    found = deadlines(OTHER, 1000.0, 5.0, stream=True, whose="total_s of key 'ci'")
    assert (found.whole, found.first) == (keys, keys)
    hurried = deadlines(replace(OTHER, timeout_s=2.0), 1000.0, 5.0, stream=True, whose="total_s of key 'ci'")
    assert hurried.whole == Deadline(at_s=1002.0, limit_s=2.0, source="x-drivetrain-timeout-ms")
    assert found.within(1001.0, 1.0, "total_s of team 't'").first.source == "total_s of team 't'"


async def test_a_fallback_is_under_its_own_policy_and_the_same_terms() -> None:
    routes = {"chat": route_to(ScriptedEngine("a"), fallbacks=["spare"]), "spare": route_to(ScriptedEngine("b"))}
    broken, slow = ScriptedEngine("a", (EngineUnavailable("a is away"),)), ScriptedEngine("b", (LONG,))
    gateway, notebook = gateway_over(broken, slow, routes=routes)
    with pytest.raises(DeadlineExceeded, match="first_token_s of key 'ci'"):
        await collect(gateway, caller(("key ci", Terms(first_token_s=0.05))))
    assert [(row.engine, row.outcome) for row in notebook.attempts] == [("a", "absorbed"), ("b", "error")]


class SlowVectors(ScriptedEngine):
    async def embed(self, request: EmbedRequest) -> Embeddings:
        await asyncio.sleep(LONG)
        raise AssertionError("nobody waits so long")


async def test_vectors_are_waited_for_as_long_as_for_a_first_token() -> None:
    gateway, _ = gateway_over(SlowVectors("a"))
    asked = EmbedRequest(model="chat", inputs=("a",))
    with pytest.raises(DeadlineExceeded, match=r"the 0\.05 s that first_token_s of key 'ci' allows are over"):
        await gateway.embed(asked, caller(("key ci", Terms(first_token_s=0.05))))


# --- connections ------------------------------------------------------------------------------------------------------


def unconnecting(within_s: float) -> ConnectTimeout:
    late = ConnectTimeout(f"engine 'a' did not accept a connection within {within_s:g} s")
    late.within_s = within_s
    return late


async def test_an_engine_is_told_how_long_a_connection_may_take_for_this_key() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine)
    await collect(gateway, caller(("key ci", Terms(connect_s=0.5))))
    await collect(gateway, OTHER)
    assert [request.connect_s for request in engine.asked] == [0.5, 5.0]


async def test_a_key_that_does_not_wait_for_a_connection_does_not_make_an_engine_unreachable() -> None:
    engine = ScriptedEngine("a", (unconnecting(0.5),))
    gateway, _ = gateway_over(engine)
    with pytest.raises(DeadlineExceeded) as told:
        await collect(gateway, caller(("key ci", Terms(connect_s=0.5))))
    assert told.value.message == (
        "the 0.5 s that connect_s of key 'ci' allows are over; engine 'a' was asked and had not taken a connection"
    )
    assert gateway.pool.members["a"].health.live


@pytest.mark.parametrize(("within_s", "key_s"), [(5.0, None), (5.0, 9.0), (1.0, 2.0)])
def test_a_connection_that_takes_longer_than_others_wait_is_the_engines_fault(
    within_s: float, key_s: float | None
) -> None:
    terms = (said("key ci", Terms(connect_s=key_s)),) if key_s else ()
    assert unconnected(own(Policy(), terms), unconnecting(within_s), "a") is None
    assert unconnected(None, unconnecting(within_s), "a") is None


# --- queues -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def busy() -> AsyncGenerator[tuple[Gateway, Notebook, ScriptedEngine]]:
    """A model with one slot, which is taken until `end` is called."""
    engine = ScriptedEngine("a", ([HELLO], LONG, END))
    gateway, notebook = gateway_over(engine, policy=ONE_SLOT)
    running = asyncio.create_task(collect(gateway, OTHER))
    while not engine.asked:
        await asyncio.sleep(0)
    engine.play(([HELLO], END))
    yield gateway, notebook, engine
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (notebook.queued, notebook.answering) == (0, 0)


Busied = tuple[Gateway, Notebook, ScriptedEngine]


async def test_who_does_not_wait_is_told_at_once_when_to_come_back(busy: Busied) -> None:
    gateway, notebook, engine = busy
    with pytest.raises(RateLimited) as told:
        await collect(gateway, caller(("team t", Terms(queue_size=0))))
    assert (told.value.status, told.value.retry_after_s) == (429, 1.0)
    assert told.value.message == (
        "no slot of policy 'default' is free, and team 't' lets none of its requests wait for one; try again in 1.0 s"
    )
    assert (len(engine.asked), notebook.queued, notebook.refusals) == (1, 0, ["concurrency"])
    assert gateway._admission._lines == {}  # there is no line where nobody waits
    assert [(row.outcome, row.status) for row in notebook.attempts] == [("rejected", 429)]


async def test_who_does_not_wait_is_let_in_where_a_slot_is_free() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"), policy=ONE_SLOT)
    assert HELLO in await collect(gateway, caller(("key ci", Terms(queue_size=0))))


async def test_so_many_of_a_team_wait_and_those_of_others_beside_them(busy: Busied) -> None:
    gateway, notebook, _ = busy
    team = ("team t", Terms(queue_size=2))
    waiting = [asyncio.create_task(collect(gateway, caller(team, key=f"T{number}"))) for number in range(2)]
    await until_quiet()
    with pytest.raises(RateLimited, match="team 't' lets 2 of its requests wait for one"):
        await collect(gateway, caller(team, key="T2"))
    waiting.append(asyncio.create_task(collect(gateway, OTHER)))
    waiting.append(asyncio.create_task(collect(gateway, caller(("key ci", Terms(queue_size=1))))))
    await until_quiet()
    assert notebook.queued == 4
    waiting[0].cancel()  # who has left does not wait any more
    await until_quiet()
    waiting.append(asyncio.create_task(collect(gateway, caller(team, key="T3"))))
    await until_quiet()
    assert notebook.queued == 4
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_had_to_make_room_in_a_full_line_does_not_count_any_more() -> None:
    engine = ScriptedEngine("a", ([HELLO], LONG, END))
    policy = replace(ONE_SLOT, queue=Queue(size=1, reserved=Reserved(default=0)))
    gateway, notebook = gateway_over(engine, policy=policy)
    running = asyncio.create_task(collect(gateway, OTHER))
    await until_quiet()
    one = ("key ci", Terms(queue_size=1))
    bulk = asyncio.create_task(collect(gateway, replace(caller(one), priority="bulk")))
    await until_quiet()
    urgent = asyncio.create_task(collect(gateway, replace(OTHER, priority="interactive")))
    await until_quiet()
    assert isinstance(bulk.exception(), Busy)
    again = asyncio.create_task(collect(gateway, replace(caller(one), priority="system")))
    await until_quiet()
    assert isinstance(urgent.exception(), Busy)
    assert (again.done(), notebook.queued) == (False, 1)
    for task in (running, again):
        task.cancel()
    await asyncio.gather(running, again, return_exceptions=True)


async def test_a_key_waits_no_longer_than_it_is_to(busy: Busied) -> None:
    gateway, _, _ = busy
    with pytest.raises(Busy, match=r"no slot of policy 'default' within 0\.05 s"):
        await collect(gateway, caller(("key ci", Terms(queue_timeout_s=0.05))))


# --- callers who leave ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "chain", "why", "estimated"),
    [
        ("estimate", ((("key ci"), Terms(on_disconnect="drain")),), "drained", False),
        ("drain", (("key ci", Terms(on_disconnect="estimate")),), "cancelled", True),
        (
            "drain",
            (("key ci", Terms(idle_s=9.0)), ("team t", Terms(on_disconnect="free"))),
            "cancelled, not charged",
            True,
        ),
        (
            "free",
            (("project p", Terms(on_disconnect="estimate")), ("org o", Terms(on_disconnect="drain"))),
            "cancelled",
            True,
        ),
        ("drain", (("key ci", Terms(idle_s=9.0)),), "drained", False),
    ],
)
async def test_what_becomes_of_an_answer_whose_caller_left_is_the_nearest_owners_word(
    policy: str, chain: Sequence[tuple[str, Terms]], why: str, estimated: bool
) -> None:
    engine = ScriptedEngine("a", ([HELLO], [TextDelta(text="!")], 0.02, END))
    gateway, notebook = gateway_over(engine, policy=Policy(on_disconnect=policy), prices=[PER_MILLION])  # type: ignore[arg-type]
    async with aclosing(gateway.generate(ask(), caller(*chain))) as batches:
        async for _ in batches:
            break
    while not notebook.attempts:
        await asyncio.sleep(0.001)
    (row,) = notebook.attempts
    assert (row.outcome, row.why, row.usage_estimated) == ("cancelled", why, estimated)
    assert (row.cost_micro_usd == 0) == (why == "cancelled, not charged")


# --- reckoned once ----------------------------------------------------------------------------------------------------


def test_what_holds_is_reckoned_once_for_each_policy_and_caller() -> None:
    policies, terms = Policies(), (said("key ci", Terms(idle_s=1.0)),)
    one = policies.under(ONE_SLOT, terms)
    assert policies.under(ONE_SLOT, terms) is one
    assert policies.under(Policy(), terms) is not one
    anew = (said("key ci", Terms(idle_s=2.0)),)  # the same key, when it was read again
    assert policies.under(ONE_SLOT, anew).policy.timeouts.idle_s == 2.0


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    policies = Policies()
    for number in range(MOST + 10):
        policies.under(ONE_SLOT, (said(f"key {number}", Terms(idle_s=1.0 + number)),))
    assert len(policies._known) == MOST


async def test_a_caller_without_terms_has_the_policy_itself() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"), policy=ONE_SLOT)
    await collect(gateway, OTHER)
    assert gateway._policies._known == {}
