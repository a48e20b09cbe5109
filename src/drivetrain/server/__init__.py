"""The HTTP face: one table of routes, one guard, one place where errors become answers."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from drivetrain.config.schema import Server as ServerConfig
from drivetrain.errors import DrivetrainError, Internal, MethodNotAllowed, NotFound
from drivetrain.gateway.meter import ulid
from drivetrain.server import guard
from drivetrain.server.exchange import Exchange, Header
from drivetrain.server.routing import Routes
from drivetrain.telemetry import request_id as log_id

__all__ = ["App"]


log = logging.getLogger("drivetrain.server")


class App:
    """The application."""

    def __init__(self, config: ServerConfig, routes: Routes) -> None:
        self.configure(config)
        self.routes = routes

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
                await self._handle(exchange)
        except asyncio.CancelledError:
            if not exchange.gone:
                raise
            _forget_cancellation()  # it was ours: the caller left, and all behind it has been stopped
        except DrivetrainError as error:
            await self._fail(exchange, error)
        except Exception as error:  # the last resort: a caller gets an answer, we get the traceback
            log.error("a defect", exc_info=error, extra={"path": exchange.path, "request_id": exchange.id})
            await self._fail(exchange, Internal("internal error; the log has the details under this request's id"))

    async def _handle(self, exchange: Exchange) -> None:
        handler = self.routes.find(exchange.method, exchange.path)
        if handler is None:
            await self._unknown(exchange)
        else:
            await handler(exchange)

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
        raise NotFound(f"no such path: {exchange.path}{hint(exchange.path)}")

    async def _fail(self, exchange: Exchange, error: DrivetrainError) -> None:
        if exchange.gone or exchange.done:
            return
        if exchange.started:
            await exchange.send_body(b"", more=False)
            return
        body = self.routes.render(exchange.path, error)
        await exchange.respond(error.status, body, headers=retry_headers(error))


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's own id where it is a sane one, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and len(given) <= 128 and given.replace(b"-", b"").replace(b"_", b"").isalnum():
        return given.decode("ascii")
    return "req_" + ulid()


def retry_headers(error: DrivetrainError) -> Sequence[Header]:
    """When to come back, in seconds and in milliseconds, and whether it makes sense at all."""
    headers: list[Header] = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, -(-error.retry_after_s // 1))))
        headers.append((b"retry-after-ms", b"%d" % max(1, round(error.retry_after_s * 1000))))
    return tuple(headers)


def hint(path: str) -> str:
    """What a caller with a wrong base URL probably meant."""
    for doubled, right in (("/v1/v1/", "/v1/"), ("/v1/api/", "/api/"), ("/api/v1/", "/v1/"), ("/api/api/", "/api/")):
        if path.startswith(doubled):
            wanted = right + path[len(doubled) :]
            return f"; the base URL has one part too many: you want {wanted}"
    return "; see /v1/models for the models and the documentation for the routes"


def _same_origin(origin: str, headers: Mapping[bytes, bytes]) -> bool:
    return origin.partition("://")[2].encode("latin-1") == headers.get(b"host")


def _forget_cancellation() -> None:
    if task := asyncio.current_task():
        task.uncancel()
