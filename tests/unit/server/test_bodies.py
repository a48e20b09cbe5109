"""What was said, where a policy has it kept: never more than it says, and no piece of a secret."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from drivetrain.config.schema import Bodies as Wanted
from drivetrain.server.bodies import MARGIN, Bodies
from drivetrain.store import Body
from drivetrain.telemetry.redact import Redactor
from drivetrain.types import Event, TextDelta

pytestmark = pytest.mark.anyio
SECRET = "sk-" + "s3cr3t" * 8
WORDS = "word " * 20


async def kept_of(request: str, answer: Sequence[str], wanted: Wanted) -> Body:
    """What is kept of an answer that came in these pieces."""

    async def batches() -> AsyncGenerator[Sequence[Event], None]:
        for piece in answer:
            yield [TextDelta(text=piece)]

    found: list[Body] = []
    bodies = Bodies(found.append, Redactor().text)
    async with aclosing(bodies.overheard(batches(), "req_1", request.encode(), wanted)) as heard:
        told = [event async for events in heard for event in events]
    assert told == [TextDelta(text=piece) for piece in answer]
    [body] = found
    return body


async def test_what_fits_is_kept_whole_but_for_secrets() -> None:
    body = await kept_of(f"say {SECRET}", ["card ", "1234", " and ", SECRET], Wanted(keep=True, redact=(r"\d{4}",)))
    assert (body.request, body.answer) == ("say sk-***", "card *** and sk-***")


@pytest.mark.parametrize("place", range(60, 112, 4))
async def test_a_secret_across_the_cut_leaves_nothing_behind(place: int) -> None:
    text = WORDS[:place] + " " + SECRET + " " + WORDS
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    body = await kept_of(text, pieces, Wanted(keep=True, max_bytes=100))
    for kept in (body.request, body.answer):
        assert kept == (WORDS[:place] + " sk-*** " + WORDS)[:100]


@pytest.mark.parametrize("place", range(MARGIN + 60, MARGIN + 112, 4))
async def test_nor_one_across_the_end_of_what_is_looked_at_however_much_was_blackened_before(place: int) -> None:
    text = "x" * place + " " + SECRET + " " + WORDS * 100
    body = await kept_of(text, [text[:place], *text[place:]], Wanted(keep=True, max_bytes=100, redact=("x+",)))
    for kept in (body.request, body.answer):
        assert "s3" not in kept
        assert len(kept) <= 100
