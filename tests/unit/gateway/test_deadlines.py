"""The time of a request: the least of what policy, caller and client allow. Every attempt has what is left of it."""

import asyncio
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Limits, Policy, Timeouts
from drivetrain.errors import BadRequest, DeadlineExceeded, EngineFailed, EngineTimeout
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.deadline import Deadline, Deadlines, deadlines
from drivetrain.server.asked import alone, read_timeout_of, timeout_of
from drivetrain.types import EmbedRequest, Event, Request, fold
from tests.fakes.engine import ANSWER, END, HELLO, WORLD, ScriptedEngine, Step, ask, gateway_over

CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
LONG = 60.0


async def collect(gateway: Gateway, call: Call, request: Request | None = None) -> list[Event]:
    async with aclosing(gateway.generate(request or ask(), call)) as batches:
        return [event async for events in batches for event in events]


def talk(batches: int) -> tuple[Step, ...]:
    return (*(step for _ in range(batches) for step in ([WORLD], 0.01)), END)


# --- which deadline holds ---------------------------------------------------------------------------------------------


def test_without_a_word_from_the_caller_the_policy_says_how_long() -> None:
    policys = Deadline(at_s=1100.0, limit_s=100.0, source="")
    assert deadlines(CALL, 1000.0, 100.0, stream=True) == Deadlines(whole=policys, first=policys)


@pytest.mark.parametrize(
    ("asked_s", "limit_s", "source"), [(7.5, 7.5, "x-drivetrain-timeout-ms"), (101.0, 100.0, ""), (None, 100.0, "")]
)
def test_a_caller_can_shorten_the_policys_time_and_never_lengthen_it(
    asked_s: float | None, limit_s: float, source: str
) -> None:
    found = deadlines(replace(CALL, timeout_s=asked_s), 1000.0, 100.0, stream=True)
    assert found.whole == found.first == Deadline(at_s=1000.0 + limit_s, limit_s=limit_s, source=source)


def test_a_clients_read_timeout_holds_for_an_answer_that_comes_whole() -> None:
    found = deadlines(replace(CALL, timeout_s=50.0, read_timeout_s=20.0), 1000.0, 100.0, stream=False)
    assert found.whole == found.first == Deadline(at_s=1020.0, limit_s=20.0, source="x-stainless-read-timeout")


def test_a_clients_read_timeout_holds_for_a_stream_until_it_has_begun() -> None:
    found = deadlines(replace(CALL, timeout_s=50.0, read_timeout_s=20.0), 1000.0, 100.0, stream=True)
    assert found.first == Deadline(at_s=1020.0, limit_s=20.0, source="x-stainless-read-timeout")
    assert found.whole == Deadline(at_s=1050.0, limit_s=50.0, source="x-drivetrain-timeout-ms")


def test_a_client_that_waits_longer_than_the_rest_changes_nothing() -> None:
    assert deadlines(replace(CALL, read_timeout_s=600.0), 0.0, 100.0, stream=False) == deadlines(
        CALL, 0.0, 100.0, stream=False
    )


def test_a_fallback_has_its_own_policys_time_but_no_more_than_is_left_to_the_caller() -> None:
    found = deadlines(replace(CALL, timeout_s=50.0), 1000.0, 100.0, stream=True)
    assert found.within(1040.0, 30.0) is found
    assert found.within(1010.0, 5.0).whole == Deadline(at_s=1015.0, limit_s=5.0, source="")


def test_a_fallbacks_time_does_not_lengthen_the_wait_for_the_first_content() -> None:
    found = deadlines(replace(CALL, read_timeout_s=10.0), 1000.0, 100.0, stream=True)
    assert found.within(1005.0, 20.0).first.source == "x-stainless-read-timeout"
    assert found.within(1005.0, 2.0).first == Deadline(at_s=1007.0, limit_s=2.0, source="")


# --- what a caller says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("header", "seconds"), [(None, None), (b"1500", 1.5), (b"0.5", 0.0005)])
def test_a_timeout_is_told_in_milliseconds(header: bytes | None, seconds: float | None) -> None:
    assert timeout_of(header) == seconds


@pytest.mark.parametrize("header", [b"", b"0", b"-1", b"soon", b"nan", b"inf"])
def test_a_timeout_that_is_none_is_refused_by_its_name(header: bytes) -> None:
    with pytest.raises(BadRequest) as refusal:
        timeout_of(header)
    assert refusal.value.param == "x-drivetrain-timeout-ms"


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, None), (b"600", 600.0), (b"2.5", 2.5), (b"None", None), (b"inf", None), (b"0", None)]
)
def test_a_clients_own_timeout_is_never_its_mistake(header: bytes | None, seconds: float | None) -> None:
    assert read_timeout_of(header) == seconds


def test_whether_another_engine_may_be_asked_is_true_or_false() -> None:
    assert (alone(None), alone(b"false"), alone(b"True")) == (False, False, True)
    with pytest.raises(BadRequest) as refusal:
        alone(b"yes")
    assert refusal.value.param == "x-drivetrain-no-fallback"


# --- what happens when it is over -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_request_whose_time_is_over_before_its_answer_began_is_told_whose_time_it_was() -> None:
    engine, spare = ScriptedEngine("a", (LONG,)), ScriptedEngine("b")
    gateway, notebook = gateway_over(engine, spare)
    with pytest.raises(DeadlineExceeded) as told:
        await collect(gateway, replace(CALL, timeout_s=0.25))
    assert told.value.status == 504
    assert told.value.message == (
        "the 0.25 s that x-drivetrain-timeout-ms allows are over; engine 'a' was asked and has not begun"
    )
    assert (engine.closed, spare.asked) == (1, [])
    assert [(row.outcome, row.status, row.why) for row in notebook.attempts] == [("error", 504, "deadline_exceeded")]


@pytest.mark.anyio
async def test_an_answer_that_is_still_coming_when_the_time_is_over_is_cut() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", talk(200)))
    with pytest.raises(DeadlineExceeded, match="engine 'a' was asked and has not finished"):
        await collect(gateway, replace(CALL, timeout_s=0.25))


@pytest.mark.anyio
async def test_a_stream_that_has_begun_goes_on_beyond_its_clients_read_timeout() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", talk(40)))
    events = await collect(gateway, replace(CALL, read_timeout_s=0.3))
    assert fold(events).choices[0].text == " world" * 40


@pytest.mark.anyio
async def test_an_answer_that_comes_whole_has_no_more_time_than_its_client() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a", talk(200)))
    with pytest.raises(DeadlineExceeded, match="x-stainless-read-timeout"):
        await collect(gateway, replace(CALL, read_timeout_s=0.25), ask(stream=False))


@pytest.mark.anyio
async def test_the_next_engine_has_only_what_is_left_of_the_policys_time() -> None:
    first = ScriptedEngine("a", (0.25, EngineFailed("a broke")))
    policy = Policy(timeouts=Timeouts(first_token_s=LONG, total_s=0.5))
    gateway, notebook = gateway_over(first, ScriptedEngine("b", (LONG, *ANSWER)), policy=policy)
    with pytest.raises(EngineTimeout, match=r"engine 'b' did not finish within 0\.5 s"):
        await collect(gateway, CALL)
    assert [row.engine for row in notebook.attempts] == ["a", "b"]


@pytest.mark.anyio
async def test_nobody_waits_for_a_turn_longer_than_there_is_time() -> None:
    engine = ScriptedEngine("a", ([HELLO], LONG, END))
    gateway, notebook = gateway_over(engine, policy=Policy(limits=Limits(concurrency=1)))
    running = asyncio.create_task(collect(gateway, CALL))
    while not engine.asked:
        await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match="it waited for its turn"):
        await collect(gateway, replace(CALL, timeout_s=0.05))
    assert [(row.engine, row.status) for row in notebook.attempts] == [("", 504)]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.anyio
async def test_embeddings_have_no_more_time_than_their_caller() -> None:
    class Slow(ScriptedEngine):
        async def embed(self, request: EmbedRequest) -> None:  # type: ignore[override]  # it never gets so far
            await asyncio.sleep(LONG)

    gateway, _ = gateway_over(Slow("a"))
    with pytest.raises(DeadlineExceeded, match="engine 'a' was asked"):
        await gateway.embed(EmbedRequest(model="chat", inputs=("hi",)), replace(CALL, timeout_s=0.25))
