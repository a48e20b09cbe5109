"""How the gateway's events reach a caller: as a stream, one write per batch, or folded into one body."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from drivetrain.background import survived
from drivetrain.dialects import Reply
from drivetrain.errors import DrivetrainError
from drivetrain.gateway import Receipt
from drivetrain.server import experts, told
from drivetrain.server.exchange import STREAM_HEADERS, Exchange
from drivetrain.types import Event, Experts, Finished, Fold, Progress

HEARTBEAT_S = 10.0  # longest silence that a caller of a stream sees; proxies commonly give up at 60 s
Batches = AsyncGenerator[Sequence[Event], None]


class Stream:
    """One streamed answer. Nothing is sent before the first content, so that an error can still be a status."""

    def __init__(self, exchange: Exchange, reply: Reply, hearts: "Heartbeat", receipt: Receipt) -> None:
        self._exchange = exchange
        self._receipt = receipt
        self._reply = reply
        self._hearts = hearts
        self._progress = Progress(stage="prompt")
        self._experts: Experts | None = None
        self._sending = False
        self.quiet_since = time.monotonic()

    async def run(self, batches: Batches) -> None:
        """Send it all. Raises a `DrivetrainError` only if nothing was sent yet."""
        encode, last = self._reply.encode, b""
        self._hearts.add(self)
        try:
            async for events in batches:
                final = events[-1] if events else None
                if type(final) is Progress:
                    self._progress, self._experts = final, final.experts
                elif data := b"".join(map(encode, events)):
                    if type(final) is Finished:
                        last = data
                    else:
                        await self._write(data, more=True)
            await self._write(last, more=False)  # not before the generator has ended: the answer is in the ledger now
        except DrivetrainError as error:
            if not self._exchange.started:
                raise
            await self._write(self._reply.error(error), more=False)
        finally:
            self._hearts.discard(self)
            await batches.aclose()

    async def _write(self, data: bytes, *, more: bool) -> None:
        self._sending = True
        if not self._exchange.started:
            headers = (*STREAM_HEADERS, *told.headers(self._receipt), *experts.headers(self._experts))
            await self._exchange.start(200, self._reply.media_type.encode(), headers)
        await self._exchange.send_body(data, more=more)
        self._sending = False
        self.quiet_since = time.monotonic()

    async def beat(self) -> None:
        """Show a caller who waits that we are still here."""
        if not self._sending and not self._exchange.done:
            await self._write(self._reply.encode(self._progress), more=True)


class Heartbeat:
    """Looks after all running streams with one timer: none is silent for longer than `silence_s`."""

    def __init__(self, silence_s: float = HEARTBEAT_S) -> None:
        self._silence_s = silence_s
        self._streams: set[Stream] = set()
        self.add = self._streams.add
        self.discard = self._streams.discard

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._silence_s / 4)
                late = time.monotonic() - self._silence_s * 3 / 4
                for stream in [stream for stream in self._streams if stream.quiet_since < late]:
                    group.create_task(survived("a sign of life in a stream", stream.beat))


async def whole(exchange: Exchange, reply: Reply, batches: Batches, receipt: Receipt) -> None:
    """The answer as one body: the fold of its events."""
    folded = Fold()
    try:
        async for events in batches:
            folded.extend(events)
    finally:
        await batches.aclose()
    response = folded.response()
    headers = (*told.headers(receipt), *experts.headers(response.experts))
    await exchange.respond(200, reply.whole(response), headers=headers)
