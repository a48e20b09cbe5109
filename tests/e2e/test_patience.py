"""Retries, deadlines and the dry run over HTTP, with real clients' headers and engines that fail."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.servers import Server, serving
from tests.fakes.replies import Raw, Whole
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
PATH = "/v1/chat/completions"
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
BUSY = Whole(status=503, body={"error": {"message": "too busy"}}, headers={"retry-after": "60"})
BROKEN = Whole(status=500, body={"error": {"message": "out of order"}})
SILENT = Raw(then="stall")


@asynccontextmanager
async def pool(home: Path, count: int) -> AsyncGenerator[tuple[Server, list[FakeUpstream]], None]:
    """A server over so many engines, all of them targets of `chat`, one tier each."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeUpstream()) for _ in range(count)]
        named = "\n".join(f"  box-{n}: {{kind: openai, url: '{engine.url}'}}" for n, engine in enumerate(engines))
        targets = ", ".join(f"{{engine: box-{n}, model: m, tier: {n}}}" for n in range(count))
        config = f"engines:\n{named}\nmodels:\n  chat: {{targets: [{targets}]}}\n"
        yield await stack.enter_async_context(serving(home, config)), engines


def asked(engines: list[FakeUpstream]) -> int:
    return sum(len([request for request in engine.requests if request.path == PATH]) for engine in engines)


async def post(server: Server, headers: dict[str, str] | None = None) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
        return await client.post(PATH, json=ASK, headers=headers)


async def test_a_dead_pool_is_told_at_once_and_not_stormed_by_clients_that_retry(tmp_path: Path) -> None:
    async with pool(tmp_path, 3) as (server, engines):
        for engine in engines:
            engine.script(PATH, BROKEN)
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=1)
        calls = 0

        async def count(_: Any) -> None:
            nonlocal calls
            calls += 1

        client._client.event_hooks["request"].append(count)  # the SDK offers no other way to see its own retries
        tries = (client.chat.completions.create(**ASK) for _ in range(50))
        answers = await asyncio.gather(*tries, return_exceptions=True)
        await client.close()
        assert all(isinstance(answer, openai.APIStatusError) for answer in answers)
        assert calls == 100
        assert asked(engines) <= 1.2 * calls


async def test_an_engines_own_retry_after_is_kept_and_told(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as (server, engines):
        engines[0].script(PATH, BUSY)
        answers = [await post(server) for _ in range(3)]
        assert asked(engines) == 1
        assert [answer.status_code for answer in answers] == [503, 503, 503]
        assert 50 <= int(answers[2].headers["retry-after"]) <= 60
        assert answers[2].headers["x-should-retry"] == "true"


async def test_a_callers_deadline_is_a_504_that_names_it(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as (server, engines):
        engines[0].script(PATH, SILENT)
        answer = await post(server, {"x-drivetrain-timeout-ms": "500"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert answer.json()["error"]["message"] == (
            "the 0.5 s that x-drivetrain-timeout-ms allows are over; engine 'box-0' was asked and has not begun"
        )
        assert answer.headers["x-should-retry"] == "false"
        refused = await post(server, {"x-drivetrain-timeout-ms": "soon"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-drivetrain-timeout-ms")


async def test_the_openai_clients_own_timeout_is_the_deadline(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as (server, engines):
        engines[0].script(PATH, SILENT)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=1.0) as client:
            with pytest.raises((openai.APITimeoutError, openai.InternalServerError)):
                await client.chat.completions.create(**ASK)
        seen = engines[0].requests[-1]
        await seen.wait_closed(within_s=5.0)
        assert asked(engines) == 1


async def test_without_fallback_only_one_engine_is_asked(tmp_path: Path) -> None:
    async with pool(tmp_path, 2) as (server, engines):
        engines[0].script(PATH, BROKEN)
        assert (await post(server, {"x-drivetrain-no-fallback": "true"})).status_code == 502
        assert asked(engines[1:]) == 0
        answer = await post(server)
        assert (answer.status_code, answer.headers["x-drivetrain-attempts"]) == (200, "2")


async def test_a_dry_run_tells_the_candidates_and_asks_none_of_them(tmp_path: Path) -> None:
    async with pool(tmp_path, 2) as (server, engines):
        told = await server.get("/v1/explain?model=chat&prompt_tokens=4000")
        (choice,) = told["choices"]
        assert (told["model"], told["prompt_tokens"], choice["policy"]) == ("chat", 4000, "default")
        assert [(seen["position"], seen["engine"]) for seen in choice["candidates"]] == [(1, "box-0"), (2, "box-1")]
        assert asked(engines) == 0
        async with httpx2.AsyncClient(base_url=server.url) as client:
            answers = [await client.get(path) for path in ("/v1/explain", "/v1/explain?model=nobody")]
            wrong = await client.get("/v1/explain?model=chat&prompt_tokens=none")
        assert [answer.status_code for answer in answers] == [400, 404]
        assert wrong.json()["error"]["param"] == "prompt_tokens"
