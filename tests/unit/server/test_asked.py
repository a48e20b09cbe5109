"""What the gateway is told of a caller: who it is when it shows no key, and what its headers ask for."""

import pytest

from drivetrain.governance import Principal
from drivetrain.server.asked import call_of
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
    ("header", "value", "member", "told"),
    [
        ("cache-control", b"no-store", "fresh", True),
        ("x-drivetrain-no-fallback", b"true", "alone", True),
        ("x-drivetrain-priority", b"bulk", "priority", "bulk"),
        ("x-drivetrain-prompt", b"support", "prompt", "support"),
        ("x-drivetrain-region", b"eu", "region", "eu"),
        ("x-drivetrain-session", b"s", "session", "s"),
        ("x-drivetrain-tags", b"run=7", "tags", '{"run":"7"}'),
        ("x-drivetrain-timeout-ms", b"5", "timeout_s", 0.005),
        ("x-session-id", b"s", "session", "s"),
        ("x-stainless-read-timeout", b"5", "read_timeout_s", 5.0),
    ],
)
def test_each_header_that_we_know_is_heard_alone(header: str, value: bytes, member: str, told: object) -> None:
    assert getattr(call_of(exchange(**{header: value}), "openai.chat"), member) == told
    assert getattr(call_of(exchange(), "openai.chat"), member) != told


def test_a_header_names_a_prompt() -> None:
    assert call_of(exchange(x_drivetrain_prompt=b"support@3"), "openai.chat").prompt == "support@3"
    assert call_of(exchange(), "openai.chat").prompt == ""


@pytest.mark.parametrize(
    ("header", "fresh"), [(b"no-cache", True), (b"max-age=0, no-store", True), (b"max-age=60", False)]
)
def test_a_caller_may_want_a_fresh_answer(header: bytes, fresh: bool) -> None:
    assert call_of(exchange(cache_control=header), "openai.chat").fresh is fresh
    assert call_of(exchange(), "openai.chat").fresh is False
