"""A request as the gateway knows it, out of an exchange: who asks, under which trace, with which tags."""

import random
import re
import time

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.gateway import Call, Receipt, Trace
from drivetrain.server.exchange import Exchange

MAX_TAGS = 16
MAX_TAG_CHARACTERS = 512
_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def call_of(exchange: Exchange, dialect: str, receipt: Receipt | None = None) -> Call:
    """Raises `BadRequest` for tags that cannot be read."""
    return Call(
        id=exchange.id,
        dialect=dialect,
        received_s=time.time(),
        who=exchange.who,
        trace=trace_of(exchange.headers.get(b"traceparent")),
        tags=tags_of(exchange.headers.get(b"x-drivetrain-tags")),
        receipt=receipt,
    )


def trace_of(traceparent: bytes | None) -> Trace:
    """The caller's trace (W3C Trace Context, version 00), or a new one where it told none that can be read."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found is None or not found[1].strip(b"0") or not found[2].strip(b"0"):
        return Trace(id=f"{random.getrandbits(128):032x}")
    return Trace(id=found[1].decode(), parent=found[2].decode(), sampled=bool(int(found[3], 16) & 1))


def tags_of(header: bytes | None) -> str:
    """`x-drivetrain-tags: team=search, run=7` as a JSON object. Raises `BadRequest` for what is no such list."""
    if not header:
        return ""
    text = header.decode("latin-1")
    tags = dict(pair for part in text.split(",") if (pair := _tag(part)))
    if not tags or len(tags) > MAX_TAGS or len(text) > MAX_TAG_CHARACTERS:
        raise BadRequest(
            f"x-drivetrain-tags takes up to {MAX_TAGS} pairs such as run=7, {MAX_TAG_CHARACTERS} characters in all; "
            f"got {text[:100]!r}",
            param="x-drivetrain-tags",
        )
    return msgspec.json.encode(tags).decode()


def _tag(part: str) -> tuple[str, str] | None:
    name, equals, value = part.partition("=")
    return (name.strip(), value.strip()) if equals and name.strip() else None
