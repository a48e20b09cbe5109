"""What of a request the choice depends on, and that it goes where its policy wants it."""

import gc
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from random import Random
from typing import Any

import msgspec
import pytest

from drivetrain.config.schema import Config, Engine, Policy, Route, Routing, RoutingRule, Server, Target, When
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.choose import facts_of
from drivetrain.gateway.fingerprints import of_prefix, of_session
from drivetrain.governance import Price
from drivetrain.router import Facts, Wish
from drivetrain.router.estimates import Speedometer
from drivetrain.types import (
    Completion,
    EmbedRequest,
    Health,
    Image,
    JsonObject,
    Message,
    Model,
    Part,
    Request,
    Role,
    Sampling,
    Source,
    Text,
    Tool,
)
from tests.fakes.engine import Notebook, ScriptedEngine, gateway_over

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)


def say(role: Role, text: str, *parts: Part) -> Message:
    return Message(role=role, content=(Text(text=text), *parts))


def talk(*messages: Message, **members: Any) -> Request:
    return Request(model="chat", messages=messages, **members)


def from_body(**body: Any) -> Request:
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    return talk(say("user", "Hi"), source=Source(dialect="openai.chat", fields=fields))


# --- what a prompt begins with ----------------------------------------------------------------------------------------

SYSTEM = say("system", "You are a pirate. " * 10)
FIRST, ANSWER, SECOND = say("user", "Where is the gold?"), say("assistant", "Arr."), say("user", "And the rum?")


def test_a_conversation_keeps_its_number_while_it_grows_and_shares_that_of_its_system_prompt() -> None:
    begun, gone_on = of_prefix(talk(SYSTEM, FIRST), "", 1024), of_prefix(talk(SYSTEM, FIRST, ANSWER, SECOND), "", 1024)
    other = of_prefix(talk(SYSTEM, say("user", "Where is the ship?")), "", 1024)
    assert begun == gone_on
    assert (other[0], other[1] != begun[1]) == (begun[0], True)


def test_only_the_beginning_of_each_counts() -> None:
    short, long = say("user", "x" * 1024 + "a"), say("user", "x" * 1024 + "b")
    assert of_prefix(talk(SYSTEM, short), "", 1024) == of_prefix(talk(SYSTEM, long), "", 1024)
    assert of_prefix(talk(SYSTEM, short), "", 2048) != of_prefix(talk(SYSTEM, long), "", 2048)


@pytest.mark.parametrize(
    "other",
    [
        talk(say("system", "You are a parrot."), FIRST),
        talk(SYSTEM, FIRST, tools=(Tool(name="dig"),)),
        talk(say("user", "You are a pirate. " * 10), FIRST),
        talk(SYSTEM, say("user", "Where is the gold?", Image(url="data:image/png;base64,AAAA"))),
    ],
)
def test_another_system_prompt_tool_or_first_message_is_another_beginning(other: Request) -> None:
    assert of_prefix(other, "", 1024)[1] != of_prefix(talk(SYSTEM, FIRST), "", 1024)[1]


def test_a_system_prompt_that_is_put_in_later_counts_by_its_name() -> None:
    one, two = (of_prefix(talk(FIRST), f"support@{version}", 1024) for version in (1, 2))
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_without_a_system_prompt_the_first_message_is_what_many_may_share() -> None:
    shared, own = of_prefix(talk(FIRST, ANSWER, SECOND), "", 1024)
    assert shared == own != 0


def test_of_a_raw_text_its_beginning_counts_and_of_what_no_cache_helps_with_nothing() -> None:
    texts = [talk(completion=Completion(prompts=(prompt,))) for prompt in ("x" * 100 + "a", "x" * 100 + "b")]
    assert of_prefix(texts[0], "", 100) == of_prefix(texts[1], "", 100) != (0, 0)
    assert of_prefix(talk(completion=Completion(prompts=((1, 2, 3),))), "", 100) == (0, 0)
    assert of_prefix(EmbedRequest(model="chat", inputs=("x",)), "", 100) == (0, 0)
    assert of_prefix(talk(), "", 100) == (0, 0)


def test_the_number_of_a_beginning_is_the_same_in_every_process() -> None:
    assert of_prefix(talk(say("system", "S"), say("user", "U")), "", 1024) == (
        4642674337318973567,
        6387258832495354848,
    )


def test_a_session_is_what_the_header_says_else_the_body() -> None:
    assert of_session(from_body(prompt_cache_key="k", user="u"), "h") == of_session(talk(), "h")
    assert of_session(from_body(prompt_cache_key="k", user="u"), "") == of_session(talk(), "k")
    assert of_session(from_body(prompt_cache_key=7, session_id="s"), "") == of_session(talk(), "s")
    assert of_session(from_body(user="u"), "") == of_session(talk(user="u"), "") != 0
    assert of_session(talk(), "") == 0


# --- what else there is to know ---------------------------------------------------------------------------------------


def test_the_facts_of_a_request() -> None:
    request = talk(
        say("user", "x" * 400, Image(url="data:image/png;base64,AAAA")),
        tools=(Tool(name="dig"),),
        output=JsonObject(),
        sampling=Sampling(max_tokens=99),
    )
    call = msgspec.structs.replace(CALL, priority="bulk", timeout_s=7.0, read_timeout_s=5.0)
    assert facts_of(request, call, "eu") == Facts(
        prompt_tokens=100,
        output_tokens=99,
        limit=99,
        tools=True,
        images=True,
        schema=True,
        priority="bulk",
        deadline_s=5.0,
        region="eu",
    )


def test_a_read_timeout_is_no_deadline_of_a_stream_and_a_caller_knows_best_where_he_is() -> None:
    call = msgspec.structs.replace(CALL, read_timeout_s=5.0, region="us")
    found = facts_of(talk(FIRST, stream=True), call, "eu")
    assert (found.deadline_s, found.region) == (None, "us")


# --- through the gateway ----------------------------------------------------------------------------------------------


class House:
    """A gateway whose model `chat` is at several engines."""

    def __init__(
        self,
        *names: str,
        routing: Routing = Routing(),  # noqa: B008 - frozen
        tiers: Sequence[int] = (),
        regions: Sequence[str] = (),
        region: str | None = None,
        prices: Sequence[Price] = (),
    ) -> None:
        self.engines = {name: ScriptedEngine(name) for name in names}
        targets = tuple(Target(engine=name, model="m", tier=tiers[at] if tiers else 0) for at, name in enumerate(names))
        self.gateway: Gateway
        self.notebook: Notebook
        self.gateway, self.notebook = gateway_over(
            *self.engines.values(), route=Route(targets=targets), policy=Policy(routing=routing), prices=prices
        )
        for name, place in zip(names, regions, strict=False):
            self.gateway.pool.members[name].config = Engine(kind="scripted", region=place)
        config = self.gateway.config
        self.gateway._chooser.configure(msgspec.structs.replace(config, server=Server(region=region)))

    def has(self, name: str, **members: Any) -> None:
        self.gateway.pool.members[name].models = [Model(id="m", **members)]

    async def ask(self, request: Request, call: Call = CALL) -> str:
        """Which engine answered."""
        async with aclosing(self.gateway.generate(request, call)) as batches:
            async for _ in batches:
                pass
        return self.notebook.attempts[-1].engine

    @property
    def why(self) -> str:
        return self.notebook.attempts[-1].why


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of nobody knows what speed: one that a pause of this process makes look slow is left for another."""
    monkeypatch.setattr(Speedometer, "answered", lambda *_, **__: None)


@pytest.mark.usefixtures("unmeasured")
async def test_conversations_stay_at_their_engines_and_the_ledger_says_why() -> None:
    house = House("a", "b", "c", routing=Routing(affinity="prefix"))
    homes = [await house.ask(talk(say("user", f"Question {n}"))) for n in range(40)]
    later = [
        await house.ask(talk(say("user", f"Question {n}"), ANSWER, say("user", f"More of {n}"))) for n in range(40)
    ]
    assert later == homes
    assert set(homes) == {"a", "b", "c"}
    assert house.why == "tier 0, same prefix, load 0"


@pytest.mark.usefixtures("unmeasured")
async def test_sessions_stay_at_their_engines_whatever_they_say() -> None:
    house = House("a", "b", "c", routing=Routing(affinity="session"))
    for session in ("one", "two", "three"):
        call = msgspec.structs.replace(CALL, session=session)
        assert len({await house.ask(talk(say("user", f"Question {n}")), call) for n in range(10)}) == 1
    assert house.why == "tier 0, same session, load 0"
    assert len({await house.ask(from_body(prompt_cache_key="k")) for _ in range(10)}) == 1
    assert len({await house.ask(talk(FIRST)) for _ in range(40)}) == 3  # who names none is sent anywhere


async def test_a_request_with_tools_goes_to_a_model_that_has_them_without_a_word_in_the_policy() -> None:
    house = House("plain", "skilled", tiers=(0, 1))
    house.has("plain", capabilities=frozenset({"completion"}), context_length=4096)
    house.has("skilled", capabilities=frozenset({"completion", "tools"}), context_length=32768)
    assert await house.ask(talk(FIRST)) == "plain"
    assert await house.ask(talk(FIRST, tools=(Tool(name="dig"),))) == "skilled"
    assert await house.ask(talk(say("user", "x" * 4 * 5000))) == "skilled"


async def test_what_a_model_can_do_is_read_again_when_it_is_listed_anew() -> None:
    house = House("a", "b", tiers=(0, 1))
    house.has("a", capabilities=frozenset({"completion"}))
    asked = talk(FIRST, tools=(Tool(name="dig"),))
    assert await house.ask(asked) == "b"
    house.has("a", capabilities=frozenset({"completion", "tools"}))
    assert await house.ask(asked) == "a"


async def test_an_engine_that_goes_or_comes_is_left_out_or_counted_in_at_once() -> None:
    house = House("a", "b", "c")
    pool, entry = house.gateway.pool, house.gateway.catalog.resolve("chat")
    chooser = house.gateway._chooser

    def up() -> list[str]:
        group = chooser.roster(entry.targets).first(Wish(), Facts())
        return [target.engine for target in group.targets] if group is not None else []

    assert up() == ["a", "b", "c"]
    pool.members["a"].lost("connection refused")
    assert up() == ["b", "c"]
    pool.drain(frozenset({"b"}))
    assert up() == ["c"]
    await pool.refresh()
    pool.drain(frozenset())
    assert up() == ["a", "b", "c"]


def test_only_what_matters_to_the_choice_makes_another_version_of_the_pool() -> None:
    pool = House("a", "b").gateway.pool
    member, before = pool.members["a"], pool.version
    member.health = Health(live=True, ready=True, message="probed", running=3)
    member.models = tuple(member.models)
    member.drained = False
    assert pool.version == before
    member.health = Health(live=True, ready=False)
    member.models = (Model(id="new"),)
    assert pool.version == before + 2
    member.drained = True  # it is away as it is
    assert pool.version == before + 2


async def test_rules_send_long_prompts_and_bulk_elsewhere() -> None:
    rules = (
        RoutingRule(when=When(prompt_tokens_over=1000), engines=("big",)),
        RoutingRule(when=When(priority=("bulk",)), engines=("slow",)),
    )
    house = House("small", "big", "slow", tiers=(0, 1, 2), routing=Routing(rules=rules))
    assert await house.ask(talk(FIRST)) == "small"
    assert await house.ask(talk(say("user", "x" * 8000))) == "big"
    assert house.why == "rule 1, tier 1, load 0"
    assert await house.ask(talk(FIRST), msgspec.structs.replace(CALL, priority="bulk")) == "slow"


async def test_engines_of_the_servers_region_answer_unless_the_caller_is_elsewhere() -> None:
    house = House("eu", "us", regions=("eu", "us"), region="eu")
    assert {await house.ask(talk(FIRST)) for _ in range(20)} == {"eu"}
    there = msgspec.structs.replace(CALL, region="us")
    assert {await house.ask(talk(FIRST), there) for _ in range(20)} == {"us"}


async def test_the_cheap_engine_gets_most_by_the_prices_in_force() -> None:
    prices = [
        Price(id="p1", engine="cheap", input=100_000, output=100_000),
        Price(id="p2", engine="dear", input=300_000, output=300_000),
    ]
    house = House("cheap", "dear", routing=Routing(goal="cost"), prices=prices)
    house.gateway._chooser._draw = Random(1).random
    found = Counter([await house.ask(talk(FIRST)) for _ in range(200)])
    assert 165 < found["cheap"] < 195  # nine of ten


async def test_a_dry_run_tells_prices_and_regions_and_where_a_conversation_is_at_home() -> None:
    house = House(
        "a",
        "b",
        "c",
        regions=("eu", "eu", "us"),
        prices=[Price(id="p", engine="a", input=1_000_000, output=0)],
        routing=Routing(affinity="prefix"),
    )
    request = talk(SYSTEM, FIRST)
    answered = await house.ask(request)
    told = await house.gateway.explain("chat", Facts(prompt_tokens=2000), request)
    (choice,) = told.choices
    assert choice.candidates[0].engine == answered
    assert {each.engine: (each.region, each.micro_usd) for each in choice.candidates} == {
        "a": ("eu", 2000.0),
        "b": ("eu", 0.0),
        "c": ("us", 0.0),
    }


async def test_names_that_engines_list_are_pools_with_homes_too() -> None:
    """Their targets are made up anew for every request."""
    house = House("a", "b", routing=Routing(affinity="prefix"))
    for name in "ab":
        house.gateway.pool.members[name].models = [Model(id="llama")]
    asked = msgspec.structs.replace(talk(FIRST), model="llama")
    assert len({await house.ask(asked) for _ in range(20)}) == 1
    assert len(house.gateway._chooser._alike) == 1


async def test_a_configuration_may_move_the_server_to_another_region() -> None:
    house = House("eu", "us", regions=("eu", "us"), region="eu")
    assert await house.ask(talk(FIRST)) == "eu"
    house.gateway._chooser.configure(Config(server=Server(region="us")))
    assert await house.ask(talk(FIRST)) == "us"


# --- memory -----------------------------------------------------------------------------------------------------------


def grown(house: House, prompts: int) -> int:
    """Blocks of memory that so many different prompts leave behind."""
    entry = house.gateway.catalog.resolve("chat")
    chooser = house.gateway._chooser
    chooser.decide(entry, talk(SYSTEM, FIRST), CALL)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(prompts):
        chooser.decide(entry, talk(say("system", f"You are number {number}."), say("user", f"{number}?")), CALL)
    gc.collect()
    return sys.getallocatedblocks() - before


def test_prompts_leave_nothing_behind() -> None:
    assert grown(House("a", "b", "c", routing=Routing(affinity="prefix")), 2_000) < 200


@pytest.mark.slow
def test_a_million_prompts_leave_nothing_behind() -> None:
    assert grown(House("a", "b", "c", routing=Routing(affinity="prefix")), 1_000_000) < 200
