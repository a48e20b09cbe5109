"""What all tests share: asyncio as the one event loop library, and hypothesis profiles."""

import os

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
