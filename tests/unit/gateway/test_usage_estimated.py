"""What an engine did not count, we estimate: the caller is told the same as the ledger."""

from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from drivetrain.gateway import Call
from drivetrain.types import ChoiceFinished, Event, Finished, Message, Text, TextDelta, Usage, fold
from tests.fakes.engine import ScriptedEngine, ask, gateway_over

pytestmark = pytest.mark.anyio
PROMPT = (Message(role="user", content=(Text(text="word " * 8),)),)  # 40 characters: about 10 tokens


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["openai.chat", "ollama.chat"])
@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (Usage(completion=1, estimated=True), Usage(prompt=10, completion=1, estimated=True)),
        (Usage(prompt=3, completion=2), Usage(prompt=3, completion=2)),
    ],
    ids=["counted here", "counted by the engine"],
)
async def test_the_caller_is_told_what_the_ledger_says(
    reported: Usage, expected: Usage, dialect: Any, stream: bool
) -> None:
    end: list[Event] = [ChoiceFinished(reason="stop"), Finished(usage=reported)]
    gateway, notebook = gateway_over(ScriptedEngine("a", ([TextDelta(text="a")], end)))
    call = Call(id="req_1", dialect=dialect, received_s=0.0)
    async with aclosing(gateway.generate(replace(ask(stream=stream), messages=PROMPT), call)) as batches:
        told = fold([event async for events in batches for event in events])
    (row,) = notebook.attempts
    assert told.usage == expected
    assert (row.prompt_tokens, row.completion_tokens) == (expected.prompt, expected.completion)
    assert row.usage_estimated == expected.estimated
