"""Whether a request asks for log-probabilities, however its dialect says so."""

import json
from typing import Any

import pytest

from drivetrain.dialects import Surface, logprobs, ollama, openai

CHAT = {"messages": [{"role": "user", "content": "x"}]}
BARE = {"prompt": "p", "raw": True}


@pytest.mark.parametrize(
    ("surface", "said", "asked"),
    [
        (openai.CHAT, CHAT, None),
        (openai.CHAT, CHAT | {"logprobs": False}, None),
        (openai.CHAT, CHAT | {"logprobs": True}, 0),
        (openai.CHAT, CHAT | {"logprobs": True, "top_logprobs": 2}, 2),
        (openai.COMPLETIONS, BARE, None),
        (openai.COMPLETIONS, BARE | {"logprobs": 0}, 0),
        (openai.COMPLETIONS, BARE | {"logprobs": 3}, 3),
        (ollama.CHAT, CHAT | {"top_logprobs": 2}, None),
        (ollama.CHAT, CHAT | {"logprobs": True}, 0),
        (ollama.GENERATE, BARE | {"logprobs": True}, 0),
        (ollama.GENERATE, BARE | {"logprobs": True, "top_logprobs": 2}, 2),
    ],
)
def test_a_request_asks_for_so_many_alternatives(surface: Surface, said: dict[str, Any], asked: int | None) -> None:
    request = surface.decode_request(json.dumps({"model": "m", **said}).encode())
    assert logprobs.asked(request) == asked
