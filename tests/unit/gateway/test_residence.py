"""Models are where the configuration wants them: warmed before traffic, pinned, loaded at the start."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.config.schema import Config, Engine, Policy, Residency, Route, Target, Warm
from drivetrain.dialects import ollama
from drivetrain.errors import EngineFailed, Forbidden, LoadFailed
from drivetrain.gateway import Gateway
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.meter import Call
from drivetrain.gateway.pool import Member
from drivetrain.gateway.residence import DIALECT
from drivetrain.gateway.warmth import WARMING
from drivetrain.gateway.wishes import wishes
from drivetrain.quota.memory import MemoryQuota
from drivetrain.rollouts.plan import Arm, Plan, Prompt, Rollout, Stage
from drivetrain.types import Embeddings, EmbedRequest, Health, Loaded, Model
from tests.fakes import FakeUpstream
from tests.fakes.engine import ANSWER, EmptyLibrary, NoHost, Notebook, ScriptedEngine, Step, ask
from tests.fakes.manners import MODEL

pytestmark = pytest.mark.anyio
SYSTEM = "You are a sailor."
AWAY = Health(live=False, ready=False)
HERE = Health(live=True, ready=True)
NO_PLAN = Plan()


class Shelf(ScriptedEngine):
    """It has models to load, and remembers who asked for which."""

    def __init__(self, name: str, *scripts: Sequence[Step]) -> None:
        super().__init__(name, *scripts, vectors=Embeddings(vectors=((1.0,),)))
        self.there: set[str] = set()
        self.loads: list[tuple[str, float | None]] = []
        self.embedded: list[EmbedRequest] = []
        self.full = False

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        self.loads.append((model, keep_alive_s))
        if self.full:
            raise LoadFailed("no room")
        self.there.add(model)

    async def loaded(self) -> Sequence[Loaded]:
        return [Loaded(model=Model(id=model), size_bytes=1) for model in sorted(self.there)]

    async def embed(self, request: EmbedRequest) -> Embeddings:
        self.embedded.append(request)
        return await super().embed(request)


def gateway_of(config: Config, *engines: ScriptedEngine, plan: Plan = NO_PLAN) -> tuple[Gateway, Notebook]:
    notebook = Notebook()
    gateway = Gateway(config, EmptyLibrary(), NoHost(), notebook, MemoryQuota(), plan=lambda: plan)
    for engine in engines:
        member = Member(engine.name, Engine(kind=engine.kind), engine)
        member.warms = gateway.pool.warms
        gateway.pool.members[engine.name] = member
    gateway.residence.configure(config, gateway.catalog)
    return gateway, notebook


def config_of(policy: Policy | None = None, *, engines: Sequence[str] = ("a",), **residency: Any) -> Config:
    """The models `chat` and `other` at each of these engines."""
    routes = {
        name: Route(targets=tuple(Target(engine=engine, model=f"{name}-model") for engine in engines))
        for name in ("chat", "other")
    }
    models = {**routes, "chat": Route(targets=routes["chat"].targets, policy="warm")}
    return Config(models=models, policies={"warm": policy or Policy()}, residency=Residency(**residency))


@asynccontextmanager
async def at_work(gateway: Gateway) -> AsyncIterator[None]:
    """Its engines have been probed once, and are attended to."""
    for member in gateway.pool.members.values():
        await gateway.pool.probe(member)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(gateway.residence.run())
        yield
        task.cancel()


async def until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drivetrain.gateway.residence.LOOK_S", 0.005)
    monkeypatch.setattr("drivetrain.gateway.residence.KEEP_S", 0.02)


# --- warm before traffic ----------------------------------------------------------------------------------------------


async def test_an_engine_reads_the_system_prompts_before_it_takes_requests() -> None:
    engine = Shelf("a")
    gateway, notebook = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,), load=True))), engine)
    member = gateway.pool.members["a"]
    assert member.health.message == WARMING
    async with at_work(gateway):
        await until(lambda: member.health.ready)
    assert engine.loads == [("chat-model", None)]
    [request] = engine.asked
    assert [(message.role, message.text) for message in request.messages] == [("system", SYSTEM), ("user", "Hi")]
    assert (request.model, request.sampling.max_tokens) == ("chat-model", 1)
    assert [notice.name for notice in notebook.notices] == ["engine.up", "engine.warming", "engine.warm"]


async def test_a_warm_up_is_on_record_and_nobody_s() -> None:
    gateway, notebook = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,)))), Shelf("a"))
    async with at_work(gateway):
        await until(lambda: notebook.attempts)
    [row] = notebook.attempts
    assert (row.dialect, row.model, row.engine, row.outcome, row.why) == (DIALECT, "chat", "a", "ok", "warm-up")
    assert (row.key_id, row.prompt_tokens, row.completion_tokens) == ("", 5, 2)


@pytest.mark.parametrize("outcome", ["ok", "error"])
@pytest.mark.parametrize(("version", "told"), [("v2", "v2"), ("", "ab" * 6)])
async def test_the_row_of_a_warm_up_tells_the_version_as_a_callers_does(version: str, told: str, outcome: str) -> None:
    engine = Shelf("a", ANSWER if outcome == "ok" else [EngineFailed("no")])
    engine.listed = (Model(id="m", digest="sha256:" + "ab" * 32),)
    route = Route(targets=(Target(engine="a", model="m", version=version),), policy="warm")
    config = Config(models={"chat": route}, policies={"warm": Policy(warm=Warm(prompts=(SYSTEM,)))})
    gateway, notebook = gateway_of(config, engine)
    async with at_work(gateway):
        await until(lambda: notebook.attempts)
    assert [(row.outcome, row.model_version) for row in notebook.attempts] == [(outcome, told)]


async def test_until_it_is_warm_another_engine_is_asked() -> None:
    cold, warm = Shelf("cold", [60.0]), Shelf("warm")
    gateway, _ = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,))), engines=("cold", "warm")), cold, warm)
    async with at_work(gateway):
        await until(lambda: gateway.pool.members["warm"].health.ready)
        for _ in range(8):
            [_ async for _ in gateway.generate(ask(), Call(id="r", dialect="openai.chat", received_s=0))]
    assert len(cold.asked) == 1  # the warm-up, which still runs
    assert len(warm.asked) == 9


async def test_an_engine_that_comes_back_is_warmed_again() -> None:
    engine = Shelf("a")
    gateway, _ = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,)))), engine)
    member = gateway.pool.members["a"]
    async with at_work(gateway):
        await until(lambda: member.health.ready)
        engine.state = AWAY
        await gateway.pool.probe(member)
        engine.state = HERE
        await gateway.pool.probe(member)
        assert (member.health.ready, member.health.message) == (False, WARMING)
        await until(lambda: member.health.ready)
    assert len(engine.asked) == 2


async def test_a_probe_alone_warms_nothing_again() -> None:
    engine = Shelf("a")
    gateway, _ = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,)))), engine)
    member = gateway.pool.members["a"]
    async with at_work(gateway):
        await until(lambda: member.health.ready)
        await gateway.pool.probe(member)
        assert member.health.ready
    assert len(engine.asked) == 1


@pytest.mark.parametrize("script", [[EngineFailed("broken")], [60.0]])
async def test_an_engine_that_cannot_be_warmed_takes_requests_all_the_same(script: Sequence[Step]) -> None:
    engine = Shelf("a", script)
    gateway, _ = gateway_of(config_of(Policy(warm=Warm(prompts=(SYSTEM,), within_s=0.05))), engine)
    async with at_work(gateway):
        await until(lambda: gateway.pool.members["a"].health.ready)
    assert len(engine.asked) == 1


class Wrong(Shelf):
    """It breaks where nobody thought that it would."""

    async def load(self, model: str, **_: Any) -> None:
        raise LookupError(model)

    async def health(self) -> Health:
        raise LookupError("health")


async def test_an_engine_that_breaks_keeps_no_other_from_being_warmed(caplog: pytest.LogCaptureFixture) -> None:
    wrong, engine = Wrong("a"), Shelf("b")
    gateway, _ = gateway_of(config_of(Policy(warm=Warm(load=True)), engines=("a", "b")), wrong, engine)
    wrong_member, member = gateway.pool.members.values()
    await gateway.pool.probe(member)
    wrong_member.health = wrong_member.warmth.judge(HERE, needed=True)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gateway.residence.run()), group.create_task(gateway.pool.run())]
        await until(
            lambda: "the models that engine 'a' is to have" in caplog.text and "probes of engine 'a'" in caplog.text
        )
        await until(lambda: member.health.ready)
        assert [task.done() for task in tasks] == [False, False]
        for task in tasks:
            task.cancel()
    assert engine.there == {"chat-model"}


async def test_a_new_configuration_warms_what_is_new_in_it_without_taking_the_engine_out() -> None:
    engine = Shelf("a")
    gateway, _ = gateway_of(config_of(), engine)
    member = gateway.pool.members["a"]
    async with at_work(gateway):
        config = config_of(Policy(warm=Warm(prompts=(SYSTEM,))), preload=("other",))
        gateway.configure(config)
        gateway.pool.members["a"] = member  # which came by no configuration
        await until(lambda: engine.asked)
        await gateway.pool.probe(member)
        assert member.health.ready
        await until(lambda: engine.loads == [("other-model", None)])
        more = replace(config, residency=Residency(preload=("other", "chat")))
        gateway.residence.configure(more, gateway.catalog)
        await until(lambda: len(engine.loads) == 2)
    assert engine.loads[1:] == [("chat-model", None)]  # and nothing again that it had


async def test_the_engine_of_a_rollout_is_warm_before_callers_reach_it() -> None:
    old, new = Shelf("old"), Shelf("new")
    arm = Arm(name="new", targets=(Target(engine="new", model="next-model"),))
    rollout = Rollout(id="r", model="chat", arms=(Arm(name="baseline"), arm), stages=(Stage(percent=1),))
    config = config_of(Policy(warm=Warm(prompts=(SYSTEM,))), engines=("old",))
    gateway, _ = gateway_of(config, old, new, plan=Plan(rollouts={"chat": rollout}))
    member = gateway.pool.members["new"]
    assert not member.health.ready
    async with at_work(gateway):
        await until(lambda: member.health.ready)
    assert [request.model for request in old.asked + new.asked] == ["chat-model", "next-model"]


# --- pinned and loaded at the start -----------------------------------------------------------------------------------


async def test_pinned_and_preloaded_models_are_loaded_at_every_engine_that_has_them() -> None:
    engines = Shelf("a"), Shelf("b")
    gateway, _ = gateway_of(config_of(engines=("a", "b"), pin=("chat",), preload=("other",)), *engines)
    async with at_work(gateway):
        await until(lambda: all(len(engine.there) == 2 for engine in engines))
    assert [engine.loads for engine in engines] == [[("chat-model", -1.0), ("other-model", None)]] * 2
    assert all(member.health.ready for member in gateway.pool.members.values())


async def test_a_pinned_model_that_has_gone_is_brought_back_and_a_preloaded_one_is_not() -> None:
    engine = Shelf("a")
    gateway, _ = gateway_of(config_of(pin=("chat",), preload=("other",)), engine)
    async with at_work(gateway):
        await until(lambda: len(engine.there) == 2)
        engine.there.clear()
        await until(lambda: engine.there)
        await until(lambda: len(engine.loads) == 3)
    assert engine.loads[-1] == ("chat-model", -1.0)


async def test_a_pinned_model_that_cannot_be_loaded_is_tried_again_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Shelf("a")
    engine.full = True
    gateway, _ = gateway_of(config_of(pin=("chat",)), engine)
    async with at_work(gateway):
        await until(lambda: len(engine.loads) > 3)
    assert [record.getMessage() for record in caplog.records] == [
        "model 'chat-model' could not be made ready at engine 'a': no room"
    ]


async def test_a_pinned_model_is_not_sent_away() -> None:
    gateway, _ = gateway_of(config_of(pin=("chat",)), Shelf("a"))
    with pytest.raises(Forbidden, match=r"model 'chat' is pinned: .*`residency\.pin`"):
        await gateway.dismiss("chat")
    await gateway.dismiss("other")


async def kept(gateway: Gateway, engine: Shelf, model: str, asked_s: float | None) -> tuple[float | None, float | None]:
    """How long the engine is told to keep the model, with a chat and with an input to embed."""
    call = Call(id="r", dialect="ollama.chat", received_s=0)
    [_ async for _ in gateway.generate(replace(ask(model=model), keep_alive_s=asked_s), call)]
    await gateway.embed(EmbedRequest(model=model, inputs=("a",), keep_alive_s=asked_s), call)
    return engine.asked[-1].keep_alive_s, engine.embedded[-1].keep_alive_s


@pytest.mark.parametrize(
    ("policy_s", "pin", "asked_s", "expected"),
    [
        (None, (), None, None),
        (None, (), 60.0, 60.0),
        (900.0, (), None, 900.0),
        (900.0, (), 0.0, 0.0),
        (900.0, ("chat",), None, -1.0),
        (900.0, ("chat",), 0.0, -1.0),
    ],
)
async def test_how_long_a_model_is_kept_says_the_pin_then_the_request_then_the_policy(
    policy_s: float | None, pin: Sequence[str], asked_s: float | None, expected: float | None
) -> None:
    engine = Shelf("a", ANSWER)
    gateway, _ = gateway_of(config_of(Policy(keep_alive_s=policy_s), pin=tuple(pin)), engine)
    assert await kept(gateway, engine, "chat", asked_s) == (expected, expected)


async def test_an_ollama_is_told_so_whatever_its_caller_said() -> None:
    async with FakeUpstream() as upstream:
        route = Route(targets=(Target(engine="box", model=MODEL),))
        engines = {"box": Engine(kind="ollama", url=upstream.url)}
        config = Config(engines=engines, models={"chat": route}, residency=Residency(pin=("chat",)))
        gateway, _ = gateway_of(config)

        def bodies(path: str) -> list[Any]:
            return [request.json for request in upstream.requests if request.path == path]

        async with at_work(gateway):
            await until(lambda: bodies("/api/generate"))
        said = b'{"model":"chat","messages":[{"role":"user","content":"Hi"}],"keep_alive":"0s"}'
        call = Call(id="r", dialect="ollama.chat", received_s=0)
        [_ async for _ in gateway.generate(ollama.CHAT.decode_request(said), call)]
        vectors = ollama.decode_embed_request(b'{"model":"chat","input":"Hi","keep_alive":0}')
        await gateway.embed(vectors, call)
        await gateway.aclose()
    assert bodies("/api/generate") == [{"model": MODEL, "stream": False, "keep_alive": -1}]
    assert [body["keep_alive"] for body in bodies("/api/chat") + bodies("/api/embed")] == [-1, -1]


# --- what is wanted ---------------------------------------------------------------------------------------------------


def entry(name: str, *places: str, policy: Policy | None = None, weight: int = 1) -> Entry:
    targets = [
        Target(engine=engine, model=model, weight=weight) for engine, model in (one.split("/") for one in places)
    ]
    return Entry(name=name, targets=targets, policy=policy or Policy())


def test_nothing_is_wanted_of_models_of_which_nothing_is_said() -> None:
    assert wishes([entry("chat", "a/m")], pinned=[], preloaded=[]) == ()


def test_a_model_is_pinned_under_every_name_that_leads_to_it() -> None:
    chat = entry("chat", "a/m:latest", policy=Policy(warm=Warm(load=True)))
    found = wishes([chat], pinned=[entry("pinned", "a/M")], preloaded=[])
    assert [(wish.name, wish.pinned, wish.first) for wish in found] == [("pinned", True, False), ("chat", True, True)]


def test_the_prompt_of_a_policy_or_of_a_rollout_is_read_with_the_others() -> None:
    warmed = entry("chat", "a/m", policy=Policy(warm=Warm(prompts=(SYSTEM,))))
    prompt = Prompt(name="sailor", version=2, text="You are a sailor of few words.")
    sides = [warmed, replace(warmed, prompt=prompt), replace(warmed, prompt=replace(prompt, text="You are {name}."))]
    found = wishes(sides, pinned=[], preloaded=[])
    assert [wish.prompts for wish in found] == [(SYSTEM,), (SYSTEM, prompt.text)]


def test_a_target_that_is_out_of_rotation_gets_nothing() -> None:
    assert wishes([], pinned=[entry("chat", "a/m", weight=0)], preloaded=[]) == ()


def test_pinned_models_come_first_then_those_that_are_loaded_in_their_order() -> None:
    found = wishes([], pinned=[entry("c", "a/c")], preloaded=[entry("b", "a/b"), entry("a", "a/a")])
    assert [wish.name for wish in found] == ["c", "b", "a"]
