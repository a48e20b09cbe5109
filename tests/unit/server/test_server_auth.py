"""Who asks, and what that one may: keys as clients send them, scopes by route, in the words of each dialect."""

import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from drivetrain import keys
from drivetrain.config.schema import Server
from drivetrain.errors import (
    Busy,
    Conflict,
    ContextOverflow,
    DrivetrainError,
    EngineUnavailable,
    Internal,
    NotFound,
    RateLimited,
    StoreAway,
    Unauthorized,
)
from drivetrain.governance import ANYBODY, SCOPES, Principal, Scope
from drivetrain.server import App, error_headers
from drivetrain.server.admin import Admin
from drivetrain.server.admin.reports import Reports
from drivetrain.server.admin.rollouts import Control
from drivetrain.server.answer import Heartbeat
from drivetrain.server.auth import Auth, auth_wanted, open_door
from drivetrain.server.exchange import Exchange
from drivetrain.server.inference import Inference
from drivetrain.server.media import Media
from drivetrain.server.models import Models
from drivetrain.server.ollama import Ollama
from drivetrain.server.operations import Operations
from drivetrain.server.routes import routes
from drivetrain.server.routing import PUBLIC, Routes
from drivetrain.types import Value
from tests.fakes.engine import ANSWER, ScriptedEngine, gateway_over
from tests.unit.server.tape import Tape, asking

pytestmark = pytest.mark.anyio
PEPPER = b"a pepper for tests"
CONFIG = Server()


class Record(Value, frozen=True, kw_only=True):
    principal: Principal
    hash: str
    not_after_s: float | None = None


class Keyring:
    """A directory whose keys are all known at once, or only when asked for."""

    def __init__(self, *, known: bool = True) -> None:
        self.records: dict[str, Record] = {}
        self.away = False
        self.asked: list[str] = []
        self._known = known

    def add(self, *scopes: Scope, **more: Any) -> str:
        """A new key with these scopes: what its owner has to send."""
        public_id, secret = keys.new()
        end_s = more.pop("not_after_s", None)
        who = Principal(key_id="key-1", name="ci", org="org-1", scopes=frozenset(scopes), **more)
        self.records[public_id] = Record(principal=who, hash=keys.hashed(PEPPER, secret), not_after_s=end_s)
        return keys.text(public_id, secret)

    def cached(self, public_id: str) -> Record | None:
        return self.records.get(public_id) if self._known else None

    async def find(self, public_id: str) -> Record | None:
        self.asked.append(public_id)
        if self.away:
            raise StoreAway("the store is away", retry_after_s=1.0)
        return self.records.get(public_id)


def whole_table() -> Routes:
    """Every route there is, on parts that no request of these tests may reach."""
    gateway, _ = gateway_over(ScriptedEngine("a"))
    nothing: Any = None
    inference = Inference(gateway, Heartbeat(), nothing)
    models, native = Models(gateway, nothing), Ollama(inference, nothing)
    operations = Operations(gateway, inference, nothing)
    admin = Admin(
        nothing,
        nothing,
        Reports(nothing, nothing, nothing, nothing),
        Control(nothing, nothing, nothing, engines=nothing, named=nothing),
    )
    return routes(inference, models, native, operations, Media(CONFIG), admin)


async def echo(exchange: Exchange) -> None:
    await exchange.respond(200, json.dumps([exchange.who.key_id, exchange.who.name]).encode())


def app_with(keyring: Keyring | None, scope: Scope = "inference", *, clock_s: float = 1000.0) -> App:
    table = Routes()
    table.add("GET POST", "/v1/echo", echo, scope=scope)
    table.add("GET", "/healthz", echo, scope=None)
    return App(CONFIG, table, Auth(keyring, PEPPER, clock=lambda: clock_s) if keyring else None)


async def answer_of(app: App, headers: Mapping[bytes, bytes], path: str = "/v1/echo", method: str = "GET") -> Tape:
    exchange, tape = asking(method, path, headers)
    await app.handle(exchange)
    return tape


def message(tape: Tape) -> str:
    error = json.loads(tape.body)["error"]
    return str(error if isinstance(error, str) else error["message"])


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("header", "form"),
    [
        (b"authorization", "Bearer {}"),
        (b"authorization", "bearer {}"),
        (b"authorization", "BEARER  {} "),
        (b"x-api-key", "{}"),
    ],
)
async def test_a_key_is_taken_as_clients_send_it(known: bool, header: bytes, form: str) -> None:
    keyring = Keyring(known=known)
    key = keyring.add("inference")
    tape = await answer_of(app_with(keyring), {header: form.format(key).encode()})
    assert (tape.status, json.loads(tape.body)) == (200, ["key-1", "ci"])
    assert len(keyring.asked) == (0 if known else 1)


async def test_who_shows_no_key_is_told_how() -> None:
    tape = await answer_of(app_with(Keyring()), {})
    assert (tape.status, tape.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer dt-" in message(tape)
    assert "OLLAMA_API_KEY" in message(tape)


@pytest.mark.parametrize(
    "shown",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer sk-something-else",
        b"Bearer dt-short-secret",
        b"Basic ZHQ6eA==",
        b"Bearer \xff\xfe\x00",
        b"Bearer a.b.c",
    ],
)
async def test_what_is_no_key_of_ours_opens_nothing(shown: bytes) -> None:
    tape = await answer_of(app_with(Keyring()), {b"authorization": shown})
    assert (tape.status, tape.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_wrong_secret_and_an_unknown_key_are_told_alike() -> None:
    keyring = Keyring()
    key = keyring.add("inference")
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    unknown = keys.text(*keys.new())
    first = await answer_of(app_with(keyring), {b"x-api-key": wrong.encode()})
    second = await answer_of(app_with(keyring), {b"x-api-key": unknown.encode()})
    assert first.status == second.status == 401
    assert message(first).replace(wrong[3:15], "…") == message(second).replace(unknown[3:15], "…")
    assert wrong[16:] not in first.body.decode()


async def test_an_expired_key_opens_nothing_from_its_last_instant_on() -> None:
    keyring = Keyring()
    key = keyring.add("inference", not_after_s=1000.0).encode()
    assert (await answer_of(app_with(keyring, clock_s=999.9), {b"x-api-key": key})).status == 200
    late = await answer_of(app_with(keyring, clock_s=1000.0), {b"x-api-key": key})
    assert (late.status, "has expired" in message(late)) == (401, True)


async def test_while_the_store_is_away_unknown_keys_are_asked_to_come_back() -> None:
    keyring = Keyring(known=False)
    key = keyring.add("inference").encode()
    keyring.away = True
    tape = await answer_of(app_with(keyring), {b"x-api-key": key})
    assert (tape.status, tape.headers["retry-after"], tape.headers["x-should-retry"]) == (503, "1", "true")


async def test_without_authentication_everybody_is_anybody_whatever_they_show() -> None:
    tape = await answer_of(app_with(None), {b"authorization": b"Bearer nonsense"})
    assert (tape.status, json.loads(tape.body)) == (200, ["", "anybody"])
    assert ANYBODY.scopes == SCOPES


async def test_what_is_public_is_nobodys_even_with_a_key() -> None:
    keyring = Keyring()
    key = keyring.add(*SCOPES).encode()
    for headers in ({}, {b"x-api-key": key}, {b"x-api-key": b"wrong"}):
        tape = await answer_of(app_with(keyring), headers, "/healthz")
        assert (tape.status, json.loads(tape.body)) == (200, ["", "nobody"])


# --- scopes -----------------------------------------------------------------------------------------------------------


async def test_a_key_without_the_scope_is_told_which_it_lacks_and_has() -> None:
    keyring = Keyring()
    key = keyring.add("inference", "usage").encode()
    tape = await answer_of(app_with(keyring, "models"), {b"x-api-key": key})
    assert tape.status == 403
    assert message(tape) == "key 'ci' lacks the scope 'models', which GET /v1/echo needs; it has: inference, usage"


def every_route() -> list[tuple[str, str, Scope | None]]:
    table = whole_table()
    exact = [(method, path, route.scope) for (method, path), route in table.exact.items()]
    return exact + [
        (method, f"{prefix}01ARZ3NDEKTSV4RRFFQ69G5FAV", one.scope) for (method, prefix), one in table.prefixes.items()
    ]


@pytest.mark.parametrize(("method", "path", "scope"), every_route())
async def test_every_route_asks_for_a_key_with_its_scope(method: str, path: str, scope: Scope | None) -> None:
    """Past the check lies nothing but `None`: a request that got there would be a defect, and a 500."""
    if scope is None:
        assert path in PUBLIC
        return
    keyring = Keyring()
    others = keyring.add(*(SCOPES - {scope})).encode()
    app = App(CONFIG, whole_table(), Auth(keyring, PEPPER))
    bare = await answer_of(app, {}, path, method)
    assert (bare.status, bare.headers["www-authenticate"]) == (401, "Bearer")
    short = await answer_of(app, {b"authorization": b"Bearer " + others}, path, method)
    assert short.status == 403
    if method != "HEAD":
        assert f"lacks the scope {scope!r}" in message(short)


def test_nothing_but_the_public_paths_is_public() -> None:
    assert {path for _, path, scope in every_route() if scope is None} == PUBLIC


def test_what_only_administrators_may_is_under_one_roof() -> None:
    admins = {path for _, path, scope in every_route() if scope == "admin"}
    assert {path.startswith("/admin/v1/") for path in admins} == {True}
    assert not [path for _, path, scope in every_route() if path.startswith("/admin") and scope != "admin"]


def test_a_route_cannot_be_made_without_a_scope() -> None:
    table = Routes()
    with pytest.raises(ValueError, match="needs one of the scopes"):
        table.add("GET", "/v1/secret", echo, scope=None)
    with pytest.raises(ValueError, match="needs one of the scopes"):
        table.add("GET", "/v1/secret", echo, scope=cast(Scope, "everything"))
    with pytest.raises(ValueError, match="needs one of the scopes"):
        table.under("GET", "/v1/secret/", cast(Any, echo), scope=cast(Scope, None))


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (b"localhost", "/v1/echo"),
        (b"127.0.0.1/healthz", "/v1/echo"),
        (b"localhost", "/v1/echo/"),
        (b"localhost", "//v1/echo"),
        (b"localhost", "/healthz/../v1/echo"),
        (b"localhost", "/V1/echo"),
    ],
)
async def test_no_way_of_writing_an_address_goes_past_the_check(host: bytes, path: str) -> None:
    tape = await answer_of(app_with(Keyring()), {b"host": host}, path)
    assert tape.status in (401, 403, 404)


async def test_refusals_speak_the_dialect_of_the_path() -> None:
    app = App(CONFIG, whole_table(), Auth(Keyring(), PEPPER))
    openai = json.loads((await answer_of(app, {}, "/v1/chat/completions", "POST")).body)
    assert (openai["error"]["type"], openai["error"]["code"]) == ("invalid_request_error", "invalid_api_key")
    ollama = json.loads((await answer_of(app, {}, "/api/chat", "POST")).body)
    assert ollama["error"].startswith("an API key is needed here")


async def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    keyring = Keyring()
    key = keyring.add("inference")
    wrong = keys.text(key[3:15], keys.new()[1])
    with caplog.at_level(logging.DEBUG):
        for shown in (key, wrong):
            await answer_of(app_with(keyring, "admin"), {b"x-api-key": shown.encode()})
    logged = caplog.text + repr([record.__dict__ for record in caplog.records])
    assert key[16:] not in logged
    assert wrong[16:] not in logged


# --- where keys are asked for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "wanted"),
    [
        (Server(), False),
        (Server(host="localhost"), False),
        (Server(host="::1"), False),
        (Server(host="127.8.8.8"), False),
        (Server(host="0.0.0.0"), True),
        (Server(host="::"), True),
        (Server(host="10.0.0.7"), True),
        (Server(host="box.example.com"), True),
        (Server(host=""), True),
        (Server(auth="on"), True),
        (Server(host="0.0.0.0", auth="off"), False),
    ],
)
def test_keys_are_asked_for_wherever_others_may_come(server: Server, wanted: bool) -> None:
    assert auth_wanted(server) is wanted
    assert (open_door(server) is None) is wanted


# --- an answer that has begun -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EngineUnavailable("away"), RuntimeError("a defect")])
async def test_an_answer_that_breaks_off_does_not_look_whole(error: Exception) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.start(200, b"text/plain")
        await exchange.send_body(b"half", more=True)
        raise error

    table = Routes()
    table.add("GET", "/v1/echo", breaks, scope="inference")
    exchange, tape = asking("GET", "/v1/echo")
    await App(CONFIG, table).handle(exchange)
    assert tape.body == b"4\r\nhalf\r\n"
    assert not exchange.done  # so its connection is cut


async def test_an_answer_to_a_shortened_conversation_has_each_header_once() -> None:
    engine = ScriptedEngine("box", [ContextOverflow("too long")], [ContextOverflow("too long")], ANSWER)
    gateway, _ = gateway_over(engine)
    native = Ollama(Inference(gateway, Heartbeat(), cast(Any, None)), cast(Any, None))
    table = Routes()
    table.add("POST", "/api/chat", native.chat, scope="inference")
    turns = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user", "assistant", "user")]
    body = json.dumps({"model": "chat", "messages": turns, "stream": False}).encode()
    exchange, tape = asking("POST", "/api/chat", {b"origin": b"http://localhost"}, body=body)
    await App(CONFIG, table).handle(exchange)
    names = [line.partition(b":")[0] for line in tape.written.partition(b"\r\n\r\n")[0].split(b"\r\n")]
    assert (tape.status, len(engine.asked)) == (200, 3)
    assert {b"x-drivetrain-engine", b"access-control-allow-origin"} < set(names)
    assert len(names) == len(set(names))


async def test_a_conversation_is_cut_to_the_room_that_the_engine_tells() -> None:
    overflow = ContextOverflow("too long")
    overflow.fits = 0.1
    engine = ScriptedEngine("box", [overflow], ANSWER)
    gateway, _ = gateway_over(engine)
    native = Ollama(Inference(gateway, Heartbeat(), cast(Any, None)), cast(Any, None))
    table = Routes()
    table.add("POST", "/api/chat", native.chat, scope="inference")
    turns = [{"role": "user", "content": "x" * 84}] * 20
    body = json.dumps({"model": "chat", "messages": turns, "stream": False}).encode()
    exchange, tape = asking("POST", "/api/chat", body=body)
    await App(CONFIG, table).handle(exchange)
    assert (tape.status, [len(asked.messages) for asked in engine.asked]) == (200, [20, 1])


# --- whether to come back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (
            RateLimited("slow", retry_after_s=1.2345),
            {"retry-after": "2", "retry-after-ms": "1235", "x-should-retry": "true"},
        ),
        (Busy("full", retry_after_s=0.0001), {"retry-after": "1", "retry-after-ms": "1", "x-should-retry": "true"}),
        (RateLimited("never"), {"x-should-retry": "false"}),
        (Conflict("there"), {"x-should-retry": "false"}),
        (Internal("defect"), {"x-should-retry": "false"}),
        (EngineUnavailable("away"), {}),
        (NotFound("no"), {}),
        (Unauthorized("who"), {"www-authenticate": "Bearer"}),
    ],
)
def test_callers_are_told_whether_and_when_to_come_back(error: DrivetrainError, headers: Mapping[str, str]) -> None:
    assert {name.decode(): value.decode() for name, value in error_headers(error)} == headers
