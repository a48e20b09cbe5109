"""What the gateway is told of a caller: who it is when it shows no key, and what its headers ask for."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from drivetrain.governance import Principal
from drivetrain.server import asked
from drivetrain.server.asked import HEARD, call_of
from drivetrain.server.exchange import Exchange
from tests.unit.server.tape import Tape


class Wire(Tape):
    peer = "10.0.0.9"


def exchange(**headers: bytes) -> Exchange:
    found = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return Exchange(Wire(), "POST", "/v1/chat/completions", b"", found, keep_alive=True)


def test_a_caller_without_key_and_session_is_known_by_its_address() -> None:
    assert call_of(exchange(), "openai.chat").client == "10.0.0.9"


def test_nobodys_address_is_kept_who_is_known_otherwise() -> None:
    session = call_of(exchange(x_drivetrain_session=b" chat-7 "), "openai.chat")
    assert (session.session, session.client) == ("chat-7", "")
    keyed = exchange()
    keyed.who = Principal(key_id="k")
    assert call_of(keyed, "openai.chat").client == ""


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("cache-control", b"no-store"),
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
        ("x-drivetrain-no-fallback", b"true"),
        ("x-drivetrain-priority", b"bulk"),
        ("x-drivetrain-prompt", b"support"),
        ("x-drivetrain-region", b"eu"),
        ("x-drivetrain-session", b"s"),
        ("x-drivetrain-tags", b"run=7"),
        ("x-drivetrain-timeout-ms", b"5"),
        ("x-session-id", b"s"),
        ("x-stainless-read-timeout", b"5"),
    ],
)
def test_each_header_that_we_know_is_heard_alone(header: str, value: bytes) -> None:
    silent, told = call_of(exchange(), "openai.chat"), call_of(exchange(**{header: value}), "openai.chat")
    trace = told.trace if told.trace.parent else silent.trace
    assert replace(told, received_s=silent.received_s, trace=trace) != silent
    assert header.encode() in HEARD


def test_no_other_header_is_looked_for() -> None:
    told = set(re.findall(rb'get\(b"([a-z-]+)"\)', Path(asked.__file__).read_bytes()))
    assert told == HEARD


def test_a_header_names_a_prompt() -> None:
    assert call_of(exchange(x_drivetrain_prompt=b"support@3"), "openai.chat").prompt == "support@3"
    assert call_of(exchange(), "openai.chat").prompt == ""


@pytest.mark.parametrize(
    ("header", "fresh"), [(b"no-cache", True), (b"max-age=0, no-store", True), (b"max-age=60", False)]
)
def test_a_caller_may_want_a_fresh_answer(header: bytes, fresh: bool) -> None:
    assert call_of(exchange(cache_control=header), "openai.chat").fresh is fresh
    assert call_of(exchange(), "openai.chat").fresh is False
