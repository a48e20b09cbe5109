"""Logs: one shape for everything that is said in the process, without secrets or prompts."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from drivetrain.governance import Attempt
from drivetrain.telemetry import Logs, in_request

log = logging.getLogger("drivetrain.test")

ATTEMPT = Attempt(
    id="01J",
    request_id="req_1",
    position=1,
    started_s=1_700_000_000.0,
    dialect="openai.chat",
    model="m",
    engine="local",
    engine_model="m",
    stream=True,
    outcome="ok",
    status=200,
    prompt_tokens=30,
    completion_tokens=12,
    first_token_s=0.05,
    total_s=0.5,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logs(stream: io.StringIO) -> Iterator[Logs]:
    logs = Logs(stream=stream)
    logs.install()
    yield logs
    logs.close()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_its_fields(logs: Logs, stream: io.StringIO) -> None:
    log.warning("disk %s is %d %% full", "a", 91, extra={"path": "/models", "left_bytes": 5})
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "disk a is 91 % full",
        "level": "warning",
        "logger": "drivetrain.test",
        "path": "/models",
        "left_bytes": 5,
    }


def test_lines_of_a_request_carry_its_id(logs: Logs, stream: io.StringIO) -> None:
    with in_request("req_7"):
        log.info("inside")
    log.info("outside")
    assert [line.get("request_id") for line in lines(stream)] == ["req_7", None]


def test_secrets_and_prompts_are_not_written(logs: Logs, stream: io.StringIO) -> None:
    logs.know_secrets(["opensesame"])
    log.info("opensesame with Bearer abcdefgh", extra={"api_key": "x", "prompt": "tell me", "url": "http://a:b@c/"})
    try:
        raise ValueError("token=abc, opensesame")
    except ValueError:
        log.exception("failed")
    first, second = lines(stream)
    assert first["event"] == "*** with Bearer ***"
    assert (first["api_key"], first["prompt"], first["url"]) == ("***", "(7 long)", "http://***@c/")
    assert "ValueError: token=***, ***" in second["exception"]


def test_libraries_speak_in_the_same_shape_and_only_of_trouble(logs: Logs, stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.access").warning("GET /")
    logging.getLogger("alembic.runtime.migration").info("Context impl SQLiteImpl.")
    logging.getLogger("huggingface_hub").warning("slow mirror", extra={"color_message": "\x1b[1mslow mirror"})
    (line,) = lines(stream)
    assert (line["event"], line["logger"], "color_message" in line) == ("slow mirror", "huggingface_hub", False)


def test_the_level_decides_and_can_change(logs: Logs, stream: io.StringIO) -> None:
    log.debug("unseen")
    logs.set_level("debug")
    log.debug("seen")
    logs.set_level("error")
    log.warning("unseen")
    logs.access([ATTEMPT])
    assert [line["event"] for line in lines(stream)] == ["seen"]


def test_the_format_can_change(logs: Logs, stream: io.StringIO) -> None:
    logs.set_format("console")
    log.info("for people")
    logs.set_format("json")
    log.info("for machines")
    first, second = stream.getvalue().splitlines()
    assert "for people" in first
    assert msgspec.json.decode(second)["event"] == "for machines"


def test_each_attempt_has_one_access_line(logs: Logs, stream: io.StringIO) -> None:
    logs.access(
        [ATTEMPT, msgspec.structs.replace(ATTEMPT, id="01K", model="sk-abcdefgh", outcome="rejected", status=404)]
    )
    first, second = lines(stream)
    assert first["timestamp"] == "2023-11-14T22:13:20.500+00:00"
    assert (first["event"], first["logger"], first["level"]) == ("attempt", "drivetrain.access", "info")
    told = msgspec.to_builtins(ATTEMPT)
    assert {name: first[name] for name in told} == told
    assert (second["model"], second["status"]) == ("sk-***", 404)


def test_a_terminal_gets_lines_for_people() -> None:
    terminal = Terminal()
    logs = Logs(stream=terminal)
    logs.install()
    try:
        log.info("hello", extra={"n": 3})
        logs.access(
            [ATTEMPT, msgspec.structs.replace(ATTEMPT, engine="", outcome="rejected", why="busy", first_token_s=None)]
        )
    finally:
        logs.close()
    first, second, third = terminal.getvalue().splitlines()
    assert "hello" in first
    assert second.endswith("200 openai.chat m → local ok 30+12 tokens 500 ms, first token 50 ms")
    assert third.endswith("200 openai.chat m → - rejected (busy) 30+12 tokens 500 ms")


def test_a_reader_of_stderr_who_has_gone_does_no_harm(logs: Logs, stream: io.StringIO) -> None:
    stream.close()
    logs.access([ATTEMPT])


def test_closing_gives_logging_back() -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    logs = Logs(level="error", stream=io.StringIO())
    logs.install()
    assert (root.level, root.handlers) != before
    logs.close()
    assert (root.level, root.handlers) == before
