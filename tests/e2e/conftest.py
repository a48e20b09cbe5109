"""What end-to-end tests share: one server with the real small model for all that do not need their own, an engine that
is a fake, places where replicas keep what they share."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.e2e.replicas import Place
from tests.e2e.servers import Server, add_small_model, serving
from tests.fakes.upstream import FakeUpstream
from tests.services import new_database
from tests.services_redis import new_redis


@pytest.fixture(scope="session")
async def drivetrain(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    """A server whose embedded engine has SmolLM2-135M as `smollm2:135m`."""
    home: Path = tmp_path_factory.mktemp("drivetrain")
    add_small_model(home)
    async with serving(home) as server:
        yield server


@pytest.fixture
async def mock() -> AsyncGenerator[FakeUpstream, None]:
    """An engine that is a fake, to be scripted."""
    async with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(params=["sqlite", "postgres and redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where replicas keep what they share, by either way."""
    if request.param == "sqlite":
        return Place(tmp_path, f"sqlite:///{tmp_path}/shared.db", None)
    return Place(tmp_path, new_database(request), new_redis(request))
