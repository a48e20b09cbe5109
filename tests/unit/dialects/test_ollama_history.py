"""Which turns of a conversation are left out when it is longer than the context."""

from collections.abc import Iterator

import msgspec
import pytest

from drivetrain.dialects import ollama
from drivetrain.types import Request


def request(*roles: str, **more: object) -> Request:
    messages = [{"role": role, "content": f"{at}"} for at, role in enumerate(roles)]
    return ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": messages, **more}))


def texts(asked: Request) -> str:
    return "".join(message.text for message in asked.messages)


def shortened(asked: Request | None) -> Iterator[Request]:
    """What an engine is asked that has no room for any of it, and does not tell for how much it has."""
    while asked is not None and (asked := ollama.shortened(asked)) is not None:
        yield asked


def test_ever_more_of_the_oldest_turns_are_left_out_and_the_last_stays() -> None:
    asked = request("user", "assistant", "user", "assistant", "user")
    assert [texts(shorter) for shorter in shortened(asked)] == ["234", "4"]


def test_what_the_system_says_stays() -> None:
    asked = request("system", "user", "assistant", "user")
    assert [texts(shorter) for shorter in shortened(asked)] == ["03"]


def test_a_call_is_left_out_with_its_result() -> None:
    asked = request("user", "assistant", "tool", "assistant", "user")
    assert [texts(shorter) for shorter in shortened(asked)] == ["4"]


def test_few_tries_are_enough_for_any_length() -> None:
    asked = request(*["user"] * 100)
    tries = [len(shorter.messages) for shorter in shortened(asked)]
    assert tries == [50, 25, 13, 7, 4, 2, 1, 1]  # at the end one letter of the last one's two


def test_an_ollama_engine_is_told_the_same() -> None:
    (shorter,) = shortened(request("user", "assistant", "user"))
    assert shorter.source is not None
    assert bytes(shorter.source.fields["messages"]) == b'[{"role":"user","content":"2"}]'


def test_nothing_is_left_out_against_the_callers_wish() -> None:
    assert list(shortened(request("user", "assistant", "user", truncate=False))) == []
    raw = msgspec.json.encode({"model": "m", "prompt": LONG, "raw": True, "truncate": False})
    assert list(shortened(ollama.GENERATE.decode_request(raw))) == []


LONG = "".join(map(chr, range(0x100, 0x110)))  # sixteen letters, all different


def test_a_last_turn_keeps_ever_less_of_its_end() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": LONG}]
    asked = ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": messages}))
    shorter = list(shortened(asked))
    assert [texts(one) for one in shorter] == ["Be brief." + LONG[-n:] for n in (12, 9, 6, 4, 3, 2, 1)]
    assert shorter[0].source is not None
    assert msgspec.json.decode(shorter[0].source.fields["messages"])[1] == {"role": "user", "content": LONG[-12:]}


@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_keeps_ever_less_of_its_end(raw: bool) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": LONG, "raw": raw})
    first = next(shortened(ollama.GENERATE.decode_request(body)))
    assert (first.completion.prompts[0] if first.completion else texts(first)) == LONG[-12:]
    assert first.source is not None
    assert set(first.source.fields) == {"model", "prompt", "raw"}
    assert msgspec.json.decode(first.source.fields["prompt"]) == LONG[-12:]


def test_a_text_that_is_a_hundred_times_too_long_is_cut_within_the_tries_that_there_are() -> None:
    asked = ollama.GENERATE.decode_request(msgspec.json.encode({"model": "m", "prompt": "x" * 10000}))
    cuts = [len(texts(one)) for one in shortened(asked)]
    assert (cuts[0], cuts[15] < 100) == (7500, True)
    assert ollama.MOST_TRIES > 16


def test_an_image_of_a_turn_stays() -> None:
    picture = {"role": "user", "content": LONG, "images": ["iVBORw0KGgo="]}
    asked = ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": [picture]}))
    assert [len(one.messages[0].content) for one in shortened(asked)] == [2] * 7


def test_a_continued_prompt_loses_what_came_before() -> None:
    first = ollama.GENERATE.decode_request(b'{"model":"m","prompt":"0"}')
    context = ollama.context.encode((*first.messages, *first.messages))
    body = msgspec.json.encode({"model": "m", "prompt": "1", "context": context})
    shorter = list(shortened(ollama.GENERATE.decode_request(body)))
    assert [texts(one) for one in shorter] == ["01", "1"]
    assert shorter[0].source is not None
    assert "context" not in shorter[0].source.fields


# --- where the engine tells how much has room -------------------------------------------------------------------------


def long(*turns: tuple[str, int], **more: object) -> Request:
    """A conversation of texts of so many letters; each message weighs sixteen more."""
    messages = [{"role": role, "content": "x" * length} for role, length in turns]
    return ollama.CHAT.decode_request(msgspec.json.encode({"model": "m", "messages": messages, **more}))


def lengths(asked: Request | None) -> list[int] | None:
    return None if asked is None else [len(message.text) for message in asked.messages]


@pytest.mark.parametrize(
    ("fits", "kept"),
    [
        (0.99, [84, 84, 84, 84, 84, 84, 84]),
        (0.5, [84, 84, 84]),
        (0.3, [84]),
        (0.1, [62]),  # 0.7 of a message's hundred: sixteen of those are around the text
    ],
)
def test_as_few_of_the_oldest_turns_are_left_out_as_fit(fits: float, kept: list[int]) -> None:
    asked = long(*[("user", 84), ("assistant", 84)] * 4, ("user", 84))
    assert lengths(ollama.shortened(asked, fits)) == kept


def test_what_stays_in_any_case_takes_its_room() -> None:
    asked = long(("system", 484), ("user", 484), ("assistant", 84), ("user", 84))
    assert lengths(ollama.shortened(asked, 0.8)) == [484, 84]
    tools = [{"function": {"name": "f", "parameters": {"a": "y" * 492}}}]  # with its quotes and braces, five hundred
    assert lengths(ollama.shortened(long(("user", 484), tools=tools), 0.8)) == [184]


@pytest.mark.parametrize(("raw", "kept"), [(True, 700), (False, 700 - 16)])
def test_a_prompt_that_is_a_thousand_times_too_long_is_cut_at_once(raw: bool, kept: int) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "x" * 800_000, "raw": raw})
    shorter = ollama.shortened(ollama.GENERATE.decode_request(body), 1 / 1000)
    assert shorter is not None
    assert len(shorter.completion.prompts[0] if shorter.completion else texts(shorter)) == kept


def test_a_system_text_that_fills_the_context_leaves_a_little_of_the_rest() -> None:
    asked = long(("system", 984), ("user", 984))
    assert lengths(ollama.shortened(asked, 0.5)) == [984, 53]  # an eighth of seven eighths of a half


def test_nothing_is_left_to_leave_out() -> None:
    assert ollama.shortened(long(("user", 0)), 0.5) is None
    assert ollama.shortened(long(("system", 99)), 0.5) is None
    assert ollama.shortened(ollama.GENERATE.decode_request(b'{"model":"m","prompt":"x","raw":true}'), 0.5) is None
    assert ollama.shortened(long(("user", 9), ("user", 9), truncate=False), 0.5) is None
