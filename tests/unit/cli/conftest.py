"""A command line on a home of its own, and a stand-in for the server of that home."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.services import postgres, postgres_url, store, store_url
from tests.unit.cli.kit import Play, Terminal
from tests.unit.cli.standin import Answer, StandIn

__all__ = ["postgres", "postgres_url", "store", "store_url"]


@pytest.fixture
def drivetrain(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for variable in ("DRIVETRAIN_HOME", "DRIVETRAIN_URL", "DRIVETRAIN_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return Terminal(tmp_path / "home", capsys, monkeypatch)


@pytest.fixture
def house(drivetrain: Terminal) -> Terminal:
    """It has a team, `search`, and a key of it, `ci`."""
    drivetrain("teams", "create", "search")
    drivetrain("keys", "create", "--name", "ci", "--team", "search")
    return drivetrain


@pytest.fixture
def play(drivetrain: Terminal) -> Iterator[Play]:
    """Starts a stand-in for the server of this home."""
    started: list[StandIn] = []

    def start(routes: Mapping[str, Answer | Callable[[Any], Answer]]) -> StandIn:
        standin = StandIn(drivetrain.home, routes)
        started.append(standin.__enter__())
        return standin

    yield start
    for standin in started:
        standin.__exit__(None, None, None)
