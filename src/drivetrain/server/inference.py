"""Generation and embeddings, for every dialect: decode, hand to the gateway, send what comes."""

import time

from drivetrain.dialects import Surface
from drivetrain.errors import Draining
from drivetrain.gateway import Call, Gateway
from drivetrain.server import experts
from drivetrain.server.answer import Heartbeat, Stream, whole
from drivetrain.server.exchange import Exchange
from drivetrain.types import Embeddings, EmbedRequest, Request, Timings


class Inference:
    """Serves requests through one gateway. After `drain` new ones are refused, running ones go on."""

    def __init__(self, gateway: Gateway, hearts: Heartbeat) -> None:
        self.gateway = gateway
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
        call = _call(exchange, surface.name)
        reply = surface.reply(request, id=call.id, created_s=call.received_s)
        batches = self.gateway.generate(request, call)
        if request.stream:
            await Stream(exchange, reply, self._hearts).run(batches)
        else:
            await whole(exchange, reply, batches)

    async def embeddings(self, exchange: Exchange, dialect: str, request: EmbedRequest) -> tuple[Embeddings, Timings]:
        call = _call(exchange, dialect)
        answer = await self.gateway.embed(request, call)
        exchange.extra += experts.headers(answer.experts)
        return answer, Timings(prompt_s=time.time() - call.received_s)


def _call(exchange: Exchange, dialect: str) -> Call:
    return Call(id=exchange.id, dialect=dialect, received_s=time.time())
