"""Engines come and go; the pool tells each change once, however it was noticed."""

import pytest

from drivetrain.config.schema import Engine
from drivetrain.gateway.pool import Member, Pool
from drivetrain.types import Health, Notice
from tests.fakes.engine import NoHost, ScriptedEngine

pytestmark = pytest.mark.anyio

UP = Health(live=True, ready=True, message="version 1, 2 models loaded")
DOWN = Health(live=False, ready=False, message="connection refused")


class Watched:
    """A pool with one engine, and what it told."""

    def __init__(self) -> None:
        self.told: list[Notice] = []
        self.pool = Pool(NoHost(), self.told.append)
        self.engine = ScriptedEngine("box")
        self.member = Member("box", Engine(kind="scripted"), self.engine)
        self.pool.members["box"] = self.member

    async def probe(self, health: Health) -> None:
        self.engine.state = health
        await self.pool.probe(self.member)


async def test_the_first_probe_tells_how_an_engine_is_and_the_next_only_what_changed() -> None:
    watched = Watched()
    for health in (UP, UP, DOWN, DOWN, UP):
        await watched.probe(health)
    assert watched.told == [
        Notice(name="engine.up", engine="box"),
        Notice(name="engine.down", engine="box", error="connection refused"),
        Notice(name="engine.up", engine="box"),
    ]


async def test_an_engine_that_a_request_found_away_is_told_to_be_down() -> None:
    watched = Watched()
    await watched.probe(UP)
    watched.member.lost("no route to host")
    await watched.probe(DOWN)
    assert [notice.name for notice in watched.told] == ["engine.up", "engine.down"]


async def test_an_engine_that_answers_but_takes_no_requests_says_why() -> None:
    watched = Watched()
    await watched.probe(Health(live=True, ready=False, message="it refused our api_key (401)"))
    assert watched.told == [Notice(name="engine.up", engine="box", error="it refused our api_key (401)")]
