"""What of a caller's own words reaches llama.cpp: what it is documented to take, and nothing that it alone knows."""

import msgspec
import pytest

from drivetrain.dialects.openai import CHAT, COMPLETIONS
from drivetrain.engines.llamacpp.members import known

BODY = b'{"model":"m","messages":[{"role":"user","content":"a"}]%b}'


def sent(more: bytes) -> dict[str, object]:
    """The members that go on, beside those that always do."""
    said: dict[str, object] = msgspec.json.decode(CHAT.encode_request(known(CHAT.decode_request(BODY % more))))
    for name in ("model", "messages", "stream", "stream_options"):
        del said[name]
    return said


@pytest.mark.parametrize(
    "more",
    [
        b',"n_cmpl":4',
        b',"verbose":true',
        b',"__verbose":true',
        b',"id_slot":0',
        b',"lora":[]',
        b',"reasoning_format":"wat"',
        b',"return_tokens":true',
        b',"chat_template":"x"',
        b',"json_schema":{}',
    ],
)
def test_what_is_nobodys_business_stays_behind(more: bytes) -> None:
    assert sent(more) == {}


def test_samplers_and_what_the_dialect_has_go_on() -> None:
    more = b',"temperature":0.5,"min_p":0.1,"dry_multiplier":0.8,"samplers":["top_k"],"chat_template_kwargs":{"a":1}'
    assert sent(more) == {
        "temperature": 0.5,
        "min_p": 0.1,
        "dry_multiplier": 0.8,
        "samplers": ["top_k"],
        "chat_template_kwargs": {"a": 1},
    }


@pytest.mark.parametrize(
    ("more", "lengths"),
    [
        (b',"max_tokens":2,"n_predict":30', {"max_tokens": 2}),
        (b',"max_completion_tokens":2,"n_predict":30', {"max_completion_tokens": 2}),
        (b',"n_predict":3', {"n_predict": 3}),
    ],
)
def test_the_length_that_is_counted_is_the_one_that_holds(more: bytes, lengths: dict[str, int]) -> None:
    assert sent(more) == lengths


def test_a_request_that_says_nothing_else_is_itself() -> None:
    request = CHAT.decode_request(BODY % b',"temperature":0.5,"max_tokens":3')
    assert known(request) is request


def test_a_bare_prompt_keeps_its_members() -> None:
    body = b'{"model":"m","prompt":"a","suffix":"b","echo":true,"logprobs":1,"n":2,"n_cmpl":3}'
    said = msgspec.json.decode(COMPLETIONS.encode_request(known(COMPLETIONS.decode_request(body))))
    assert {name: said[name] for name in said.keys() - {"model", "stream", "stream_options"}} == {
        "prompt": "a",
        "suffix": "b",
        "echo": True,
        "logprobs": 1,
        "n": 2,
    }
