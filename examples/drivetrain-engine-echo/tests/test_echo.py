"""The contract of an engine, kept by the echo; then what only an echo does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import pytest
from drivetrain_engine_echo import Echo

from drivetrain.engines import EngineSettings, open_engine
from drivetrain.engines.contract import EngineContract, Subject, answer_of, chat
from drivetrain.errors import BadRequest


class NoHost:
    """What Drivetrain offers an engine. An echo asks for none of it."""

    home = Path("/nonexistent")
    default_keep_alive_s = 300.0

    def lookup(self, model: str) -> NoReturn:
        raise AssertionError(model)

    def notify(self, notice: object) -> NoReturn:
        raise AssertionError(notice)

    def pinned(self, model: str) -> NoReturn:
        raise AssertionError(model)

    def evictions(self, resident: object, *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0) -> NoReturn:
        raise AssertionError(resident)


class TestEcho(EngineContract):
    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        engine = open_engine("parrot", EngineSettings(kind="echo"), NoHost())
        assert isinstance(engine, Echo)

        async def running() -> int:
            return engine.running

        yield Subject(engine=engine, model="echo", running=running)
        await engine.aclose()


async def test_it_says_what_it_was_told() -> None:
    engine = Echo("parrot", EngineSettings(kind="echo", options={"pause_s": 0}), NoHost())
    answer = await answer_of(engine, chat("echo"))
    assert (answer.choices[0].text, answer.choices[0].reason) == ("Tell me about the sea.", "stop")


async def test_it_stops_at_the_limit_of_tokens() -> None:
    engine = Echo("parrot", EngineSettings(kind="echo", options={"pause_s": 0}), NoHost())
    answer = await answer_of(engine, chat("echo", max_tokens=2))
    assert (answer.choices[0].text, answer.choices[0].reason) == ("Tell me", "length")


def test_a_setting_that_it_does_not_know_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match=r"engines\.parrot: .*volume"):
        Echo("parrot", EngineSettings(kind="echo", options={"volume": 11}), NoHost())
