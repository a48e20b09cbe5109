"""What the contract suite needs: one event loop library, and failures that show their values."""

import pytest

pytest.register_assert_rewrite("drivetrain.engines.contract")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
