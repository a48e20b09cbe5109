"""Which handler answers which method and path, as one table."""

from collections.abc import Awaitable, Callable

from drivetrain.dialects import openai
from drivetrain.errors import DrivetrainError
from drivetrain.server.exchange import JSON, Exchange

Handler = Callable[[Exchange], Awaitable[None]]
TailHandler = Callable[[Exchange, str], Awaitable[None]]
Renderer = Callable[[DrivetrainError], bytes]


class Routes:
    """Which handler answers which method and path. A prefix route also gets what follows the prefix."""

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], Handler] = {}
        self.prefixes: dict[tuple[str, str], TailHandler] = {}
        self.renderers: dict[str, Callable[[DrivetrainError], bytes]] = {}  # path prefix → how errors look there
        self.json_types: dict[str, bytes] = {}  # path prefix → how JSON is called there

    def add(self, methods: str, path: str, handler: Handler) -> None:
        for method in methods.split():
            self.exact[method, path] = handler

    def under(self, methods: str, prefix: str, handler: TailHandler) -> None:
        for method in methods.split():
            self.prefixes[method, prefix] = handler

    def find(self, method: str, path: str) -> Handler | None:
        handler = self.exact.get((method, path))
        if handler is not None:
            return handler
        for (wanted, prefix), tail_handler in self.prefixes.items():
            if wanted == method and path.startswith(prefix) and len(path) > len(prefix):
                return _bound(tail_handler, path[len(prefix) :])
        return None

    def methods(self, path: str) -> list[str]:
        """The methods that this path has."""
        exact = {method for method, known in self.exact if known == path}
        return sorted(
            exact | {method for method, prefix in self.prefixes if path.startswith(prefix) and path != prefix}
        )

    def json_type(self, path: str) -> bytes:
        for prefix, json_type in self.json_types.items():
            if path.startswith(prefix):
                return json_type
        return JSON

    def render(self, path: str, error: DrivetrainError) -> bytes:
        for prefix, renderer in self.renderers.items():
            if path.startswith(prefix):
                return renderer(error)
        return openai.encode_error(error)


def _bound(handler: TailHandler, tail: str) -> Handler:
    return lambda exchange: handler(exchange, tail)
