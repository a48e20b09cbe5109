"""Log-probabilities of the chosen tokens alone, for a llama-server. Pure.

To it, no alternatives (0) means no log-probabilities at all. So it is asked for one, which the caller does not get.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects import logprobs, sse
from drivetrain.types import Event, LogprobDelta, Request

_ONE: Final = Raw(b"1")
_MEMBER: Final = re.compile(rb'"top_logprobs"\s*:')

_members = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def alone(request: Request) -> bool:
    """Whether the caller wants those of the chosen tokens, and no alternatives."""
    return logprobs.asked(request) == 0


def with_one(request: Request) -> Request:
    """The request with one alternative asked for, in the caller's own words too."""
    source, completion = request.source, request.completion
    if source is not None:
        member = "top_logprobs" if completion is None else "logprobs"
        source = replace(source, fields={**source.fields, member: _ONE})
    if completion is not None:
        return replace(request, completion=replace(completion, logprobs=1), source=source)
    return replace(request, sampling=replace(request.sampling, top_logprobs=1), source=source)


async def without_any(answer: AsyncGenerator[Sequence[Event], None]) -> AsyncGenerator[Sequence[Event], None]:
    """The answer but for alternatives."""
    async with aclosing(answer) as batches:
        async for events in batches:
            yield [_bare(event) for event in events]


def _bare(event: Event) -> Event:
    raw = event.raw
    if raw and _MEMBER.search(raw):
        raw = _bare_frame(raw)
    if isinstance(event, LogprobDelta):
        return replace(event, tokens=tuple(replace(token, top=()) for token in event.tokens), raw=raw)
    return event if raw is event.raw else replace(event, raw=raw)


def _bare_frame(raw: bytes) -> bytes:
    """An engine's frame with its lists of alternatives emptied."""
    frame = sse.last(raw)
    if frame is None:
        return raw
    chunk = _members(frame[0])
    for choice in chunk["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            token["top_logprobs"] = []
    return sse.frame(_encode(chunk))
