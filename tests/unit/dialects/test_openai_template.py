"""The short way for frames that look alike loses none that looks different."""

import json
from collections.abc import Sequence

import pytest

from drivetrain.dialects import openai
from drivetrain.types import Fold, Request

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
