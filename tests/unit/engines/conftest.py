"""Every test of the upstream client runs on both event loops: asyncio's own and uvloop, which the server uses."""

from typing import Any

import pytest


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param
