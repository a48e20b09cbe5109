"""Prompts kept where they were seen, with real workers: what they have in their caches is used again."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e.servers import MODEL, Server, add_small_model, serving

pytestmark = pytest.mark.anyio
WORDS = ("sea", "gold", "ship", "storm", "rum", "parrot", "map", "island", "sail", "anchor", "captain", "plank", "wave")
ASSISTANTS = (0, 1)  # at home at different workers
SETTINGS = {"num_ctx": 1024, "n_parallel": 4}
Talk = list[dict[str, str]]


class Turn(NamedTuple):
    engine: str
    why: str
    prompt: int
    cached: int


@asynccontextmanager
async def workers(home: Path, many: int, affinity: str) -> AsyncIterator[Server]:
    """A server whose model `chat` is in so many workers, all of them loaded."""
    add_small_model(home, settings=SETTINGS)
    names = [f"worker-{number}" for number in range(many)]
    targets = {name: [{"engine": name, "model": MODEL}] for name in names}
    config = {
        "engines": {name: {"kind": "llamacpp"} for name in names},
        "models": {
            "chat": {"targets": [target for found in targets.values() for target in found], "policy": "kept"},
            **{name: {"targets": found} for name, found in targets.items()},
        },
        "policies": {"kept": {"routing": {"affinity": affinity}}},
    }
    async with serving(home, json.dumps(config)) as server:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(take(server, name, [{"role": "user", "content": "Hi"}]))
        yield server


async def take(server: Server, model: str, talk: Talk) -> Turn:
    """One turn, which is added to the conversation."""
    body: dict[str, Any] = {"model": model, "messages": talk, "max_tokens": 4, "temperature": 0}
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    talk.append({"role": "assistant", "content": told["choices"][0]["message"]["content"] or "…"})
    usage, headers = told["usage"], answer.headers
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Turn(headers["x-drivetrain-engine"], headers["x-drivetrain-route-reason"], usage["prompt_tokens"], cached)


def talk_to(assistant: int, words: int) -> Talk:
    said = " ".join(random.Random(assistant).choices(WORDS, k=words))
    return [{"role": "system", "content": f"You are number {assistant}: {said}"}]


def say(talk: Talk, number: int) -> None:
    talk.append({"role": "user", "content": f"Tell me something about the {WORDS[number % len(WORDS)]} {number}."})


async def test_a_conversation_finds_what_it_said_before_in_the_cache(tmp_path: Path) -> None:
    async with workers(tmp_path, 2, "prefix") as server:
        homes: set[str] = set()
        for assistant in ASSISTANTS:
            talk = talk_to(assistant, 60)
            say(talk, 1)
            first = await take(server, "chat", talk)
            say(talk, 2)
            second = await take(server, "chat", talk)
            assert second.engine == first.engine
            assert second.cached >= first.prompt - 1 > 60
            assert second.why == "tier 0, same prefix, load 0"
            homes.add(first.engine)
        assert homes == {"worker-0", "worker-1"}


async def conversations(server: Server, model: Callable[[], str], assistants: int, callers: int) -> list[Turn]:
    """One of four turns with each assistant, so many at once. `model`: of the next turn."""
    talks = [talk_to(number, 150) for number in range(assistants)]
    turns: list[Turn] = []

    async def caller() -> None:
        while talks:
            talk = talks.pop()
            for number in range(4):
                say(talk, number)
                turns.append(await take(server, model(), talk))

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
    return turns


def cached_share(turns: Sequence[Turn]) -> float:
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


@pytest.mark.slow
async def test_half_as_much_again_is_cached_as_by_chance_and_no_worker_gets_a_quarter_more_than_its_share(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    models: Mapping[str, Callable[[], str]] = {
        "chance": lambda: f"worker-{chance.randrange(3)}",
        "prefix": lambda: "chat",
    }
    found: dict[str, list[Turn]] = {}
    for name, model in models.items():
        async with workers(tmp_path / name, 3, "prefix") as server:
            found[name] = await conversations(server, model, assistants=24, callers=9)
    assert cached_share(found["prefix"]) >= 1.5 * cached_share(found["chance"])
    counts = Counter(turn.engine for turn in found["prefix"])
    assert max(counts.values()) <= 1.25 * len(found["prefix"]) / 3
