"""A request as the gateway knows it, out of an exchange: who asks, under which trace, with which tags."""

import math
import random
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.gateway import Call, Receipt, Trace
from drivetrain.policies.classes import class_of
from drivetrain.server.exchange import Exchange
from drivetrain.types import Source

# What `_told` looks for.
HEARD = frozenset(
    {
        b"cache-control",
        b"x-drivetrain-no-fallback",
        b"x-drivetrain-prompt",
        b"x-drivetrain-region",
        b"x-drivetrain-session",
        b"x-drivetrain-tags",
        b"x-drivetrain-timeout-ms",
        b"x-session-id",
        b"x-stainless-read-timeout",
    }
)
MAX_TAGS = 16
MAX_TAG_CHARACTERS = 512
_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def call_of(exchange: Exchange, dialect: str, receipt: Receipt | None = None, source: Source | None = None) -> Call:
    """Raises `BadRequest` for a header of ours that cannot be read."""
    headers, who = exchange.headers, exchange.who
    told = {} if HEARD.isdisjoint(headers) else _told(headers)  # nothing, as most
    return Call(
        id=exchange.id,
        dialect=dialect,
        received_s=time.time(),
        who=who,
        trace=trace_of(headers.get(b"traceparent")),
        receipt=receipt,
        priority=class_of(headers.get(b"x-drivetrain-priority"), source, who.priority),
        client="" if who.key_id or told.get("session") else exchange.peer,
        **told,
    )


def _told(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Members of the call that its headers alone tell. Raises `BadRequest`."""
    return {
        "tags": tags_of(headers.get(b"x-drivetrain-tags")),
        "timeout_s": timeout_of(headers.get(b"x-drivetrain-timeout-ms")),
        "read_timeout_s": read_timeout_of(headers.get(b"x-stainless-read-timeout")),
        "alone": alone(headers.get(b"x-drivetrain-no-fallback")),
        "session": text_of(headers.get(b"x-drivetrain-session") or headers.get(b"x-session-id")),
        "region": text_of(headers.get(b"x-drivetrain-region")),
        "prompt": text_of(headers.get(b"x-drivetrain-prompt")),
        "fresh": fresh(headers.get(b"cache-control")),
    }


def text_of(header: bytes | None) -> str:
    return header.decode("latin-1").strip() if header else ""


def fresh(header: bytes | None) -> bool:
    """Whether an answer that was given before will not do."""
    return header is not None and (b"no-cache" in header or b"no-store" in header)


def timeout_of(header: bytes | None) -> float | None:
    """`x-drivetrain-timeout-ms: 1500` in seconds. Raises `BadRequest` for what is no such number."""
    if header is None:
        return None
    if (milliseconds := _positive(header)) is None:
        raise BadRequest(
            f"x-drivetrain-timeout-ms takes milliseconds such as 1500; got {header[:100].decode('latin-1')!r}",
            param="x-drivetrain-timeout-ms",
        )
    return milliseconds / 1000


def read_timeout_of(header: bytes | None) -> float | None:
    """How long an OpenAI SDK waits for bytes, in seconds. It writes other things too, where it waits for ever."""
    return None if header is None else _positive(header)


def alone(header: bytes | None) -> bool:
    """`x-drivetrain-no-fallback: true`. Raises `BadRequest` for what is neither true nor false."""
    if header is None:
        return False
    if (told := header.lower()) not in (b"true", b"false"):
        raise BadRequest(
            f"x-drivetrain-no-fallback takes true or false; got {header[:100].decode('latin-1')!r}",
            param="x-drivetrain-no-fallback",
        )
    return told == b"true"


def _positive(header: bytes) -> float | None:
    try:
        number = float(header)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


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
