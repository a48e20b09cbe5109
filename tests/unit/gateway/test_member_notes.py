"""What the record of a decision says of an engine beside its numbers: why it gets no requests."""

import pytest

from drivetrain.config.schema import Engine
from drivetrain.gateway.member import Member
from drivetrain.types import Health
from tests.fakes.engine import ScriptedEngine


def member(health: Health | None = None) -> Member:
    made = Member("box", Engine(kind="scripted"), ScriptedEngine("box"))
    if health is not None:
        made.health = health
    return made


@pytest.mark.parametrize(
    ("health", "note"),
    [
        (None, "not probed yet"),
        (Health(live=True, ready=True), ""),
        (Health(live=True, ready=True, awake=False), "asleep"),
        (Health(live=True, ready=False), "not ready"),
        (Health(live=True, ready=False, message="it is being warmed up"), "not ready: it is being warmed up"),
        (Health(live=False, ready=False, message="refused"), "down: refused"),
    ],
)
def test_an_engine_is_told_by_its_state(health: Health | None, note: str) -> None:
    assert member(health).note("m") == note


def test_that_it_was_drained_is_told_before_all_else() -> None:
    box = member(Health(live=False, ready=False, message="refused"))
    box.drained = True
    assert box.note("m") == "drained"
