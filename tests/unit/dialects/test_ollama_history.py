"""Which turns of a conversation are left out when it is longer than the context."""

import msgspec

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
    assert [len(shorter.messages) for shorter in ollama.shortened(asked)] == [99, 98, 96, 92, 84, 68, 36, 1]


def test_an_ollama_engine_is_told_the_same() -> None:
    (shorter,) = ollama.shortened(request("user", "assistant", "user"))
    assert shorter.source is not None
    assert bytes(shorter.source.fields["messages"]) == b'[{"role":"user","content":"2"}]'


def test_nothing_is_left_out_of_one_turn_nor_against_the_callers_wish() -> None:
    assert list(ollama.shortened(request("system", "user"))) == []
    assert list(ollama.shortened(request("user", "assistant", "user", truncate=False))) == []


def test_a_continued_prompt_loses_what_came_before() -> None:
    first = ollama.GENERATE.decode_request(b'{"model":"m","prompt":"0"}')
    context = ollama.context.encode((*first.messages, *first.messages))
    body = msgspec.json.encode({"model": "m", "prompt": "1", "context": context})
    shorter = list(ollama.shortened(ollama.GENERATE.decode_request(body)))
    assert [texts(one) for one in shorter] == ["01", "1"]
    assert shorter[0].source is not None
    assert "context" not in shorter[0].source.fields
