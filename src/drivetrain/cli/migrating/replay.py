"""The same requests, asked of two engines one after the other."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from msgspec.structs import replace

from drivetrain.cli.command import Misused
from drivetrain.cli.migrating.comparing import Answer
from drivetrain.engines import Engine
from drivetrain.errors import DrivetrainError
from drivetrain.types import Content, Fold, Message, Request, Text

OPENING = (
    "Name three rivers of Europe.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about a lighthouse.",
    "What is 17 times 23? Show how you get there.",
    "Summarise the rules of chess for a child.",
    "Translate into French: The train leaves at noon.",
    "List five uses of a paper clip.",
    "Write a Python function that reverses a text.",
)


def written(path: str) -> Sequence[Request]:
    """A file's prompts, one a line."""
    lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
    if not any(lines):
        raise Misused(f"{path} holds no prompt; write one a line")
    return [prompt(line) for line in lines if line]


def prompt(text: str) -> Request:
    return Request(model="", messages=(Message(role="user", content=(Text(text=text),)),))


def settled(request: Request, model: str, most_tokens: int) -> Request:
    """As two engines can be compared by it: without chance, no longer than so many tokens, in nobody's own words."""
    limit = min(request.sampling.max_tokens or most_tokens, most_tokens)
    sampling = replace(request.sampling, temperature=0.0, seed=0, max_tokens=limit, n=1)
    return replace(request, model=model, sampling=sampling, source=None, stream=True, user=None)


async def answers(engine: Engine, requests: Sequence[Request], at_once: int) -> Sequence[Answer]:
    """In the order of the requests."""
    turn = asyncio.Semaphore(at_once)

    async def ask(request: Request) -> Answer:
        async with turn:
            return await answer(engine, request)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(request)) for request in requests]
    return [task.result() for task in asked]


async def answer(engine: Engine, request: Request) -> Answer:
    began_s, first_s, folded = time.perf_counter(), None, Fold()
    try:
        async with aclosing(engine.generate(request)) as batches:
            async for events in batches:
                if first_s is None and any(isinstance(event, Content) for event in events):
                    first_s = time.perf_counter() - began_s
                folded.extend(events)
    except DrivetrainError as error:
        return Answer(why=error.message, total_s=time.perf_counter() - began_s)
    response = folded.response()
    return Answer(
        response=response,
        first_token_s=first_s,
        total_s=time.perf_counter() - began_s,
        tokens=response.usage.completion,
    )
