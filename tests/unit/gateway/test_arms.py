"""Arms of rollouts and system prompts: who gets which, what the engines are asked, and what the ledger says of it."""

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Policy, Retries, Target
from drivetrain.dialects import openai
from drivetrain.errors import (
    BadRequest,
    ContextOverflow,
    DrivetrainError,
    EngineFailed,
    EngineUnavailable,
    Forbidden,
    ModelNotFound,
    StoreAway,
    TooLarge,
    Unsupported,
)
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.arms import rendered, subject
from drivetrain.governance import Principal
from drivetrain.rollouts.plan import Arm, Plan, Prompt, Rollout, Stage
from drivetrain.router import Facts
from drivetrain.types import Completion, Embeddings, EmbedRequest, Event, Message, Request, Sampling, Source, Text, fold
from tests.fakes.engine import ANSWER, ScriptedEngine, ask, gateway_over, route_to

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
NEW = (Target(engine="new", model="new-model"),)
TERSE = Prompt(name="support", version=1, text="Be terse.")
KIND = Prompt(name="support", version=2, text="Be kind to {customer}.")
PROMPTS = {prompt.reference: prompt for prompt in (TERSE, KIND)}


def rollout(percent: float = 100.0, **arm: Any) -> Rollout:
    members = arm or {"targets": NEW}
    return Rollout(
        id="R",
        model="chat",
        arms=(Arm(name="baseline"), Arm(name="new", **members)),
        stages=(Stage(percent=percent), Stage(percent=100.0)),
    )


def planned(found: Rollout | None = None, prompts: Mapping[str, Prompt] = PROMPTS) -> Callable[[], Plan]:
    plan = Plan(rollouts={found.model: found} if found is not None else {}, prompts=prompts)
    return lambda: plan


def house(
    plan: Callable[[], Plan], *, policy: Policy | None = None
) -> tuple[Gateway, Any, ScriptedEngine, ScriptedEngine]:
    """A gateway whose model `chat` is at engine `old`, beside an engine `new`."""
    old, new = ScriptedEngine("old"), ScriptedEngine("new")
    gateway, notebook = gateway_over(old, new, route=route_to(old), policy=policy, plan=plan)
    return gateway, notebook, old, new


async def collect(gateway: Gateway, request: Request | None = None, call: Call = CALL) -> list[Event]:
    async with aclosing(gateway.generate(request or ask(), call)) as batches:
        return [event async for events in batches for event in events]


# --- which engines ----------------------------------------------------------------------------------------------------


async def test_an_arm_with_targets_is_asked_at_those_and_the_row_says_so() -> None:
    gateway, notebook, old, new = house(planned(rollout()))
    await collect(gateway)
    assert (len(old.asked), new.asked[0].model) == (0, "new-model")
    assert [(row.model, row.engine, row.rollout) for row in notebook.attempts] == [("chat", "new", "R:new")]


async def test_whoever_is_not_in_the_share_stays_at_the_models_own_targets() -> None:
    gateway, notebook, old, new = house(planned(rollout(percent=0.0)))
    await collect(gateway)
    assert (len(old.asked), len(new.asked)) == (1, 0)
    assert notebook.attempts[0].rollout == "R:baseline"


async def test_a_model_without_a_rollout_is_untouched() -> None:
    gateway, notebook, _, _ = house(planned(replace(rollout(), model="other")))
    await collect(gateway)
    assert (notebook.attempts[0].rollout, notebook.attempts[0].prompt_version) == ("", "")


async def test_a_caller_stays_at_its_arm_and_a_share_of_the_callers_is_moved() -> None:
    gateway, notebook, _, _ = house(planned(rollout(percent=30.0)))
    for _ in range(2):
        for number in range(100):
            await collect(gateway, call=replace(CALL, who=Principal(key_id=f"key{number}")))
    arms = [row.rollout for row in notebook.attempts]
    assert arms[:100] == arms[100:]
    assert 20 <= arms[:100].count("R:new") <= 40


async def test_a_new_plan_holds_from_the_next_request_on() -> None:
    plans = [Plan(rollouts={"chat": rollout()})]
    gateway, notebook, _, _ = house(lambda: plans[-1])
    await collect(gateway)
    plans.append(Plan(rollouts={"chat": replace(rollout(), state="rolled_back")}))
    await collect(gateway)
    assert [row.rollout for row in notebook.attempts] == ["R:new", "R:baseline"]


async def test_if_the_engines_of_an_arm_fail_the_models_own_take_over() -> None:
    gateway, notebook, _, new = house(planned(rollout()))
    new.play((EngineFailed("new broke"),))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.rollout, row.outcome) for row in notebook.attempts] == [
        ("new", "R:new", "absorbed"),
        ("old", "R:baseline:spill", "ok"),
    ]


@pytest.mark.parametrize("failure", [EngineFailed("new broke"), ModelNotFound("no such model here")])
async def test_who_goes_back_to_the_models_own_engines_takes_nothing_of_the_budget_of_retries(
    failure: DrivetrainError,
) -> None:
    """They had these requests before the rollout: nobody is buried under repetitions."""
    none = Retries(budget_percent=0, least=0)
    gateway, notebook, old, new = house(planned(rollout()), policy=Policy(retries=none))
    new.play((failure,))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    new.play((failure,))
    old.play((EngineFailed("old broke"),))
    with pytest.raises(EngineUnavailable, match="old broke; every engine of model 'chat' has failed"):
        await collect(gateway)
    assert [row.engine for row in notebook.attempts] == ["new", "old", "new", "old"]


REFUSALS = [BadRequest("no tools here"), ContextOverflow("too long"), Unsupported("no images"), TooLarge("too much")]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_what_the_engines_of_an_arm_refuse_the_models_own_are_asked_whatever_the_rules_of_retries(
    refusal: DrivetrainError,
) -> None:
    none = Retries(max=0, budget_percent=0, least=0)
    gateway, notebook, _, new = house(planned(rollout()), policy=Policy(retries=none))
    for _ in range(20):
        new.play((refusal,))
        assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert [(row.engine, row.rollout, row.outcome, row.status, row.final) for row in notebook.attempts[:2]] == [
        ("new", "R:new", "absorbed", 400, False),
        ("old", "R:baseline:spill", "ok", 200, True),
    ]
    assert {row.why for row in notebook.attempts if row.engine == "new"} == {"engine_refused"}
    assert gateway.pool.members["new"].breaker.state(time.monotonic()) == "closed"


async def test_what_the_models_own_engines_refuse_too_was_the_callers_mistake() -> None:
    gateway, notebook, old, new = house(planned(rollout()))
    new.play((BadRequest("new says no"),))
    old.play((BadRequest("old says no", param="messages"),))
    with pytest.raises(BadRequest, match=r"^old says no$") as told:
        await collect(gateway)
    assert told.value.param == "messages"
    assert [(row.engine, row.outcome, row.why, row.final) for row in notebook.attempts] == [
        ("new", "absorbed", "engine_refused", False),
        ("old", "rejected", "invalid_request", True),
    ]


async def test_what_an_arm_refuses_goes_to_no_other_engine_of_it() -> None:
    """A caller's mistake is not shown to every new engine; `other` has the request only if `new` was not asked."""
    both = (*NEW, Target(engine="other", model="new-model", tier=1))
    old, new, other = ScriptedEngine("old"), ScriptedEngine("new", (BadRequest("no"),)), ScriptedEngine("other")
    gateway, _ = gateway_over(old, new, other, route=route_to(old), plan=planned(rollout(targets=both)))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert (len(old.asked), len(new.asked), len(other.asked)) == (1, 1, 0)


async def test_who_wants_no_second_engine_is_told_what_the_new_one_says() -> None:
    gateway, notebook, old, new = house(planned(rollout()))
    new.play((BadRequest("new says no"),))
    with pytest.raises(BadRequest, match=r"^new says no$"):
        await collect(gateway, call=replace(CALL, alone=True))
    assert old.asked == []
    assert [(row.outcome, row.why) for row in notebook.attempts] == [("rejected", "invalid_request")]


async def test_a_parameter_of_an_arm_that_cannot_be_read_is_the_arms_failure() -> None:
    gateway, notebook, old, new = house(planned(rollout(parameters={"temperature": "hot"})))
    assert fold(await collect(gateway)).choices[0].text == "Hello world"
    assert (len(old.asked), len(new.asked)) == (1, 0)
    first = notebook.attempts[0]
    assert (first.rollout, first.outcome, first.why) == ("R:new", "absorbed", "engine_refused")


async def test_once_a_rollout_is_done_the_old_engines_are_not_asked_any_more() -> None:
    gateway, _, old, new = house(planned(replace(rollout(), state="done")))
    new.play((EngineFailed("new broke"),))
    with pytest.raises(EngineFailed):
        await collect(gateway)
    assert old.asked == []


async def test_a_key_has_rights_on_the_public_name_whatever_stands_behind_it() -> None:
    gateway, _, _, new = house(planned(rollout()))
    await collect(gateway, call=replace(CALL, who=Principal(key_id="k", models=("chat",))))
    assert len(new.asked) == 1
    with pytest.raises(Forbidden):
        await collect(gateway, call=replace(CALL, who=Principal(key_id="k", models=("new-model",))))


async def test_an_embedding_goes_to_the_arm_too() -> None:
    old, new = ScriptedEngine("old"), ScriptedEngine("new", vectors=Embeddings(vectors=([1.0],)))
    gateway, notebook = gateway_over(old, new, route=route_to(old), plan=planned(rollout()))
    await gateway.embed(EmbedRequest(model="chat", inputs=("a",)), CALL)
    assert notebook.attempts[0].rollout == "R:new"


async def test_settings_and_parameters_of_an_arm_are_over_those_of_the_policy() -> None:
    policy = Policy(settings={"num_ctx": 1, "keep": 1}, parameters={"temperature": 0.1, "top_p": 0.5})
    arm = rollout(settings={"num_ctx": 2}, parameters={"temperature": 0.9})
    gateway, _, old, _ = house(planned(arm), policy=policy)
    await collect(gateway)
    asked = old.asked[0]
    assert (asked.options, asked.sampling) == ({"num_ctx": 2, "keep": 1}, Sampling(temperature=0.9, top_p=0.5))


# --- who a caller is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "user", "expected"),
    [
        (replace(CALL, who=Principal(key_id="k"), session="s", client="c"), "u", "k"),
        (replace(CALL, session="s", client="c"), "u", "s"),
        (replace(CALL, client="c"), "u", "u"),
        (replace(CALL, client="c"), None, "c"),
        (CALL, None, "req_1"),
    ],
)
def test_a_caller_is_known_by_the_surest_that_tells_it_from_others(call: Call, user: str | None, expected: str) -> None:
    assert subject(replace(ask(), user=user), call) == expected


# --- prompts ----------------------------------------------------------------------------------------------------------


def system(engine: ScriptedEngine) -> list[str]:
    return [message.text for message in engine.asked[-1].messages if message.role == "system"]


async def test_a_policy_gives_requests_a_system_prompt_and_the_row_names_its_version() -> None:
    gateway, notebook, old, _ = house(planned(), policy=Policy(prompt="support@1"))
    await collect(gateway)
    assert system(old) == ["Be terse."]
    assert notebook.attempts[0].prompt_version == "support@1"


async def test_the_callers_own_words_stay_as_they_are() -> None:
    body = b'{"model":"chat", "messages" : [ {"role":"user","content":"Hi","x":1} ], "thinking":false}'
    gateway, _, old, _ = house(planned(), policy=Policy(prompt="support@1"))
    await collect(gateway, openai.CHAT.decode_request(body))
    sent = msgspec.json.decode(openai.CHAT.encode_request(old.asked[0]))
    system, user = sent["messages"]
    assert (system, user) == ({"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi", "x": 1})
    assert sent["thinking"] is False


async def test_an_arm_may_bring_another_version_of_it() -> None:
    gateway, notebook, old, _ = house(planned(rollout(prompt="support@2")), policy=Policy(prompt="support@1"))
    await collect(gateway)
    assert system(old) == ["Be kind to {customer}."]
    assert (notebook.attempts[0].rollout, notebook.attempts[0].prompt_version) == ("R:new", "support@2")


async def test_an_arm_of_a_prompt_alone_has_nowhere_else_to_go() -> None:
    gateway, notebook, old, _ = house(planned(rollout(prompt="support@2")))
    gateway.retries.draw = lambda: 0.0
    old.play((EngineFailed("broke"),), ANSWER)
    await collect(gateway)
    assert [row.rollout for row in notebook.attempts] == ["R:new", "R:new"]


async def test_a_caller_may_say_which_version_it_has_to_be_and_takes_no_part_in_a_rollout_of_prompts() -> None:
    gateway, notebook, old, _ = house(planned(rollout(prompt="support@2")))
    await collect(gateway, call=replace(CALL, prompt="support@1"))
    assert system(old) == ["Be terse."]
    assert (notebook.attempts[0].rollout, notebook.attempts[0].prompt_version) == ("", "support@1")


async def test_a_system_message_of_the_callers_own_is_left_alone() -> None:
    gateway, notebook, old, _ = house(planned(), policy=Policy(prompt="support@1"))
    own = Message(role="system", content=(Text(text="Mine."),))
    await collect(gateway, replace(ask(), messages=(own, *ask().messages)))
    assert system(old) == ["Mine."]
    assert notebook.attempts[0].prompt_version == ""
    with pytest.raises(BadRequest, match="send one of them"):
        await collect(gateway, replace(ask(), messages=(own, *ask().messages)), replace(CALL, prompt="support@1"))


async def test_a_raw_text_has_no_system_prompt() -> None:
    gateway, notebook, old, _ = house(planned(), policy=Policy(prompt="support@1"))
    await collect(gateway, Request(model="chat", completion=Completion(prompts=("a",))))
    assert (old.asked[0].messages, notebook.attempts[0].prompt_version) == ((), "")


async def test_a_prompt_that_nobody_has_is_told_by_whose_fault_it_is() -> None:
    gateway, notebook, _, _ = house(planned(), policy=Policy(prompt="gone@1"))
    with pytest.raises(StoreAway, match="gone@1"):
        await collect(gateway)
    with pytest.raises(BadRequest, match="there is: support@1, support@2"):
        await collect(gateway, call=replace(CALL, prompt="mine@1"))
    assert [(row.outcome, row.status) for row in notebook.attempts] == [("rejected", 503), ("rejected", 400)]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (b'{"customer":"Ada"}', "Be kind to Ada."),
        (b'{"customer":"{customer} {x}","x":"no"}', "Be kind to {customer} {x}."),  # never taken for a template
        (b'{"other":"Ada"}', "Be kind to {customer}."),
        (b"null", "Be kind to {customer}."),
        (b'{"customer":["Ada"]}', "Be kind to {customer}."),
    ],
)
def test_variables_are_taken_from_the_metadata_of_a_request(metadata: bytes, expected: str) -> None:
    source = Source(dialect="openai.chat", fields={"metadata": msgspec.Raw(metadata)})
    assert rendered(KIND, replace(ask(), source=source)) == expected


# --- explain ----------------------------------------------------------------------------------------------------------


async def test_explain_shows_the_engines_of_each_arm() -> None:
    gateway, _, _, _ = house(planned(rollout(percent=5.0)))
    found = await gateway.explain("chat", Facts())
    assert [(choice.arm, choice.candidates[0].engine) for choice in found.choices] == [
        ("baseline", "old"),
        ("new", "new"),
    ]
