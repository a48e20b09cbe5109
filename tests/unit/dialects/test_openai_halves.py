"""A character beyond the first 65,536 is two escapes in JSON: some engines write one into each of two frames."""

import json

import pytest

from drivetrain.dialects.openai import CHAT
from drivetrain.types import Event, Request, fold

FOREIGN = Request(model="m", stream=True)  # of another dialect: no frames are kept
SAME = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}')
WHOLE = CHAT.decode_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')


def frames(*contents: str, index: int = 0) -> list[bytes]:
    """Frames whose texts are written as in JSON, escapes and all."""
    form = 'data: {"choices":[{"index":%d,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    return [(form % (index, text)).encode() for text in contents]


def end(index: int = 0) -> bytes:
    return b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}\n\n' % index


def answer(stream: bytes, request: Request) -> list[Event]:
    decoder = CHAT.decoder(request)
    return [*decoder.feed(stream), *decoder.close()]


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (("a\\ud83d", "\\ude00b"), "a😀b"),
        (("\\uD83D", "\\uDE00\\ud83d", "\\ude01"), "😀😁"),
        (("a", "b", "c\\\\\\ud83d", "\\ude00"), "abc\\😀"),
        (("a\\\\ud83d", "b"), "a\\ud83db"),  # no escape, but a backslash and what follows it
        (("a\\ud83d", "b"), "ab"),  # the second half never came
        (("\\ude00b",), "\ufffdb"),  # nor did the first
    ],
)
@pytest.mark.parametrize("request_", [FOREIGN, SAME, WHOLE], ids=["foreign", "same", "whole"])
def test_a_character_cut_in_two_comes_as_one(contents: tuple[str, ...], text: str, request_: Request) -> None:
    events = answer(b"".join([*frames(*contents), end()]), request_)
    assert fold(events).choices[0].text == text
    raws = b"".join(event.raw or b"" for event in events).split(b"\n\n")[:-1]
    told = [json.loads(raw[6:])["choices"][0]["delta"].get("content", "") for raw in raws]
    assert "".join(told) == (text if request_ is SAME else "")


def test_halves_of_characters_belong_to_their_choice() -> None:
    first, second = frames("\\ud83d", "\\ude00"), frames("\\ud83c", "\\udf08", index=1)
    events = answer(b"".join([first[0], second[0], first[1], second[1], end(), end(1)]), FOREIGN)
    assert [choice.text for choice in fold(events).choices] == ["😀", "🌈"]
