"""Administrators who come with a token of an identity provider: its signature, for whom it is, and who that is here.

The provider's public keys are fetched when first needed, kept, and fetched again when a token names one that is not
among them or they are old. A provider that is away does not lock out those whose keys are known.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from drivetrain import web
from drivetrain.config.schema import Oidc as OidcConfig
from drivetrain.errors import BadRequest, ServerError, Unauthorized
from drivetrain.governance import SCOPES, Principal, Scope, User

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
ADMINISTRATION: frozenset[Scope] = SCOPES - {"inference"}  # a token spends nothing: what binds a key is not bound to it
LEEWAY_S = 60  # between clocks
KEEP_S = 3600.0  # how long the provider's keys are taken for the newest
PAUSE_S = 10.0  # between two fetches that a token made up could cause
MOST_BYTES = 2**20
Fetch = Callable[[str], Awaitable[bytes]]
Find = Callable[[str], Awaitable[User | None]]  # "issuer|sub" → that user
log = logging.getLogger("drivetrain.oidc")


class ProviderAway(ServerError):
    """The identity provider cannot be asked for its keys, and none are known."""

    status = 503
    code = "identity_provider_unavailable"


class Oidc:
    """Verifies tokens of one provider. `find` tells who a subject is; who is nobody here has the scopes it lists."""

    def __init__(
        self, config: OidcConfig, find: Find, fetch: Fetch | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if not config.issuer:
            raise BadRequest("oidc.issuer is missing", param="oidc.issuer")
        self._issuer = config.issuer
        self._config = config
        self._find = find
        self._fetch = fetch or fetched
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_s = float("-inf")
        self._asking = asyncio.Lock()

    async def identify(self, token: str) -> Principal:
        """Raises `Unauthorized` for a token that does not hold, and `ProviderAway`."""
        claims = await self._claims(token)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthorized("the token does not say whose it is: it has no 'sub'")
        user = await self._find(f"{self._issuer}|{subject}")
        if user is None:
            return Principal(name=_name(claims, subject), scopes=self._claimed(claims))
        if user.disabled:
            raise Unauthorized(f"user {user.name!r} is disabled")
        scopes = frozenset(user.scopes) & ADMINISTRATION
        return Principal(name=user.email or user.name, org=user.org, user=user.id, scopes=scopes)

    def _claimed(self, claims: Mapping[str, Any]) -> frozenset[Scope]:
        """Scopes as the token lists them: an array, or a text with spaces."""
        said = claims.get(self._config.scopes_claim)
        names = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
        return frozenset(scope for scope in ADMINISTRATION if scope in names)

    async def _claims(self, token: str) -> Mapping[str, Any]:
        keys = await self._known(fresh=False)
        try:
            decoded = _decoded(token, keys)
        except (JoseError, ValueError):
            decoded = _decoded_or_refused(token, await self._known(fresh=True))  # signed by a key that is newer?
        self._check(decoded.claims)
        return decoded.claims

    def _check(self, claims: Mapping[str, Any]) -> None:
        registry = jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._config.audience},
            exp={"essential": True},
        )
        try:
            registry.validate(dict(claims))
        except (JoseError, TypeError, ValueError) as error:
            raise Unauthorized(f"the token of {self._issuer} does not hold: {error}") from error

    # --- the provider's keys ------------------------------------------------------------------------------------------

    async def _known(self, *, fresh: bool) -> KeySet:
        """`fresh`: those that are known did not do; ask again, unless that was done just now."""
        if self._keys is not None and not self._is_due(fresh=fresh):
            return self._keys
        async with self._asking:
            if self._is_due(fresh=fresh):
                await self._refresh()
            if self._keys is None:
                raise ProviderAway(f"{self._issuer} cannot be asked for its keys; try again", retry_after_s=PAUSE_S)
            return self._keys

    def _is_due(self, *, fresh: bool) -> bool:
        age_s = self._clock() - self._fetched_s
        return age_s > (PAUSE_S if fresh or self._keys is None else KEEP_S)

    async def _refresh(self) -> None:
        self._fetched_s = self._clock()
        try:
            url = self._config.jwks_url or await self._discovered()
            self._keys = KeySet.import_key_set(msgspec.json.decode(await self._fetch(url)))
        except (web.Unreachable, BadRequest, msgspec.DecodeError, JoseError, KeyError, ValueError, TypeError) as error:
            if self._keys is not None:
                log.warning("%s cannot be asked for its keys, those that are known go on: %s", self._issuer, error)
            else:
                message = f"{self._issuer} cannot be asked for its keys: {error}"
                raise ProviderAway(message, retry_after_s=PAUSE_S) from error

    async def _discovered(self) -> str:
        """OpenID Connect Discovery 1.0 §4. The document has to name the issuer that was asked for."""
        document = await self._fetch(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        found = msgspec.json.decode(document, type=_Discovery)
        if found.issuer != self._issuer:
            raise BadRequest(f"the discovery document is of issuer {found.issuer!r}, not {self._issuer!r}")
        return found.jwks_uri


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


async def fetched(url: str) -> bytes:
    """The body of a 200. Raises `Unreachable`."""
    with web.translated("the identity provider"):
        async with web.open_client(idle_s=5.0, connect_s=5.0) as client, client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise web.Unreachable(f"{url} answered {answer.status_code}")
            return await web.read_limited(answer, MOST_BYTES)


def _decoded(token: str, keys: KeySet) -> jwt.Token:
    return jwt.decode(token, keys, algorithms=ALGORITHMS)


def _decoded_or_refused(token: str, keys: KeySet) -> jwt.Token:
    try:
        return _decoded(token, keys)
    except (JoseError, ValueError) as error:
        raise Unauthorized("the token is not signed by this server's identity provider, or is no token") from error


def _name(claims: Mapping[str, Any], subject: str) -> str:
    email = claims.get("email")
    return email if isinstance(email, str) and email else subject
