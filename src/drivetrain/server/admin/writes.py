"""What every write by the admin API has in common: who writes, a body of a known shape, the version that was read.

It is answered with what is there now.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.governance import ANYBODY, Principal
from drivetrain.rollouts.plan import Rollout
from drivetrain.server.admin.kinds import Body, Change, Entity
from drivetrain.server.exchange import Exchange, Header

NO_STORE = ((b"cache-control", b"no-store"),)


def signed(exchange: Exchange) -> Mapping[str, str]:
    """Who writes, and in which request: for the audit."""
    return {"actor": actor(exchange.who), "request_id": exchange.id}


def actor(who: Principal) -> str:
    if who is ANYBODY:
        return who.name
    return f"key {who.key_id}" if who.key_id else f"user {who.name}"


B = TypeVar("B", bound=Body)


def decoded(body: bytes, shape: type[B]) -> B:
    """Raises `BadRequest` that says what does not fit."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        known = ", ".join(shape.__struct_fields__)
        raise BadRequest(f"the body is not as expected, a JSON object with some of {known}: {error}") from error


def version_of(exchange: Exchange, change: Change | None = None) -> int | None:
    """The version that a writer has read. Raises `BadRequest` for one that is no number."""
    if change is not None and isinstance(change.version, int):
        return change.version
    given = exchange.headers.get(b"if-match")
    if given is None:
        return None
    digits = given.strip().removeprefix(b"W/").strip(b'"')
    if not digits.isdigit() or len(digits) > 15:
        raise BadRequest(f'If-Match takes a version such as "3"; got {given.decode("latin-1")[:50]!r}', param="version")
    return int(digits)


def version_read(exchange: Exchange, change: Change) -> int:
    """As `version_of`, where there has to be one. Raises `BadRequest` if there is none."""
    version = version_of(exchange, change)
    if version is None:
        raise BadRequest("say which version you have read: as 'version' in the body, or If-Match", param="version")
    return version


async def answered(exchange: Exchange, status: int, entity: Entity | Rollout, *headers: Header) -> None:
    """With what is there now, and its version."""
    etag = (b"etag", b'"%d"' % entity.version)
    await exchange.respond(status, msgspec.json.encode(entity), headers=(etag, *NO_STORE, *headers))
