"""Long errands on the library, pulls above all: told to the caller line by line, or done in silence."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from drivetrain.dialects import ollama
from drivetrain.errors import DrivetrainError
from drivetrain.library import Status
from drivetrain.server.exchange import STREAM_HEADERS, Exchange

NDJSON = b"application/x-ndjson"
Statuses = AsyncGenerator[Status, None]


async def told(
    exchange: Exchange, statuses: Statuses, encode_error: Callable[[DrivetrainError], bytes] = ollama.encode_error
) -> None:
    """The whole answer: one object a line. Raises an error that comes before the first line; a later one is a line."""
    try:
        async with aclosing(statuses):
            async for status in statuses:
                if not exchange.started:
                    await exchange.start(200, NDJSON, STREAM_HEADERS)
                await exchange.send_body(_line(status), more=True)
        await exchange.send_body(b"", more=False)
    except DrivetrainError as error:
        if not exchange.started:
            raise
        await exchange.send_body(encode_error(error) + b"\n", more=False)


async def done(statuses: Statuses) -> None:
    """Returns at the end of the errand."""
    async with aclosing(statuses):
        async for _ in statuses:
            continue


def _line(status: Status) -> bytes:
    return ollama.encode_status(
        status.status, digest=status.digest or "", total=status.total or 0, completed=status.completed or 0
    )
