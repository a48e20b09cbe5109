"""With several worker processes: what a worker hands to the owner, over a Unix socket.

The owner is the process with the embedded engine, the downloads, the lifecycle events and the metrics: there is one of
each. A worker answers by itself what goes to other engines and is under no limit that has to be counted in one place.
"""

from collections.abc import AsyncIterable
from pathlib import Path
from urllib.parse import quote

import msgspec

from drivetrain import web
from drivetrain.errors import DrivetrainError
from drivetrain.gateway import Gateway
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Handler, Routes

# Hop by hop (RFC 9110 §7.6.1), or made anew for each hop.
HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"date"})
OWN_PATHS = frozenset({"/", "/healthz", "/api/version"})


class _Named(msgspec.Struct):
    model: str = ""


_named = msgspec.json.Decoder(_Named).decode


class Relay:
    """One per worker. Close it with `aclose`."""

    def __init__(self, owner: Path, gateway: Gateway, *, counts: bool) -> None:
        """`counts`: limits and budgets are counted in a place that every worker reaches."""
        self._gateway = gateway
        self._counts = counts
        self._client = web.open_client("http://owner", uds=str(owner), idle_s=None, proxies=False, connections=1000)

    def table(self, routes: Routes, inference: frozenset[str]) -> Routes:
        """The worker's table of routes: `inference` paths are looked at, some others are our own, the rest relayed."""
        table = Routes()
        table.renderers, table.json_types = routes.renderers, routes.json_types
        for (method, path), route in routes.exact.items():
            if path in inference:
                table.add(method, path, self._chosen(route.handler), scope=route.scope)
            else:
                table.add(method, path, route.handler if path in OWN_PATHS else self.forward, scope=route.scope)
        for (method, prefix), below in routes.prefixes.items():
            table.under(method, prefix, self._forward_tail, scope=below.scope)
        return table

    def _chosen(self, handler: Handler) -> Handler:
        async def handle(exchange: Exchange) -> None:
            if await self._is_ours(exchange, await exchange.body()):
                await handler(exchange)
            else:
                await self.forward(exchange)

        return handle

    async def _is_ours(self, exchange: Exchange, body: bytes) -> bool:
        """Whether this process may answer. What cannot even be read is refused right here, by the handler."""
        try:
            entry = await self._gateway.resolve(_named(body).model)
            entries = (*self._gateway.sides(entry), *map(self._gateway.catalog.resolve, entry.fallbacks))
            counted = not self._counts and self._gateway.limited(entry, exchange.who)
        except msgspec.DecodeError:
            return True
        except DrivetrainError:
            return False  # a model that came since we looked is known to the owner
        return not counted and not any(self._is_embedded(target.engine) for one in entries for target in one.targets)

    def _is_embedded(self, engine: str) -> bool:
        member = self._gateway.pool.members.get(engine)
        return member is not None and member.embedded

    async def _forward_tail(self, exchange: Exchange, _: str) -> None:
        await self.forward(exchange)

    async def forward(self, exchange: Exchange) -> None:
        """Have the owner answer, and pass its answer on as it comes."""
        path = quote(exchange.path) + (f"?{exchange.query_string.decode('latin-1')}" if exchange.query_string else "")
        headers = [(name, value) for name, value in exchange.headers.items() if name not in HOP]
        headers.append((b"x-request-id", exchange.id.encode()))
        content: AsyncIterable[bytes] | None = exchange.pieces() if exchange.has_body else None
        with web.translated("the owner process"):
            async with self._client.stream(exchange.method, path, headers=headers, content=content) as answer:
                await exchange.relay(answer.status_code, [h for h in answer.headers.raw if h[0].lower() not in HOP])
                async for data in answer.aiter_raw():
                    await exchange.send_body(data, more=True)
                await exchange.send_body(b"", more=False)

    async def aclose(self) -> None:
        await self._client.aclose()
