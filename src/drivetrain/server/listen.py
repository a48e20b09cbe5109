"""The HTTP server process: sockets, uvicorn, and a shutdown that lets running requests finish."""

import math
import socket
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn

from drivetrain.config.schema import Server as ServerConfig
from drivetrain.errors import BadRequest
from drivetrain.server import App
from drivetrain.server.protocol import Connection

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than the idle time of common load balancers (60 s), so that they never meet a closed one


class Listener(uvicorn.Server):
    """uvicorn, told by `stop` when to end; it handles no signals by itself. Tells when it has `started`, and when it is
    `closing`: it takes no new connections then."""

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        *,
        started: Callable[[], None],
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
                http=Connection,
                ws="none",
                interface="asgi3",  # what `app` is called by uvicorn; only `Connection` looks at it
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(config.drain_s),
            )
        )
        self._tell_started = started
        self._tell_closing = closing

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second. Once a second, callers who say nothing are hung up on."""
        if counter % 10 == 0:
            now_s = time.monotonic()
            for connection in list(self.server_state.connections):
                cast(Connection, connection).sweep(now_s, idle_s=KEEP_ALIVE_S)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._tell_closing()
        await super().shutdown(sockets=sockets)

    def stop(self) -> None:
        """Take no more connections and end when the running requests have; at once if called again."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def listen(listener: Listener, sockets: Sequence[socket.socket]) -> None:
    await listener.serve(sockets=list(sockets))


def tcp_socket(host: str, port: int, *, advice: str) -> socket.socket:
    """A listening socket. Raises `BadRequest` with the reason (in use, not ours, no such address) and the advice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise BadRequest(f"cannot listen on {host}:{port}: {error.strerror}; {advice}") from error
    return bound


def unix_socket(path: Path) -> socket.socket:
    """A listening socket at a path, in the place of one that a dead server left behind."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o600)
    bound.listen(BACKLOG)
    return bound


def url_of(bound: socket.socket) -> str:
    """What to type to reach it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
