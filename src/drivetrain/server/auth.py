"""Who asks: the principal behind a request's API key or identity token, and whether that one may ask for a route.

A key that is known here costs a look-up and one HMAC; one that is not is asked for at the store.
"""

import time
from collections.abc import Callable
from typing import Protocol

from drivetrain import keys
from drivetrain.config.schema import Server as ServerConfig
from drivetrain.errors import Forbidden, Unauthorized
from drivetrain.governance import Principal, Scope
from drivetrain.policies import access
from drivetrain.server.exchange import Exchange
from drivetrain.server.guard import is_loopback

NOBODY = Principal(name="nobody")  # may ask for what is public
BEARER = b"bearer "
HOW = "send it as 'Authorization: Bearer dt-…' or 'x-api-key: dt-…'; clients of Ollama take it from OLLAMA_API_KEY"
CHALLENGE = (b"www-authenticate", b"Bearer")  # RFC 6750 §3; an answer of 401 has to have one (RFC 9110 §15.5.2)


class KeyRecord(Protocol):
    """What the store knows of a key."""

    @property
    def principal(self) -> Principal: ...
    @property
    def hash(self) -> str: ...
    @property
    def not_after_s(self) -> float | None: ...


class Directory(Protocol):
    """The part of the store that knows keys. One that was revoked it does not know any more."""

    def cached(self, public_id: str) -> KeyRecord | None:
        """The record, if it is known here already; never waits."""

    async def find(self, public_id: str) -> KeyRecord | None:
        """The record, or None if there is none. Raises `StoreAway` if that cannot be said now."""


class Tokens(Protocol):
    """Who can tell whose identity token it is."""

    async def identify(self, token: str) -> Principal:
        """Raises `Unauthorized`."""


class Auth:
    """Tells who asks, by what the request shows."""

    def __init__(
        self,
        directory: Directory,
        pepper: bytes,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._pepper = pepper
        self._tokens = tokens
        self._clock = clock

    async def identify(self, exchange: Exchange) -> Principal:
        """Raises `Unauthorized` for who shows no key or a wrong one, `StoreAway` where that cannot be told."""
        shown = credential(exchange)
        parsed = keys.parse(shown)
        if parsed is None:
            return await self._token(shown)
        public_id, secret = parsed
        record = self._directory.cached(public_id) or await self._directory.find(public_id)
        known = (
            keys.matches(self._pepper, secret, record.hash) if record else keys.matches_nothing(self._pepper, secret)
        )
        if record is None or not known:
            raise Unauthorized(f"the API key dt-{public_id}-… is not valid: it is unknown, revoked or mistyped")
        if record.not_after_s is not None and self._clock() >= record.not_after_s:
            raise Unauthorized(f"the API key dt-{public_id}-… has expired; ask an administrator for a new one")
        return record.principal

    async def _token(self, shown: str) -> Principal:
        if self._tokens is not None and shown.count(".") == 2:
            return await self._tokens.identify(shown)
        raise Unauthorized(f"that is no API key of this server, which begin with dt-; {HOW}")


def credential(exchange: Exchange) -> str:
    """The key or token that the request shows. Raises `Unauthorized` if it shows none."""
    headers = exchange.headers
    given = headers.get(b"authorization", b"")
    if given[:7].lower() == BEARER:
        return given[7:].strip().decode("latin-1")
    given = headers.get(b"x-api-key", b"")
    if given:
        return given.decode("latin-1")
    raise Unauthorized(f"an API key is needed here: {HOW}")


def check_scope(who: Principal, scope: Scope, exchange: Exchange) -> None:
    """Raises `Forbidden` if `who` lacks the scope."""
    if scope not in who.scopes:
        has = ", ".join(sorted(who.scopes)) or "none"
        raise Forbidden(
            f"{described(who)} lacks the scope {scope!r}, which {exchange.method} {exchange.path[:200]} needs; "
            f"it has: {has}"
        )


def check_model(who: Principal, model: str) -> None:
    """Raises `Forbidden` if the key may not use this public name."""
    if not may_use(who, model):
        raise Forbidden(
            f"{described(who)} may not use model {model[:200]!r}; /v1/models lists those it may", param="model"
        )


def may_use(who: Principal, model: str) -> bool:
    return who.models is None or access.may_use(who.models, model)


def described(who: Principal) -> str:
    return f"key {who.name!r}" if who.key_id else who.name or "nobody"


def auth_wanted(server: ServerConfig) -> bool:
    """Whether callers have to show a key: where that is not said, wherever others than this machine's may come."""
    return server.auth == "on" or (server.auth == "auto" and not is_loopback(server.host))


def open_door(server: ServerConfig) -> str | None:
    """What an operator should know at start where nobody has to show a key."""
    if auth_wanted(server):
        return None
    reach = "every program on this machine" if is_loopback(server.host) else "everybody who can reach this address"
    return f"authentication is off: {reach} may use and administer this server; `server: {{auth: on}}` asks for keys"
