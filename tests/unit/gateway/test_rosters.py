"""What the choice knows of lists of targets: which are told apart, what a broken model changes, how much is kept."""

from collections.abc import Sequence

import pytest

from drivetrain.config.schema import Config, Engine, Policy, Route, Target
from drivetrain.errors import BadRequest
from drivetrain.gateway import Call
from drivetrain.gateway.catalog import Catalog, Entry
from drivetrain.gateway.choose import MOST, Chooser
from drivetrain.gateway.pool import Member, Pool
from drivetrain.policies.prices import Table
from drivetrain.router import Candidate, Decision
from drivetrain.types import Health, Model, ModelSpec
from tests.fakes.engine import EmptyLibrary, NoHost, ScriptedEngine, ask

CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0)
LOCAL, REMOTE = Target(engine="local", model="m"), Target(engine="remote", model="m")


class Shelf(EmptyLibrary):
    """With one model, `m`, which may be broken."""

    def __init__(self) -> None:
        self.broken = False
        self.looks = 0

    def lookup(self, model: str) -> ModelSpec:
        self.looks += 1
        if model != "m":
            return super().lookup(model)
        if self.broken:
            raise BadRequest("model 'm' is broken: its weights are gone")
        return ModelSpec(id="m", model=Model(id="m", digest="b" * 64))


class House:
    """A choice among an engine of our own and another one."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.pool = Pool(NoHost(), lambda notice: None)
        for name, kind in (("local", "llamacpp"), ("remote", "vllm")):
            member = self.pool.members[name] = Member(name, Engine(kind=kind), ScriptedEngine(name))
            member.changed = self.pool.changed
            member.health = Health(live=True, ready=True)
        self.chooser = Chooser(self.pool, self.shelf, Table)

    def decide(self, *targets: Target) -> Decision:
        return self.chooser.decide(Entry(name="chat", targets=targets, policy=Policy()), ask(), CALL)

    def first(self, *targets: Target) -> Candidate:
        found = self.decide(*targets).first
        assert found is not None
        return found


def versions(version: str, *engines: str) -> Sequence[Target]:
    return tuple(Target(engine=name, model="m", version=version) for name in engines)


# --- what is told apart -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", [("remote",), ("local", "remote")])
def test_targets_that_differ_in_their_version_alone_are_others(engines: Sequence[str]) -> None:
    house = House()
    assert house.first(*versions("one", *engines)).version == "one"
    assert house.first(*versions("two", *engines)).version == "two"


def test_the_version_of_an_embedded_model_is_what_the_next_request_gets_though_an_older_one_is_in_memory() -> None:
    house = House()
    house.pool.members["local"].models = [Model(id="m", digest="a" * 64)]
    assert house.chooser.version(LOCAL) == "b" * 12
    assert house.chooser.version(Target(engine="local", model="gone")) == ""


# --- a model that is broken -------------------------------------------------------------------------------------------


def test_a_broken_model_leaves_the_choice_of_the_others() -> None:
    house = House()
    house.shelf.broken = True
    assert {each.engine for each in house.decide(LOCAL, REMOTE).order} == {"local", "remote"}


def test_nothing_is_known_of_a_broken_model() -> None:
    house = House()
    house.shelf.broken = True
    assert house.chooser.version(LOCAL) == ""
    routes = {"chat": Route(targets=(LOCAL,))}
    assert [model.id for model in Catalog(Config(models=routes), house.shelf, house.pool.members).models()] == ["chat"]


# --- how much is kept -------------------------------------------------------------------------------------------------


def test_a_lone_target_needs_no_groups_until_somebody_asks_how_it_stands() -> None:
    house = House()
    decision = house.decide(LOCAL)
    assert [(each.engine, each.why) for each in decision.order] == [("local", "only target")]
    assert house.shelf.looks == 0
    assert [(each.engine, each.position, each.why) for each in decision.considered] == [("local", 1, "only target")]


def test_lists_that_are_alike_have_one_roster_and_each_is_known_the_next_time() -> None:
    house = House()
    one, two = ((Target(engine="local", model="m"), Target(engine="remote", model="m")) for _ in range(2))
    assert house.chooser.roster(one) is house.chooser.roster(two)
    assert set(house.chooser._rosters) == {id(one), id(two)}


def test_lists_that_are_made_up_for_every_request_leave_no_more_than_so_many_behind() -> None:
    house = House()
    lists = [(Target(engine="local", model="m"), Target(engine="remote", model="m")) for _ in range(2 * MOST)]
    assert len({id(house.chooser.roster(targets)) for targets in lists}) == 1
    assert len(house.chooser._rosters) <= MOST
    for number in range(2 * MOST):
        house.chooser.roster((Target(engine=f"e{number}", model="m"), REMOTE))
    assert len(house.chooser._alike) <= MOST
    assert len(house.chooser._rosters) <= MOST
