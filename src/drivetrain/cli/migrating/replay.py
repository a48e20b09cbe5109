"""The same requests, asked of an engine as of the other one: for words, or for vectors."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from drivetrain.cli.command import Misused
from drivetrain.cli.migrating.comparing import Answer
from drivetrain.engines import Engine
from drivetrain.errors import DrivetrainError
from drivetrain.types import Content, EmbedRequest, Fold, Message, Request, Text

Asked = TypeVar("Asked", Request, EmbedRequest)
WARM = "Hi."
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


def written(path: str) -> Sequence[str]:
    """A file's prompts, one a line."""
    lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
    if not any(lines):
        raise Misused(f"{path} holds no prompt; write one a line")
    return [line for line in lines if line]


def prompt(words: str) -> Request:
    return Request(model="", messages=(Message(role="user", content=(Text(text=words),)),))


def text(words: str) -> EmbedRequest:
    return EmbedRequest(model="", inputs=(words,))


def settled(request: Request, model: str, most_tokens: int) -> Request:
    """As two engines can be compared by it: without chance, no longer than so many tokens, in nobody's own words."""
    limit = min(request.sampling.max_tokens or most_tokens, most_tokens)
    sampling = replace(request.sampling, temperature=0.0, seed=0, max_tokens=limit, n=1)
    return replace(request, model=model, sampling=sampling, source=None, stream=True, user=None)


def plain(request: EmbedRequest, model: str) -> EmbedRequest:
    """In nobody's own words."""
    return replace(request, model=model, source=None)


def chosen(make: Callable[[str], Asked], given: Sequence[str], kept: Iterable[Asked]) -> Sequence[Asked]:
    """What is written, else what is kept, else our own."""
    return [make(words) for words in given] or list(kept) or [make(words) for words in OPENING]


async def in_words(
    engine: Engine, model: str, *, requests: Sequence[Request], at_once: int, most_tokens: int
) -> Sequence[Answer]:
    """In the order of the requests."""
    await answer(engine, settled(prompt(WARM), model, 1))  # loading it is not compared
    return await _in_turn(partial(answer, engine), [settled(one, model, most_tokens) for one in requests], at_once)


async def as_vectors(engine: Engine, model: str, *, requests: Sequence[EmbedRequest], at_once: int) -> Sequence[Answer]:
    """In the order of the requests."""
    await vectors(engine, plain(text(WARM), model))
    return await _in_turn(partial(vectors, engine), [plain(one, model) for one in requests], at_once)


async def _in_turn(
    ask: Callable[[Asked], Coroutine[Any, Any, Answer]], requests: Sequence[Asked], at_once: int
) -> Sequence[Answer]:
    turn = asyncio.Semaphore(at_once)

    async def one(request: Asked) -> Answer:
        async with turn:
            return await ask(request)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(request)) for request in requests]
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
        said=response,
        first_token_s=first_s,
        total_s=time.perf_counter() - began_s,
        tokens=response.usage.completion,
    )


async def vectors(engine: Engine, request: EmbedRequest) -> Answer:
    """As a caller would get them: no longer than was asked for."""
    began_s = time.perf_counter()
    try:
        found = await engine.embed(request)
    except DrivetrainError as error:
        return Answer(why=error.message, total_s=time.perf_counter() - began_s)
    total_s = time.perf_counter() - began_s
    cut = tuple(vector[: request.dimensions] for vector in found.vectors)
    return Answer(said=replace(found, vectors=cut), total_s=total_s)
