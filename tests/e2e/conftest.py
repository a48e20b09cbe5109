"""One server with the real small model for all end-to-end tests that do not need their own."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.e2e.servers import Server, add_small_model, serving


@pytest.fixture(scope="session")
async def drivetrain(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    """A server whose embedded engine has SmolLM2-135M as `smollm2:135m`."""
    home: Path = tmp_path_factory.mktemp("drivetrain")
    add_small_model(home)
    async with serving(home) as server:
        yield server
