"""What operators and load balancers ask: health, readiness, metrics, engines, lifecycle events."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from drivetrain import __version__
from drivetrain.errors import BadRequest
from drivetrain.gateway import Gateway
from drivetrain.gateway.discovery import family
from drivetrain.gateway.pool import Member
from drivetrain.server.dryrun import dry_run
from drivetrain.server.exchange import STREAM_HEADERS, Exchange
from drivetrain.server.inference import Inference
from drivetrain.telemetry import Naming, Telemetry, last_event_id

EVENT_STREAM = b"text/event-stream"


class Operations:
    def __init__(
        self,
        gateway: Gateway,
        inference: Inference,
        telemetry: Telemetry,
        troubles: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`troubles`: what is away though requests are answered without it, and since when or why."""
        self._troubles = troubles
        self._gateway = gateway
        self._inference = inference
        self._telemetry = telemetry
        self._drained = asyncio.Event()

    def drain(self) -> None:
        self._drained.set()

    async def healthz(self, exchange: Exchange) -> None:
        """The process lives. Says nothing about engines."""
        await exchange.respond(200, msgspec.json.encode({"status": "ok", "version": __version__}))

    async def readyz(self, exchange: Exchange) -> None:
        """Whether to send requests here: not when it is about to stop, nor when every engine is away. Without the
        database or the shared state a server goes on, degraded."""
        members = self._gateway.pool.members.values()
        ending = self._inference.draining or self._inference.leaving
        ready = not ending and any(member.health.ready for member in members)
        troubles = self._troubles()
        well = "degraded" if troubles else "ready"
        state: dict[str, Any] = {
            "status": well if ready else "draining" if ending else "no engine is ready",
        }
        open_to_all = "metrics" in exchange.who.scopes  # where keys are asked for, the details are in /v1/engines
        if open_to_all:
            state["engines"] = {member.name: msgspec.to_builtins(member.health) for member in members}
        if troubles and open_to_all:
            state["troubles"] = dict(troubles)
        await exchange.respond(200 if ready else 503, msgspec.json.encode(state))

    async def metrics(self, exchange: Exchange) -> None:
        accept = exchange.headers.get(b"accept", b"").decode("latin-1")
        loaded = (await self._gateway.loaded(embedded=True)).values()
        models = [model for models in loaded for model in models]
        media_type, body = await asyncio.to_thread(self._telemetry.metrics.render, accept, models)
        await exchange.respond(200, body, media_type.encode())

    async def engines(self, exchange: Exchange) -> None:
        """Every engine instance: kind, address, health, and the models in its memory."""
        members = self._gateway.pool.members.values()
        loaded = await self._gateway.loaded()
        data = [_shape(member) | {"loaded": msgspec.to_builtins(loaded.get(member.name, ()))} for member in members]
        await exchange.respond(200, msgspec.json.encode({"object": "list", "data": data}))

    async def explain(self, exchange: Exchange) -> None:
        """Where a request for `model` would go, and why; what else is known of it, further members tell."""
        if not (model := exchange.query("model")):
            raise BadRequest("name a model: /v1/explain?model=…", param="model")
        asked = dry_run(exchange, model)
        await exchange.respond(200, msgspec.json.encode(await self._gateway.explain(model, *asked)))

    async def events(self, exchange: Exchange) -> None:
        """Lifecycle events as server-sent events, until the listener leaves or the server stops."""
        last = last_event_id(exchange.headers.get(b"last-event-id", b"").decode("latin-1"))
        naming = _naming(exchange)
        await exchange.start(200, EVENT_STREAM, STREAM_HEADERS)
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell(exchange, last, naming))
            await self._drained.wait()
            telling.cancel()
        await exchange.send_body(b"", more=False)

    async def _tell(self, exchange: Exchange, last: int | None, naming: Naming) -> None:
        async with aclosing(self._telemetry.notices.stream(last, naming=naming)) as frames:
            async for frame in frames:
                await exchange.send_body(frame, more=True)


def _naming(exchange: Exchange) -> Naming:
    asked = exchange.query("names") or "drivetrain"
    if asked not in ("drivetrain", "jan"):
        raise BadRequest(f"names={asked!r} is unknown; give drivetrain or jan", param="names")
    return "jan" if asked == "jan" else "drivetrain"


def _shape(member: Member) -> dict[str, Any]:
    return {
        "name": member.name,
        "kind": member.config.kind,
        "url": member.config.url,
        "region": member.config.region,
        "weight": member.config.weight,
        "outstanding": member.outstanding,
        "health": msgspec.to_builtins(member.health),
        "family": family(member.name),
        "drained": member.drained,
        "breaker": member.standing().state,
        "models": [model.id for model in member.models],
    }
