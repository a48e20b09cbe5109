"""Which turns of a conversation are left out when it is longer than the context."""

import msgspec
import pytest

from drivetrain.dialects import ollama
from drivetrain.types import Request


def request(*roles: str, **more: object) -> Request:
    messages = [{"role": role, "content": f"{at}"} for at, role in enumerate(roles)]
    return ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": messages, **more}))


def texts(asked: Request) -> str:
    return "".join(message.text for message in asked.messages)


def test_ever_more_of_the_oldest_turns_are_left_out_and_the_last_stays() -> None:
    asked = request("user", "assistant", "user", "assistant", "user")
    assert [texts(shorter) for shorter in ollama.shortened(asked)] == ["234", "4"]


def test_what_the_system_says_stays() -> None:
    asked = request("system", "user", "assistant", "user")
    assert [texts(shorter) for shorter in ollama.shortened(asked)] == ["03"]


def test_a_call_is_left_out_with_its_result() -> None:
    asked = request("user", "assistant", "tool", "assistant", "user")
    assert [texts(shorter) for shorter in ollama.shortened(asked)] == ["4"]


def test_few_tries_are_enough_for_any_length() -> None:
    asked = request(*["user"] * 100)
    tries = [len(shorter.messages) for shorter in ollama.shortened(asked)]
    assert tries == [99, 98, 96, 92, 84, 68, 36, 1, 1]  # at the end one letter of the last one's two


def test_an_ollama_engine_is_told_the_same() -> None:
    (shorter,) = ollama.shortened(request("user", "assistant", "user"))
    assert shorter.source is not None
    assert bytes(shorter.source.fields["messages"]) == b'[{"role":"user","content":"2"}]'


def test_nothing_is_left_out_against_the_callers_wish() -> None:
    assert list(ollama.shortened(request("user", "assistant", "user", truncate=False))) == []
    raw = msgspec.json.encode({"model": "m", "prompt": LONG, "raw": True, "truncate": False})
    assert list(ollama.shortened(ollama.GENERATE.decode_request(raw))) == []


LONG = "".join(map(chr, range(0x100, 0x110)))  # sixteen letters, all different


def test_a_last_turn_keeps_ever_less_of_its_end() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": LONG}]
    asked = ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": messages}))
    shorter = list(ollama.shortened(asked))
    assert [texts(one) for one in shorter] == ["Be brief." + LONG[-n:] for n in (12, 9, 6, 5, 3, 2, 1)]
    assert shorter[0].source is not None
    assert msgspec.json.decode(shorter[0].source.fields["messages"])[1] == {"role": "user", "content": LONG[-12:]}


@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_keeps_ever_less_of_its_end(raw: bool) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": LONG, "raw": raw})
    first = next(ollama.shortened(ollama.GENERATE.decode_request(body)))
    assert (first.completion.prompts[0] if first.completion else texts(first)) == LONG[-12:]
    assert first.source is not None
    assert set(first.source.fields) == {"model", "prompt", "raw"}
    assert msgspec.json.decode(first.source.fields["prompt"]) == LONG[-12:]


def test_a_text_that_is_a_hundred_times_too_long_is_cut_and_a_longer_one_refused() -> None:
    asked = ollama.GENERATE.decode_request(msgspec.json.encode({"model": "m", "prompt": "x" * 10000}))
    cuts = [len(texts(one)) for one in ollama.shortened(asked)]
    assert (len(cuts), cuts[0], cuts[-1]) == (16, 7500, 100)


def test_an_image_of_a_turn_stays() -> None:
    picture = {"role": "user", "content": LONG, "images": ["iVBORw0KGgo="]}
    asked = ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": [picture]}))
    assert [len(one.messages[0].content) for one in ollama.shortened(asked)] == [2] * 7


def test_a_continued_prompt_loses_what_came_before() -> None:
    first = ollama.GENERATE.decode_request(b'{"model":"m","prompt":"0"}')
    context = ollama.context.encode((*first.messages, *first.messages))
    body = msgspec.json.encode({"model": "m", "prompt": "1", "context": context})
    shorter = list(ollama.shortened(ollama.GENERATE.decode_request(body)))
    assert [texts(one) for one in shorter] == ["01", "1"]
    assert shorter[0].source is not None
    assert "context" not in shorter[0].source.fields
