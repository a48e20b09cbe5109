"""The HTTP face: one table of routes, one guard, one place for keys, and one where errors become answers."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from drivetrain.config.schema import Server as ServerConfig
from drivetrain.errors import DrivetrainError, Forbidden, Internal, MethodNotAllowed, NotFound, Unauthorized
from drivetrain.outbox import Outbox
from drivetrain.server import guard
from drivetrain.server.auth import CHALLENGE, NOBODY, Auth, check_scope
from drivetrain.server.exchange import Exchange, Header
from drivetrain.server.routing import Handler, Route, Routes
from drivetrain.telemetry import request_id as log_id
from drivetrain.ulid import ulid

__all__ = ["App"]


log = logging.getLogger("drivetrain.server")


class App:
    """The application. Without `auth` nobody has to show a key, and everybody may do everything."""

    def __init__(
        self,
        config: ServerConfig,
        routes: Routes,
        auth: Auth | None = None,
        refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        """`refused` is told of a key that was no key (401), or may not do what was asked (403)."""
        self.leaving = False  # connections end with their next answer
        self.outbox = Outbox()
        self.configure(config)
        self._key_refused = refused
        self.routes = routes
        self.auth = auth

    def configure(self, config: ServerConfig) -> None:
        self._config = config
        self._guarded = guard.is_loopback(config.host)

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever happens."""
        exchange.max_body_bytes = self._config.max_body_bytes
        exchange.id = request_id(exchange.headers)
        log_id.set(exchange.id)
        exchange.json_type = self.routes.json_type(exchange.path)
        try:
            if not await self._refused(exchange):
                handler = await self._handler(exchange)
                await handler(exchange)
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            _forget_cancellation()  # it was ours: the caller left, and all behind it has been stopped
        except DrivetrainError as error:
            await self._fail(exchange, error)
        except Exception as error:  # the last resort: a caller gets an answer, we get the traceback
            log.error("a defect", exc_info=error, extra={"path": exchange.path, "request_id": exchange.id})
            await self._fail(exchange, Internal("internal error; the log has the details under this request's id"))

    async def _handler(self, exchange: Exchange) -> Handler:
        route = self.routes.find(exchange.method, exchange.path)
        if route is None:
            return self._unknown
        if self.auth is not None:
            await self._admit(exchange, route, self.auth)
        return route.handler

    async def _admit(self, exchange: Exchange, route: Route, auth: Auth) -> None:
        """Who asks, and may they? It is the route that was found which says what it takes."""
        if route.scope is None:
            exchange.who = NOBODY
            return
        try:
            exchange.who = await auth.identify(exchange)
            check_scope(exchange.who, route.scope, exchange)
        except (Unauthorized, Forbidden) as error:
            self._key_refused(error.status)
            raise

    async def _refused(self, exchange: Exchange) -> bool:
        """Answers itself, and tells so, for what the guard does not let in and for a browser's preflight."""
        headers = exchange.headers
        host = headers.get(b"host", b"").decode("latin-1")
        if self._guarded and not guard.host_allowed(host):
            log.warning("refused: the Host header %.100r names no machine of this network", host)
            await exchange.respond(403)
            return True
        origin = headers.get(b"origin")
        if origin is None:
            return False
        text = origin.decode("latin-1")
        if not guard.origin_allowed(text, self._config.origins) and not _same_origin(text, headers):
            log.warning("refused: a page of origin %.100r; to admit it, add it to server.origins", text)
            await exchange.respond(403)
            return True
        exchange.extra += guard.origin_headers(origin)
        if exchange.method == "OPTIONS" and b"access-control-request-method" in headers:
            await exchange.respond(204, headers=guard.PREFLIGHT)
            return True
        return False

    async def _unknown(self, exchange: Exchange) -> None:
        if allowed := self.routes.methods(exchange.path):
            exchange.extra.append((b"allow", ", ".join(allowed).encode()))
            raise MethodNotAllowed(f"{exchange.path} takes {', '.join(allowed)}, not {exchange.method}")
        if exchange.path.startswith("/api/"):
            await exchange.respond(404, b"404 page not found", b"text/plain")
            return
        raise NotFound(f"no such path: {exchange.path}{hint(exchange.path, self.routes)}")

    async def _fail(self, exchange: Exchange, error: DrivetrainError) -> None:
        """An answer that has begun gets no proper end: the connection breaks off, so that nobody takes it for whole."""
        if exchange.gone or exchange.started:
            return
        body = self.routes.render(exchange.path, error)
        await exchange.respond(error.status, body, headers=error_headers(error))


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own id where it is a sane one, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and len(given) <= 128 and given.replace(b"-", b"").replace(b"_", b"").isalnum():
        return given.decode("ascii")
    return "req_" + ulid()


def error_headers(error: DrivetrainError) -> Sequence[Header]:
    """When to come back, in seconds and in milliseconds, whether it makes sense at all, and with what."""
    if error.retry_after_s is not None:
        again = b"false" if error.status == 402 else b"true"  # a budget is not waited for in a request
        return (
            (b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),
            (b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1000))),
            (b"x-should-retry", again),
        )
    if error.status == 401:
        return (CHALLENGE,)
    return () if error.retryable or not _tempting(error.status) else ((b"x-should-retry", b"false"),)


def _tempting(status: int) -> bool:
    """Whether clients of OpenAI's API would repeat the request, unless they are told not to."""
    return status in (408, 409, 429) or status >= 500


def hint(path: str, routes: Routes) -> str:
    """What a caller with a wrong base URL probably meant, if there is such a path."""
    for doubled, right in (("/v1/v1/", "/v1/"), ("/v1/api/", "/api/"), ("/api/v1/", "/v1/"), ("/api/api/", "/api/")):
        if path.startswith(doubled):
            wanted = right + path[len(doubled) :]
            if routes.methods(wanted):
                return f"; the base URL has one part too many: you want {wanted}"
    return "; see /v1/models for the models and the documentation for the routes"


def _same_origin(origin: str, headers: Mapping[bytes, bytes]) -> bool:
    return origin.partition("://")[2].encode("latin-1") == headers.get(b"host")


def _forget_cancellation() -> None:
    if task := asyncio.current_task():
        task.uncancel()
