"""No secret and no prompt in what is written down."""

import pytest

from drivetrain.telemetry.redact import Redactor


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
        ("bearer ABCDEFGHIJKL", "bearer ***"),
        ("key sk-proj-abcdef123456 refused", "key sk-*** refused"),
        ("dt-0123456789ab-SECRETSECRET", "dt-***"),
        ("hf_abcdefghijklmnop", "hf-***"),
        ("GET /v1/x?api_key=abc123&n=1", "GET /v1/x?api_key=***&n=1"),
        ('{"password": "open sesame"}', '{"password": "*** sesame"}'),
        ('{"api-key":"abc"}', '{"api-key":"***"}'),
        ("https://user:pass@host/path", "https://***@host/path"),
        ("the token count is 12", "the token count is 12"),
        ("max_tokens=12", "max_tokens=12"),
        ("risk-averse and task-oriented", "risk-averse and task-oriented"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, plain: str) -> None:
    assert Redactor().text(text) == plain


def test_the_secrets_of_the_configuration_are_hidden_wherever_they_stand() -> None:
    redactor = Redactor(["opensesame", "short"])
    assert redactor.text("xopensesamex short") == "x***x short"
    redactor.learn(["another-one"])
    assert redactor.text("opensesame another-one") == "opensesame ***"


def test_members_are_hidden_by_their_names_at_any_depth() -> None:
    event = {
        "headers": {"Authorization": "x", "X-Api-Key": "y", "accept": "z"},
        "messages": [{"content": "a prompt"}],
        "prompt": "four score",
        "tokens": 4,
        "list": ["Bearer abcdefgh", None, True, 1.5],
    }
    assert Redactor().value(event) == {
        "headers": {"Authorization": "***", "X-Api-Key": "***", "accept": "z"},
        "messages": "(1 long)",
        "prompt": "(10 long)",
        "tokens": 4,
        "list": ["Bearer ***", None, True, 1.5],
    }


def test_an_object_is_written_as_text_without_its_secrets() -> None:
    assert Redactor().value(ValueError("Bearer abcdefgh")) == "Bearer ***"
