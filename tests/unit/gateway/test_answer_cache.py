"""Answers that are given again: which, to whom, for how long, and what the ledger says of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Cache, Policy, Route, Target
from drivetrain.errors import EngineFailed
from drivetrain.gateway import Call, Gateway, Receipt
from drivetrain.gateway.cache import Answers, key_of
from drivetrain.gateway.catalog import Entry
from drivetrain.governance import Price, Principal
from drivetrain.rollouts.plan import Arm, Plan, Prompt, Rollout, Stage
from drivetrain.types import (
    ChoiceFinished,
    Event,
    Finished,
    JsonObject,
    Model,
    Opaque,
    Request,
    Sampling,
    Source,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallStart,
    Usage,
    fold,
)
from tests.fakes.engine import HELLO, ScriptedEngine, ask, gateway_over

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
RULE = Cache(ttl_s=60.0)
KEEPS = Policy(cache=RULE)
EXACT = replace(ask(), sampling=Sampling(temperature=0.0))
ENTRY = Entry(name="chat", targets=(Target(engine="a", model="m"),), policy=KEEPS)
END = (ChoiceFinished(reason="stop"), Finished(usage=Usage(prompt=5, completion=2)))


async def collect(gateway: Gateway, request: Request = EXACT, call: Call = CALL) -> list[Event]:
    async with aclosing(gateway.generate(request, call)) as batches:
        return [event async for events in batches for event in events]


# --- the same request -------------------------------------------------------------------------------------------------


async def test_the_same_request_gets_the_same_answer_without_an_engine() -> None:
    engine = ScriptedEngine("a")
    gateway, notebook = gateway_over(engine, policy=KEEPS, prices=(Price(id="p", output=1_000_000),))
    first = fold(await collect(gateway))
    receipt = Receipt()
    events = await collect(gateway, call=replace(CALL, id="req_2", receipt=receipt))
    assert len(engine.asked) == 1
    assert fold(events).choices == first.choices
    assert isinstance(events[-1], Finished)
    assert events[-1].usage == Usage(prompt=5, cached=5, completion=2, cost_micro_usd=0)
    row = notebook.attempts[1]
    assert (row.outcome, row.status, row.why, row.engine, row.cost_micro_usd) == ("ok", 200, "cache", "", 0)
    assert (row.model, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == ("chat", 5, 5, 2)
    assert (receipt.cached, receipt.cost_micro_usd, receipt.engine) == (True, 0, "")


async def test_a_stream_and_a_whole_answer_are_the_same_request() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=KEEPS)
    await collect(gateway, replace(EXACT, stream=False))
    await collect(gateway, replace(EXACT, stream=True, user="somebody", include_usage=True))
    assert len(engine.asked) == 1


async def test_a_whole_answer_is_kept_once_its_caller_has_it() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=KEEPS)
    async with aclosing(gateway.generate(replace(EXACT, stream=False), CALL)) as batches:
        async for _ in batches:
            await collect(gateway)
    await collect(gateway)
    assert len(engine.asked) == 2


async def test_callers_whose_dialect_tells_durations_are_told_some() -> None:
    gateway, _ = gateway_over(ScriptedEngine("a"), policy=KEEPS)
    await collect(gateway)
    end = (await collect(gateway, call=replace(CALL, dialect="ollama.chat")))[-1]
    assert isinstance(end, Finished)
    assert end.timings is not None


async def test_without_the_policy_nothing_is_given_again() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine)
    await collect(gateway)
    await collect(gateway)
    assert len(engine.asked) == 2


async def test_whoever_wants_a_fresh_answer_gets_one() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=KEEPS)
    await collect(gateway)
    await collect(gateway, call=replace(CALL, fresh=True))
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    "script",
    [
        ([HELLO], EngineFailed("broke")),
        ([HELLO], (ChoiceFinished(reason="content_filter"), Finished())),
    ],
    ids=["broke off", "withheld"],
)
async def test_an_answer_that_is_none_is_not_kept(script: Sequence[Any]) -> None:
    engine = ScriptedEngine("a", script)
    gateway, _ = gateway_over(engine, policy=KEEPS)
    for _ in range(2):
        try:
            await collect(gateway)
        except EngineFailed:
            continue
    assert len(engine.asked) == 2


async def test_an_answer_of_a_fallback_is_not_given_for_the_model() -> None:
    first, other = ScriptedEngine("a", (EngineFailed("broke"),)), ScriptedEngine("b")
    routes = {
        "chat": Route(targets=(Target(engine="a", model="m"),), fallbacks=("small",)),
        "small": Route(targets=(Target(engine="b", model="n"),)),
    }
    gateway, _ = gateway_over(first, other, routes=routes, policy=KEEPS)
    await collect(gateway)
    await collect(gateway)
    assert len(other.asked) == 2


async def test_each_arm_and_each_version_of_a_prompt_has_its_own_answers() -> None:
    prompts = {name: Prompt(name="p", version=int(name[-1]), text=name) for name in ("p@1", "p@2")}
    arms = (Arm(name="baseline", prompt="p@1"), Arm(name="new", prompt="p@2"))
    found = Rollout(id="R", model="chat", arms=arms, stages=(Stage(percent=0.0), Stage(percent=100.0)))
    plans = [Plan(rollouts={"chat": found}, prompts=prompts)]
    engine = ScriptedEngine("a")
    gateway, notebook = gateway_over(engine, policy=KEEPS, plan=lambda: plans[-1])
    await collect(gateway)
    plans.append(Plan(rollouts={"chat": replace(found, stage=1)}, prompts=prompts))
    await collect(gateway)
    await collect(gateway)
    assert len(engine.asked) == 2
    assert [(row.rollout, row.prompt_version) for row in notebook.attempts] == [
        ("R:baseline", "p@1"),
        ("R:new", "p@2"),
        ("", "p@2"),
    ]


async def test_calls_of_tools_are_given_again_as_they_were() -> None:
    arguments = ToolCallDelta(call=0, arguments='{"zone":"UTC"}')
    called: list[Event] = [ToolCallStart(call=0, id="c1", name="clock"), arguments]
    engine = ScriptedEngine("a", ([Opaque(raw=b"role")], called, (ChoiceFinished(reason="tool_calls"), Finished())))
    gateway, _ = gateway_over(engine, policy=KEEPS)
    first, second = fold(await collect(gateway)), fold(await collect(gateway))
    assert first.choices == second.choices
    assert second.choices[0].tool_calls[0].arguments == '{"zone":"UTC"}'


# --- which requests are the same --------------------------------------------------------------------------------------


def key(request: Request = EXACT, call: Call = CALL, entry: Entry = ENTRY) -> bytes | None:
    return key_of(entry, request, call, lambda target: "")


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.1)], ids=["nothing", "warm", "top_p"]
)
def test_an_answer_by_chance_is_not_given_again_unless_the_policy_wants_it(sampling: Sampling) -> None:
    request = replace(EXACT, sampling=sampling)
    assert key(request) is None
    assert key(request, entry=replace(ENTRY, policy=Policy(cache=replace(RULE, answers="all")))) is not None


def test_what_the_policy_or_the_arm_sets_counts_as_if_the_request_had_said_it() -> None:
    unsaid = replace(EXACT, sampling=Sampling())
    assert key(unsaid, entry=replace(ENTRY, policy=Policy(cache=RULE, parameters={"temperature": 0}))) is not None
    assert key(unsaid, entry=replace(ENTRY, parameters={"seed": 7})) is not None


def fields(**members: Any) -> Source:
    return Source(
        dialect="openai.chat", fields={name: msgspec.Raw(msgspec.json.encode(v)) for name, v in members.items()}
    )


OTHERS: Mapping[str, Callable[[], bytes | None]] = {
    "words": lambda: key(replace(EXACT, messages=ask("Bye").messages)),
    "sampling": lambda: key(replace(EXACT, sampling=Sampling(temperature=0.0, max_tokens=3))),
    "tools": lambda: key(replace(EXACT, tools=(Tool(name="clock"),))),
    "form": lambda: key(replace(EXACT, output=JsonObject())),
    "options": lambda: key(replace(EXACT, options={"num_ctx": 1})),
    "members that only the engine knows": lambda: key(replace(EXACT, source=fields(guided_choice=["a"]))),
    "organisation": lambda: key(call=replace(CALL, who=Principal(org="o"))),
    "team": lambda: key(call=replace(CALL, who=Principal(team="t"))),
    "project": lambda: key(call=replace(CALL, who=Principal(project="p"))),
    "key without a project": lambda: key(call=replace(CALL, who=Principal(key_id="k"))),
    "engine": lambda: key(entry=replace(ENTRY, targets=(Target(engine="b", model="m"),))),
    "model of the engine": lambda: key(entry=replace(ENTRY, targets=(Target(engine="a", model="m2"),))),
    "settings": lambda: key(entry=replace(ENTRY, settings={"num_ctx": 1})),
    "prompt": lambda: key(entry=replace(ENTRY, prompt=Prompt(name="p", version=1, text="x"))),
}


def test_whatever_may_change_an_answer_makes_another_request() -> None:
    keys = {name: made() for name, made in OTHERS.items()} | {"itself": key()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)


async def test_another_digest_of_the_model_is_another_version() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine, policy=KEEPS)
    await collect(gateway)
    gateway.pool.members["a"].models = (Model(id="a-model", digest="ab"),)
    await collect(gateway)
    await collect(gateway)
    assert len(engine.asked) == 2


async def test_instances_of_an_engine_that_come_and_go_are_no_other_version() -> None:
    one, other = (
        replace(ENTRY, targets=tuple(Target(engine=f"a@box:{port}", model="m") for port in ports))
        for ports in ((1, 2), (2, 3, 4))
    )
    assert key(entry=one) == key(entry=other)


@pytest.mark.parametrize(
    "source", [fields(stream=True), fields(user="u"), fields(model="chat"), fields(metadata={"a": "b"})]
)
def test_what_changes_nothing_of_an_answer_does_not(source: Source) -> None:
    assert key(replace(EXACT, source=source)) == key(replace(EXACT, source=fields()))


def test_values_for_a_prompts_variables_do() -> None:
    entry = replace(ENTRY, prompt=Prompt(name="p", version=1, text="For {a}."))
    one, other = (key(replace(EXACT, source=fields(metadata={"a": value})), entry=entry) for value in "xy")
    assert one != other


def test_keys_of_one_project_share_answers() -> None:
    one, other = (key(call=replace(CALL, who=Principal(key_id=name, project="p"))) for name in "kl")
    assert one == other


# --- what is kept -----------------------------------------------------------------------------------------------------


def answer(text: str) -> Sequence[Event]:
    return [TextDelta(text=text), *END]


def test_an_answer_is_kept_for_its_time_only() -> None:
    now = [100.0]
    answers = Answers(lambda: now[0])
    answers.keep("p", RULE, b"k", answer("Hi"))
    now[0] = 159.9
    assert answers.find("p", b"k") is not None
    now[0] = 160.0
    assert answers.find("p", b"k") is None
    assert answers.size("p") == 0


def test_a_policys_answers_take_no_more_than_it_allows_and_those_not_used_for_longest_go() -> None:
    answers, rule = Answers(lambda: 0.0), RULE
    answers.keep("p", rule, b"a", answer("x" * 250))
    rule = replace(RULE, max_bytes=3 * answers.size("p"))
    for name in (b"b", b"c"):
        answers.keep("p", rule, name, answer("x" * 250))
    assert answers.find("p", b"a") is not None
    answers.keep("p", rule, b"d", answer("x" * 250))
    assert answers.size("p") == rule.max_bytes
    assert [name for name in (b"a", b"b", b"c", b"d") if answers.find("p", name) is not None] == [b"a", b"c", b"d"]


def test_an_answer_that_is_larger_than_that_is_not_kept_and_drives_nobody_out() -> None:
    answers, rule = Answers(lambda: 0.0), Cache(ttl_s=60.0, max_bytes=1000)
    answers.keep("p", rule, b"small", answer("x"))
    answers.keep("p", rule, b"large", answer("x" * 2000))
    assert answers.find("p", b"large") is None
    assert answers.find("p", b"small") is not None


def test_policies_do_not_share_their_room() -> None:
    answers, rule = Answers(lambda: 0.0), Cache(ttl_s=60.0, max_bytes=600)
    answers.keep("p", rule, b"a", answer("x"))
    answers.keep("q", rule, b"a", answer("y"))
    assert answers.find("p", b"a") is not None
    assert answers.size("q") > 0


def test_an_engines_own_frames_are_not_kept() -> None:
    answers = Answers(lambda: 0.0)
    answers.keep("p", RULE, b"a", [Opaque(raw=b"role"), TextDelta(text="Hi", raw=b"frame"), *END])
    kept = answers.find("p", b"a")
    assert kept == [TextDelta(text="Hi"), *END]
