"""Which handler answers which method and path, and what a key must be allowed to for it, as one table."""

from collections.abc import Awaitable, Callable

import msgspec

from drivetrain.dialects import openai
from drivetrain.errors import DrivetrainError
from drivetrain.governance import SCOPES, Scope
from drivetrain.server.exchange import JSON, Exchange

Handler = Callable[[Exchange], Awaitable[None]]
TailHandler = Callable[[Exchange, str], Awaitable[None]]
Renderer = Callable[[DrivetrainError], bytes]

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/api/version"})  # what anybody may ask, with or without a key


class Route(msgspec.Struct, frozen=True):
    """What answers a request, and the scope that whoever asks must have: None for what is public."""

    handler: Handler
    scope: Scope | None


class Under(msgspec.Struct, frozen=True):
    """As `Route`, for all paths below a prefix."""

    handler: TailHandler
    scope: Scope


class Routes:
    """Which handler answers which method and path. A prefix route also gets what follows the prefix."""

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], Route] = {}
        self.prefixes: dict[tuple[str, str], Under] = {}
        self.renderers: dict[str, Callable[[DrivetrainError], bytes]] = {}  # path prefix → how errors look there
        self.json_types: dict[str, bytes] = {}  # path prefix → how JSON is called there

    def add(self, methods: str, path: str, handler: Handler, *, scope: Scope | None) -> None:
        if scope not in SCOPES and (scope is not None or path not in PUBLIC):
            raise ValueError(f"{methods} {path} needs one of the scopes {', '.join(sorted(SCOPES))}; got {scope!r}")
        for method in methods.split():
            self.exact[method, path] = Route(handler, scope)

    def under(self, methods: str, prefix: str, handler: TailHandler, *, scope: Scope) -> None:
        if scope not in SCOPES:
            raise ValueError(f"{methods} {prefix}… needs one of the scopes {', '.join(sorted(SCOPES))}; got {scope!r}")
        for method in methods.split():
            self.prefixes[method, prefix] = Under(handler, scope)

    def find(self, method: str, path: str) -> Route | None:
        route = self.exact.get((method, path))
        if route is not None:
            return route
        for (wanted, prefix), below in self.prefixes.items():
            if wanted == method and path.startswith(prefix) and len(path) > len(prefix):
                return Route(_bound(below.handler, path[len(prefix) :]), below.scope)
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
