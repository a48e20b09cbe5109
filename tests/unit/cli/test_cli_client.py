"""Which server a command talks to, and what becomes of the server's errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drivetrain.cli import client
from drivetrain.cli.command import Call, Failure, Missing, Misused
from tests.unit.cli.kit import Play, Terminal
from tests.unit.cli.standin import StandIn

NO_PROCESS = 2**22 + 1  # above what Linux gives out


def test_the_servers_own_record_is_followed_while_its_process_lives(tmp_path: Path) -> None:
    call = Call(tmp_path, False, {})
    with StandIn(tmp_path, {}) as server:
        assert server.url == asyncio.run(client.running(call))
        server.announce(NO_PROCESS)
        assert asyncio.run(client.running(call)) is None
    server.announce(1)
    assert asyncio.run(client.running(call)) is None


@pytest.mark.parametrize("record", ["", "{}", '{"pid": "x", "url": 1}', "[]", '{"pid": 1}'])
def test_a_record_that_is_none_is_no_server(tmp_path: Path, record: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "server.json").write_text(record)
    assert asyncio.run(client.running(Call(tmp_path, False, {}))) is None


def test_the_configured_address_is_tried_where_nothing_is_recorded(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with StandIn(tmp_path / "elsewhere", {}) as server:
        (home / "drivetrain.yaml").write_text(f"server: {{port: {server.url.rpartition(':')[2]}}}")
        assert server.url == asyncio.run(client.running(Call(home, False, {})))


def test_who_answers_there_must_be_drivetrain(tmp_path: Path) -> None:
    with StandIn(tmp_path, {"GET /healthz": (200, b"OK")}):
        assert asyncio.run(client.running(Call(tmp_path, False, {}))) is None


def test_a_url_in_the_environment_counts_first(tmp_path: Path) -> None:
    assert asyncio.run(client.running(Call(tmp_path, False, {"DRIVETRAIN_URL": "http://there:1/"}))) == "http://there:1"


def test_the_key_in_the_environment_is_sent(drivetrain: Terminal, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    server = play({"GET /api/tags": (200, {"models": []})})
    monkeypatch.setenv("DRIVETRAIN_API_KEY", "dt-1")
    drivetrain("list")
    assert {name.lower(): value for name, value in server.all[-1].headers.items()}["authorization"] == "Bearer dt-1"


def test_a_proxy_is_not_asked_for_a_server_on_this_machine(
    drivetrain: Terminal, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    play({"GET /api/tags": (200, {"models": []})})
    assert drivetrain("list").code == 0


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (404, {"error": "model 'x' not found"}, 3, "model 'x' not found"),
        (400, {"error": {"message": "bad", "type": "t", "param": None, "code": None}}, 1, "bad"),
        (401, {"error": {"message": "no key"}}, 1, "no key; set DRIVETRAIN_API_KEY to a key of this server"),
        (500, b"<html>", 1, "<html> (the server answered 500)"),
        (503, b"", 1, "no reason given (the server answered 503)"),
        (200, b"hello", 1, "{url} answered what is not JSON; is it a Drivetrain server?"),
    ],
)
def test_what_the_server_says_is_told_in_one_line(
    drivetrain: Terminal, play: Play, status: int, body: object, code: int, message: str
) -> None:
    server = play({"GET /api/tags": (status, body)})
    assert (code, "", f"Error: {message.format(url=server.url)}\n") == drivetrain("list")


def test_a_server_that_does_not_answer_is_unreachable(drivetrain: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIVETRAIN_URL", "http://127.0.0.1:9")
    outcome = drivetrain("list")
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (4, "", 1)
    assert outcome.err.startswith("Error: http://127.0.0.1:9: ")


def test_a_server_that_cannot_start_says_why(drivetrain: Terminal) -> None:
    drivetrain.home.mkdir()
    (drivetrain.home / "drivetrain.yaml").write_text("residency: {max_loaded: x}")
    outcome = drivetrain("list")
    assert outcome.code == 2
    assert outcome.err.endswith(
        "drivetrain.yaml:1:25: residency.max_loaded: expected an integer of at least 0, got 'x'\n"
    )


def test_lines_end_in_lf_alone_at_any_cut() -> None:
    text = '{"a": "x\u2028y\x85z"}\n\n{"b": 1}\n{"c"'.encode()

    async def cut(size: int) -> list[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(text), size):
                yield text[start : start + size]

        return [line async for line in client.lines(pieces())]

    whole = ['{"a": "x\u2028y\x85z"}'.encode(), b'{"b": 1}', b'{"c"']
    for size in range(1, len(text) + 1):
        assert whole == asyncio.run(cut(size))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [(404, {"error": "x"}, Missing), (400, {"error": "x"}, Failure), (500, {"error": 5}, Failure)],
)
def test_a_failure_knows_whether_something_was_missing(status: int, body: object, kind: type[Failure]) -> None:
    assert kind is type(client.failure(status, json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "model_not_found"}, Missing),
        ({"code": "not_found"}, Missing),
        ({"code": "invalid_config"}, Misused),
        ({"code": "unreachable"}, Failure),  # somebody whom the server asked: it is there itself
        ({"code": None}, Failure),
        ({"code": ["a"]}, Failure),
        ("model 'x' not found", Missing),
        ("it broke", Failure),
    ],
)
def test_an_error_in_a_stream_is_told_apart_as_our_own_are(
    drivetrain: Terminal, play: Play, error: str | dict[str, object], kind: type[Failure]
) -> None:
    said = error if isinstance(error, str) else {"message": "so it is", **error}
    play({"POST /v1/models": (200, [{"status": "pulling"}, {"error": said}])})
    outcome = drivetrain("pull", "m")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        kind.exit_code,
        f"Error: {said if isinstance(said, str) else 'so it is'}",
    )
