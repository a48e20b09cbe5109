"""What all tests share: asyncio as the one event loop library, hypothesis profiles, and servers to test against."""

import os
import signal

import pytest
from hypothesis import settings

from tests.services import postgres, postgres_url, store, store_url  # noqa: F401 - fixtures, for all of them
from tests.services_redis import redis_server, redis_url  # noqa: F401

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in a shell's background: what the tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
