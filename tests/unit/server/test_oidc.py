"""Tokens of an identity provider: whose keys, for whom, how long, and what the provider's troubles do to callers."""

import base64
import hmac
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from drivetrain import web
from drivetrain.config.schema import Oidc as OidcConfig
from drivetrain.errors import BadRequest, Unauthorized
from drivetrain.governance import User
from drivetrain.server.oidc import KEEP_S, LEEWAY_S, PAUSE_S, Oidc, ProviderAway

pytestmark = pytest.mark.anyio
ISSUER = "https://login.example.com/realm"
DISCOVERY = f"{ISSUER}/.well-known/openid-configuration"
JWKS = "https://login.example.com/keys"
ADA = User(id="user-1", org="org-1", name="ada", email="ada@example.com", scopes=("admin", "inference", "usage"))


class Provider:
    """An identity provider with a clock, keys that can change, and faults."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0
        self.keys = [RSAKey.generate_key(2048, {"kid": "first"})]
        self.issuer = ISSUER
        self.asked: list[str] = []
        self.away = False
        self.users: dict[str, User] = {}
        self.also: list[Any] = []  # further keys that the document lists

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.away:
            raise web.Unreachable("the identity provider: no answer")
        if url == DISCOVERY:
            return msgspec.json.encode({"issuer": self.issuer, "jwks_uri": JWKS})
        public = KeySet([*self.keys, *self.also]).as_dict(private=False)
        return msgspec.json.encode(public)

    async def find(self, subject: str) -> User | None:
        return self.users.get(subject)

    def token(self, *, key: Any = None, algorithm: str = "RS256", header: Mapping[str, Any] = {}, **claims: Any) -> str:
        usual = {"iss": ISSUER, "aud": "drivetrain", "sub": "ada", "exp": int(self.now_s) + 300, "iat": int(self.now_s)}
        said = {name: value for name, value in (usual | claims).items() if value is not None}
        signer = key or self.keys[-1]
        head = {"alg": algorithm, "kid": signer.kid, **header}
        return jwt.encode(head, said, signer, registry=JWSRegistry(algorithms=[algorithm]))

    def oidc(self, **config: Any) -> Oidc:
        return Oidc(OidcConfig(issuer=ISSUER, **config), self.find, self.fetch, lambda: self.now_s)


async def test_a_user_of_the_store_comes_in_with_the_scopes_that_the_store_says() -> None:
    provider = Provider()
    provider.users[f"{ISSUER}|ada"] = ADA
    who = await provider.oidc().identify(provider.token(drivetrain_scopes=["models"]))
    assert (who.user, who.org, who.name) == ("user-1", "org-1", "ada@example.com")
    assert who.scopes == {"admin", "usage"}  # a token never spends: no inference
    assert provider.asked == [DISCOVERY, JWKS]


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        (["admin", "metrics", "inference", "root"], {"admin", "metrics"}),
        ("admin usage", {"admin", "usage"}),
        ("administrator", set()),
        (None, set()),
        ({"admin": True}, set()),
        ([["admin"]], set()),
        (7, set()),
    ],
)
async def test_who_is_not_in_the_store_has_the_scopes_that_the_token_lists(claim: Any, scopes: set[str]) -> None:
    provider = Provider()
    who = await provider.oidc(scopes_claim="s").identify(provider.token(s=claim, email="grace@example.com"))
    assert (who.name, set(who.scopes), who.key_id, who.user) == ("grace@example.com", scopes, "", "")


async def test_a_disabled_user_stays_outside_whatever_the_token_says() -> None:
    provider = Provider()
    provider.users[f"{ISSUER}|ada"] = msgspec.structs.replace(ADA, disabled=True)
    with pytest.raises(Unauthorized, match="user 'ada' is disabled"):
        await provider.oidc().identify(provider.token(drivetrain_scopes=["admin"]))


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.example.com/other"},
        {"iss": None},
        {"aud": "something-else"},
        {"aud": ["a", "b"]},
        {"aud": None},
        {"exp": None},
        {"exp": 1_800_000_000 - LEEWAY_S - 1},
        {"exp": "tomorrow"},
        {"nbf": 1_800_000_000 + LEEWAY_S + 1},
        {"iat": 1_800_000_000 + LEEWAY_S + 1},
        {"sub": None},
        {"sub": 7},
    ],
)
async def test_a_token_for_others_or_of_another_time_opens_nothing(claims: Mapping[str, Any]) -> None:
    provider = Provider()
    with pytest.raises(Unauthorized):
        await provider.oidc().identify(provider.token(**claims))


async def test_an_audience_may_be_one_of_several_and_clocks_may_differ_a_little() -> None:
    provider = Provider()
    token = provider.token(aud=["web", "drivetrain"], exp=int(provider.now_s) - LEEWAY_S + 1)
    assert (await provider.oidc().identify(token)).name == "ada"


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("PS256", RSAKey.generate_key(2048, {"kid": "k"})),
        ("RS512", RSAKey.generate_key(2048, {"kid": "k"})),
        ("ES256", ECKey.generate_key("P-256", {"kid": "k"})),
        ("ES384", ECKey.generate_key("P-384", {"kid": "k"})),
        ("Ed25519", OKPKey.generate_key("Ed25519", {"kid": "k"})),
    ],
)
async def test_asymmetric_signatures_of_every_usual_kind_are_known(algorithm: str, key: Any) -> None:
    provider = Provider()
    provider.keys = [key]
    assert (await provider.oidc().identify(provider.token(algorithm=algorithm))).name == "ada"


async def test_a_public_key_cannot_be_used_as_a_secret_and_nothing_is_no_signature() -> None:
    provider = Provider()
    public = provider.keys[0].as_pem(private=False)
    secret = OctKey.import_key(b"a shared secret that the provider lists", {"kid": "oct"})
    provider.also = [secret]
    oidc = provider.oidc()
    for forged in (
        hs256(provider.token(), public),
        provider.token(key=secret, algorithm="HS256"),
        unsigned(provider.token()),
        provider.token()[:-4] + "AAAA",
        "a.b.c",
        "..",
        "é.é.é",
    ):
        with pytest.raises(Unauthorized):
            await oidc.identify(forged)


def unsigned(token: str) -> str:
    return ".".join([_base64(b'{"alg":"none"}'), token.split(".")[1], ""])


def hs256(token: str, secret: bytes) -> str:
    """The same claims, signed with a secret. Libraries of today do not make such a thing of a public key."""
    signed = ".".join([_base64(b'{"alg":"HS256","kid":"first"}'), token.split(".")[1]])
    return f"{signed}.{_base64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_a_stranger_with_the_same_key_id_is_a_stranger() -> None:
    provider = Provider()
    stranger = RSAKey.generate_key(2048, {"kid": "first"})
    with pytest.raises(Unauthorized):
        await provider.oidc().identify(provider.token(key=stranger))


# --- the provider's keys ----------------------------------------------------------------------------------------------


async def test_keys_are_kept_and_asked_for_again_when_they_are_old() -> None:
    provider = Provider()
    oidc = provider.oidc(jwks_url=JWKS)
    for _ in range(5):
        await oidc.identify(provider.token())
    assert provider.asked == [JWKS]
    provider.now_s += KEEP_S + 1
    await oidc.identify(provider.token())
    assert provider.asked == [JWKS, JWKS]


async def test_a_provider_that_changes_its_keys_locks_nobody_out() -> None:
    provider = Provider()
    oidc = provider.oidc(jwks_url=JWKS)
    await oidc.identify(provider.token())
    provider.keys = [RSAKey.generate_key(2048, {"kid": "second"})]
    provider.now_s += PAUSE_S + 1
    assert (await oidc.identify(provider.token())).name == "ada"
    assert provider.asked == [JWKS, JWKS]


async def test_made_up_tokens_do_not_make_us_ask_the_provider_again_and_again() -> None:
    provider = Provider()
    oidc = provider.oidc(jwks_url=JWKS)
    await oidc.identify(provider.token())
    provider.now_s += PAUSE_S + 1
    stranger = RSAKey.generate_key(2048, {"kid": "made-up"})
    for _ in range(20):
        with pytest.raises(Unauthorized):
            await oidc.identify(provider.token(key=stranger))
    assert provider.asked == [JWKS, JWKS]


async def test_a_withdrawn_key_opens_nothing_once_the_keys_are_read_again() -> None:
    provider = Provider()
    oidc = provider.oidc(jwks_url=JWKS)
    old = provider.keys[0]
    await oidc.identify(provider.token())
    provider.keys = [RSAKey.generate_key(2048, {"kid": "second"})]
    provider.now_s += KEEP_S + 1
    with pytest.raises(Unauthorized):
        await oidc.identify(provider.token(key=old))


async def test_a_provider_that_is_away_locks_out_only_until_its_keys_are_known() -> None:
    provider = Provider()
    oidc = provider.oidc(jwks_url=JWKS)
    provider.away = True
    with pytest.raises(ProviderAway) as failed:
        await oidc.identify(provider.token())
    assert (failed.value.status, failed.value.retry_after_s) == (503, PAUSE_S)
    provider.away = False
    provider.now_s += PAUSE_S + 1
    await oidc.identify(provider.token())
    provider.away = True
    provider.now_s += KEEP_S + 1
    assert (await oidc.identify(provider.token())).name == "ada"


async def test_a_discovery_document_of_somebody_else_is_not_believed() -> None:
    provider = Provider()
    provider.issuer = "https://evil.example.com"
    with pytest.raises(ProviderAway, match=r"is of issuer 'https://evil\.example\.com'"):
        await provider.oidc().identify(provider.token())


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": [{"kty": "RSA"}]}', b"\xff"])
async def test_keys_that_cannot_be_read_are_no_keys(document: bytes) -> None:
    provider = Provider()

    async def fetch(_: str) -> bytes:
        return document

    oidc = Oidc(OidcConfig(issuer=ISSUER, jwks_url=JWKS), provider.find, fetch, lambda: provider.now_s)
    with pytest.raises((ProviderAway, Unauthorized)):
        await oidc.identify(provider.token())


def test_without_an_issuer_there_is_nobody_to_believe() -> None:
    with pytest.raises(BadRequest, match=r"oidc\.issuer is missing"):
        Oidc(OidcConfig(), Provider().find)


async def test_the_clock_is_the_ordinary_one_unless_said_otherwise() -> None:
    provider = Provider()
    provider.now_s = time.time()
    oidc = Oidc(OidcConfig(issuer=ISSUER, jwks_url=JWKS), provider.find, provider.fetch)
    assert (await oidc.identify(provider.token())).name == "ada"
