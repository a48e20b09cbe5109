"""The short way for frames that look alike loses none that looks different."""

import json
from collections.abc import Sequence

import pytest

from drivetrain.dialects import openai
from drivetrain.types import Fold, Request, TextDelta

REQUEST = openai.COMPLETIONS.decode_request(b'{"model":"m","prompt":"x"}')


def frame(text: str, created: int, reason: str | None = None) -> bytes:
    chunk = {"choices": [{"text": text, "index": 0, "finish_reason": reason}], "created": created, "id": "a"}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def spelled(pieces: Sequence[bytes], request: Request = REQUEST) -> str:
    decoder, folded = openai.COMPLETIONS.decoder(request), Fold()
    for piece in pieces:
        folded.extend(decoder.feed(piece))
    return folded.response().choices[0].text


@pytest.mark.parametrize("together", [1, 2, 3, 7])
@pytest.mark.parametrize("turn", range(6))
def test_a_second_that_passes_in_a_stream_costs_no_text(turn: int, together: int) -> None:
    frames = [frame(f"{at}", 1000 + (at >= turn)) for at in range(6)]
    frames += [frame("", 1001, "length"), b"data: [DONE]\n\n"]
    pieces = [b"".join(frames[at : at + together]) for at in range(0, len(frames), together)]
    assert spelled(pieces) == "012345"


RUN = [frame(text, 1000) for text in "abc"]


def request(*, stream: bool, dialect: str = "openai.completions") -> Request:
    body = json.dumps({"model": "m", "prompt": "x", "stream": stream}).encode()
    read = openai.COMPLETIONS.decode_request(body)
    return read if dialect == "openai.completions" else Request(model="m", stream=stream)


def test_text_that_comes_at_once_is_one_event_for_who_waits_for_the_whole() -> None:
    events = openai.COMPLETIONS.decoder(request(stream=False)).feed(b"".join(RUN))
    assert events == [TextDelta(text="a"), TextDelta(text="bc", tokens=2)]


def test_text_that_comes_at_once_keeps_all_its_frames_for_a_caller_of_the_same_surface() -> None:
    events = openai.COMPLETIONS.decoder(request(stream=True)).feed(b"".join(RUN))
    assert events == [TextDelta(text="a", raw=RUN[0]), TextDelta(text="bc", tokens=2, raw=RUN[1] + RUN[2])]


def test_a_caller_of_another_dialect_sees_an_event_for_each_frame() -> None:
    events = openai.COMPLETIONS.decoder(request(stream=True, dialect="ollama.generate")).feed(b"".join(RUN))
    assert events == [TextDelta(text=text) for text in "abc"]


@pytest.mark.parametrize("model", ['"model": "m"', '"model" : "m"'], ids=["usual", "unusual"])
def test_every_frame_of_a_run_tells_the_public_name(model: str) -> None:
    """Also where it is written in a way that cannot be replaced in all of them at once."""
    frames = [piece.replace(b'"id": "a"', model.encode()) for piece in RUN]
    reply = openai.COMPLETIONS.reply(Request(model="public"), id="7", created_s=5.0)
    decoder = openai.COMPLETIONS.decoder(request(stream=True))
    sent = b"".join(map(reply.encode, decoder.feed(b"".join(frames))))
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in sent.split(b"\n\n") if each]
    assert [(chunk["model"], chunk["choices"][0]["text"]) for chunk in chunks] == [("public", text) for text in "abc"]
