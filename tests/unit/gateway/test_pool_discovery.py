"""Instances of an engine are found by a list, by DNS or in a file; they come and go while requests run."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from drivetrain.config.schema import Breaker as Rules
from drivetrain.config.schema import Config, Discover, Engine, Policy, Route, Target
from drivetrain.errors import EngineOverloaded, EngineUnavailable
from drivetrain.gateway import Call, Gateway
from drivetrain.gateway.discovery import Unknown, addresses, family, instances
from drivetrain.gateway.member import Member
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.pool import Pool
from drivetrain.quota.memory import MemoryQuota
from drivetrain.router import Candidate
from drivetrain.types import Health, Notice
from tests.fakes import FakeUpstream
from tests.fakes.engine import EmptyLibrary, NoHost, Notebook, ScriptedEngine, ask, gateway_over
from tests.fakes.manners import MODEL

pytestmark = pytest.mark.anyio
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)


class At(NoHost):
    def __init__(self, home: Path) -> None:
        self.home = home


class Names:
    """A name server."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Sequence[str] | Exception = addresses

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses


# --- where they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["- http://a:1\n- http://b:2\n- http://a:1\n", '["http://a:1", "http://b:2"]', "[http://a:1, http://b:2]"]
)
async def test_a_file_lists_urls_in_yaml_or_json_each_of_which_counts_once(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(text)
    assert await addresses(Discover(file="gpus.yaml"), tmp_path) == ("http://a:1", "http://b:2")


@pytest.mark.parametrize("text", ["a: b", "- 1", "[", "", "\x00"])
async def test_what_is_no_list_of_urls_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(text)
    with pytest.raises(Unknown, match="could not be read as a list of URLs"):
        await addresses(Discover(file="gpus.yaml"), tmp_path)


async def test_every_address_of_a_name_is_an_instance(tmp_path: Path) -> None:
    found = await addresses(Discover(dns="gpu.local:8000"), tmp_path, Names("10.0.0.5", "10.0.0.6", "fd00::7"))
    assert found == ("http://10.0.0.5:8000", "http://10.0.0.6:8000", "http://[fd00::7]:8000")


async def test_a_name_is_looked_up_as_the_system_does(tmp_path: Path) -> None:
    assert "http://127.0.0.1:8000" in await addresses(Discover(dns="localhost:8000"), tmp_path)
    with pytest.raises(Unknown, match="could not be resolved"):
        await addresses(Discover(dns="nobody.invalid:8000"), tmp_path)


async def test_more_than_a_thousand_are_taken_for_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps([f"http://a:{number}" for number in range(1001)]))
    with pytest.raises(Unknown, match="there are 1001, and 1000 are the most"):
        await addresses(Discover(file="gpus.json"), tmp_path)


def test_an_instance_is_called_after_its_engine_and_its_place() -> None:
    found = instances(
        "gpu", Engine(kind="vllm", api_key="k", discover=Discover(list=("x",))), ["http://a:1/", "unix:/s"]
    )
    assert found == {
        "gpu@a:1": Engine(kind="vllm", api_key="k", url="http://a:1/"),
        "gpu@unix:/s": Engine(kind="vllm", api_key="k", url="unix:/s"),
    }
    assert [family(name) for name in (*found, "box-1")] == ["gpu", "gpu", "box-1"]


# --- who is a member --------------------------------------------------------------------------------------------------


class Watched:
    """A pool over one engine whose instances a file tells, and its notices."""

    def __init__(self, home: Path, *urls: str, resolve: Names | None = None) -> None:
        self.told: list[Notice] = []
        self.file = home / "gpus.json"
        self.write(*urls)
        self.pool = Pool(At(home), self.told.append, resolve or Names())
        discover = Discover(dns="gpu.local:1") if resolve else Discover(file="gpus.json")
        self.pool.open(
            {"box": Engine(kind="openai", url="http://b:1"), "gpu": Engine(kind="openai", discover=discover)}
        )

    def write(self, *urls: str) -> None:
        self.file.write_text("[" + ",".join(f'"{url}"' for url in urls) + "]")

    def names(self) -> list[str]:
        return sorted(self.pool.members)

    def notices(self) -> list[tuple[str, str | None]]:
        return [(notice.name, notice.engine) for notice in self.told]


async def test_instances_join_and_leave_and_who_stays_is_the_same(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "http://a:1", "http://b:1")
    await watched.pool.seek()
    assert watched.names() == ["box", "gpu@a:1", "gpu@b:1"]
    stays = watched.pool.members["gpu@b:1"]
    watched.write("http://b:1", "http://c:1")
    await watched.pool.seek()
    assert watched.names() == ["box", "gpu@b:1", "gpu@c:1"]
    assert watched.pool.members["gpu@b:1"] is stays
    assert watched.pool.families == {"gpu": ["gpu@b:1", "gpu@c:1"]}
    assert watched.notices()[-2:] == [("engine.left", "gpu@a:1"), ("engine.joined", "gpu@c:1")]
    await watched.pool.aclose()


async def test_while_nobody_can_tell_the_instances_that_are_known_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names("10.0.0.5")
    watched = Watched(tmp_path, resolve=names)
    await watched.pool.seek()
    names.addresses = OSError("the name servers are away")
    for _ in range(2):
        await watched.pool.seek()
    assert watched.names() == ["box", "gpu@10.0.0.5:1"]
    assert caplog.text.count("keeps the instances that are known") == 1
    names.addresses = ()
    await watched.pool.seek()
    assert watched.names() == ["box"]
    await watched.pool.aclose()


async def test_an_address_that_is_none_is_left_out_and_the_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, "http://a:1", "nonsense", "http://user:word@c:1", "http://[::1", "ftp://a:1")
    for _ in range(2):
        await watched.pool.seek()
    assert watched.names() == ["box", "gpu@a:1"]
    assert caplog.text.count("an instance is left out") == 4
    await watched.pool.aclose()


async def test_a_new_configuration_keeps_what_was_found_until_it_has_looked_itself(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "http://a:1")
    await watched.pool.seek()
    kept = watched.pool.members["gpu@a:1"]
    same = {"gpu": Engine(kind="openai", discover=Discover(file="gpus.json"))}
    assert [gone.name for gone in watched.pool.open(same)] == ["box"]
    assert watched.pool.members["gpu@a:1"] is kept
    other = {"gpu": Engine(kind="openai", discover=Discover(file="elsewhere.json"))}
    watched.pool.open(other, Rules(failures=1))
    assert watched.names() == ["gpu@a:1"]
    listed = {"gpu": Engine(kind="openai", discover=Discover(list=("http://c:1",)))}
    watched.pool.open(listed)
    assert watched.names() == ["gpu@c:1"]
    await watched.pool.aclose()


@asynccontextmanager
async def at_work(pool: Pool) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pool.run())
        try:
            yield
        finally:
            running.cancel()
    await pool.aclose()


async def gateway_at(home: Path, discover: Discover) -> tuple[Gateway, Notebook]:
    notebook = Notebook()
    route = Route(targets=(Target(engine="gpu", model=MODEL),))
    engines = {"gpu": Engine(kind="openai", discover=discover)}
    config = Config(engines=engines, models={"chat": route}, policies={"default": Policy()})
    gateway = Gateway(config, EmptyLibrary(), At(home), notebook, MemoryQuota())
    await gateway.pool.seek()
    return gateway, notebook


async def said(gateway: Gateway, times: int = 1) -> None:
    for _ in range(times):
        async with aclosing(gateway.generate(ask(), CALL)) as batches:
            assert [events async for events in batches]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.01)


async def test_a_target_that_names_the_engine_reaches_every_instance_that_there_is_then(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    async with FakeUpstream() as one, FakeUpstream() as two, FakeUpstream() as three:
        file.write_text(f"[{one.url}, {two.url}]")
        gateway, notebook = await gateway_at(tmp_path, Discover(file="gpus.yaml", every_s=0.02))
        async with at_work(gateway.pool):
            await said(gateway, 40)
            assert {family(row.engine) for row in notebook.attempts} == {"gpu"}
            assert len({row.engine for row in notebook.attempts}) == 2
            file.write_text(f"[{two.url}, {three.url}]")
            await until(lambda: any(name.endswith(three.url[-6:]) for name in gateway.pool.members))
            notebook.attempts.clear()
            await said(gateway, 40)
            assert {row.outcome for row in notebook.attempts} == {"ok"}
            assert len({row.engine for row in notebook.attempts}) == 2
            assert not any(row.engine.endswith(one.url[-6:]) for row in notebook.attempts)


async def test_requests_at_an_instance_that_leaves_are_finished_and_then_it_is_closed(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "http://127.0.0.1:1")
    await watched.pool.seek()
    member = watched.pool.members["gpu@127.0.0.1:1"]
    engine = Closing("gpu@127.0.0.1:1")
    member.engine = engine
    async with at_work(watched.pool):
        meter = Meter(Candidate(engine=member.name, model=MODEL, why=""), 1)
        member.begins(meter)
        watched.write()
        await watched.pool.seek()
        assert watched.names() == ["box"]
        await asyncio.sleep(0)
        assert not engine.ended
        member.ends(meter, worked=None)
        await until(lambda: engine.ended)


async def test_an_engine_without_an_instance_says_so(tmp_path: Path) -> None:
    gateway, _ = await gateway_at(tmp_path, Discover(dns="nobody.invalid:1"))
    with pytest.raises(EngineUnavailable, match="engine 'gpu' has no instance: `discover` has found none"):
        await said(gateway)


# --- who is out -------------------------------------------------------------------------------------------------------


async def test_a_drained_engine_gets_no_request_while_others_do_and_takes_up_its_share_when_it_is_resumed() -> None:
    engines = [ScriptedEngine(name) for name in ("a", "b", "c")]
    route = Route(targets=tuple(Target(engine=engine.name, model="m") for engine in engines))
    gateway, notebook = gateway_over(*engines, route=route)
    gateway.pool.drain(frozenset({"a"}))
    await said(gateway, 60)
    assert engines[0].asked == []
    gateway.pool.drain(frozenset())
    await said(gateway, 60)
    assert engines[0].asked
    assert [notice.name for notice in notebook.notices] == ["engine.drained", "engine.resumed"]


async def test_who_is_drained_is_not_even_asked_when_all_others_fail() -> None:
    a, b = ScriptedEngine("a"), ScriptedEngine("b", (EngineUnavailable("away"),))
    gateway, _ = gateway_over(a, b, route=Route(targets=(Target(engine="a", model="m"), Target(engine="b", model="m"))))
    gateway.pool.drain(frozenset({"a"}))
    with pytest.raises(EngineUnavailable):
        await said(gateway)
    assert a.asked == []


async def test_where_all_are_drained_the_caller_is_told_and_no_engine_is_blamed() -> None:
    engine = ScriptedEngine("a")
    gateway, _ = gateway_over(engine)
    gateway.pool.drain(frozenset({"a"}))
    for _ in range(10):
        with pytest.raises(EngineOverloaded, match="engine 'a' gets no new requests: it was drained") as caught:
            await said(gateway)
    assert caught.value.retry_after_s == 1.0
    assert engine.asked == []
    assert gateway.pool.members["a"].standing().state == "closed"


async def test_whoever_joins_a_drained_engine_is_drained_too(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "http://a:1")
    watched.pool.drain(frozenset({"gpu"}))
    await watched.pool.seek()
    assert [member.drained for member in watched.pool.members.values()] == [False, True]
    watched.pool.drain(frozenset({"gpu@a:1"}))
    assert [member.drained for member in watched.pool.members.values()] == [False, True]
    await watched.pool.aclose()


class Closing(ScriptedEngine):
    ended = False

    async def aclose(self) -> None:
        self.ended = True


def test_a_member_that_sleeps_is_asked_when_the_others_have_more_to_do_than_it_is_worth() -> None:
    one = Member("a", Engine(kind="scripted"), ScriptedEngine("a"))
    assert one.standing().share == 1.0
    one.found(Health(live=True, ready=True, awake=False))
    assert (one.standing().able, one.standing().share) == (True, 0.05)
