"""Generation and embeddings, for every dialect: decode, hand to the gateway, send what comes."""

import time
from typing import TypeVar

from msgspec.structs import replace

from drivetrain.dialects import Surface
from drivetrain.errors import Draining, DrivetrainError
from drivetrain.gateway import Gateway, Receipt
from drivetrain.policies.classes import for_engines
from drivetrain.server import experts, told
from drivetrain.server.answer import Heartbeat, Stream, whole
from drivetrain.server.asked import call_of
from drivetrain.server.bodies import Bodies
from drivetrain.server.exchange import Exchange
from drivetrain.types import Embeddings, EmbedRequest, Request, Timings

Asked = TypeVar("Asked", Request, EmbedRequest)


class Inference:
    """Serves requests through one gateway. After `drain` new ones are refused, running ones go on."""

    def __init__(self, gateway: Gateway, hearts: Heartbeat, bodies: Bodies) -> None:
        self.gateway = gateway
        self._bodies = bodies
        self.leaving = False  # the server is about to stop
        self.draining = False
        self._hearts = hearts

    async def generate(self, exchange: Exchange, surface: Surface) -> None:
        await self.answer(exchange, surface, surface.decode_request(await self.body(exchange)))

    async def body(self, exchange: Exchange) -> bytes:
        """The body of a request that is to be worked on. Raises `Draining` during a shutdown."""
        if self.draining:
            raise Draining("the server is shutting down; try again", retry_after_s=1.0)
        return await exchange.body()

    async def answer(self, exchange: Exchange, surface: Surface, request: Request) -> None:
        """Stream or send whole. The caller's leaving cancels everything behind it."""
        receipt = Receipt()
        call = call_of(exchange, surface.name, receipt, request.source)
        request = _for_engines(request)
        reply = surface.reply(request, id=call.id, created_s=call.received_s)
        batches = self.gateway.generate(request, call)
        if (kept := self.gateway.kept(request.model)) is not None:
            batches = self._bodies.overheard(batches, call.id, await exchange.body(), kept)
        try:
            if request.stream:
                await Stream(exchange, reply, self._hearts, receipt).run(batches)
            else:
                await whole(exchange, reply, batches, receipt)
        except DrivetrainError:
            exchange.extra += told.headers(receipt)
            raise

    async def embeddings(self, exchange: Exchange, dialect: str, request: EmbedRequest) -> tuple[Embeddings, Timings]:
        """Where bodies are kept, it is what was asked: numbers tell nobody anything."""
        receipt = Receipt()
        call = call_of(exchange, dialect, receipt, request.source)
        request = _for_engines(request)
        try:
            answer = await self.gateway.embed(request, call)
        finally:
            exchange.extra += told.headers(receipt)
            if (kept := self.gateway.kept(request.model)) is not None:
                self._bodies.keep(call.id, await exchange.body(), "", kept, began_s=call.received_s)
        exchange.extra += experts.headers(answer.experts)
        return answer, Timings(prompt_s=time.time() - call.received_s)


def _for_engines(request: Asked) -> Asked:
    source = for_engines(request.source)
    return request if source is request.source else replace(request, source=source)
