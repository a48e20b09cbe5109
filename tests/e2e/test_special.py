"""Hedging, kept answers and continued ones, over HTTP: with the official client, and the real small model."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.servers import MODEL, Server, add_small_model, serving
from tests.fakes.manners import ANSWER, openai_frames
from tests.fakes.replies import Raw, Stream
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
PATH = "/v1/chat/completions"
QUESTION: Any = [{"role": "user", "content": "Name the planets of the solar system in order."}]
GREEDY: Mapping[str, Any] = {"messages": QUESTION, "temperature": 0, "seed": 7, "max_tokens": 40}


@asynccontextmanager
async def pool(
    home: Path, policy: str, *, kinds: Sequence[str] = ("openai", "openai"), more: str = ""
) -> AsyncGenerator[tuple[Server, openai.AsyncOpenAI, list[FakeUpstream]], None]:
    """A server over fakes of these kinds, one tier each, and a client of it. `more`: further targets."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeUpstream()) for _ in kinds]
        named = "".join(
            f"  box-{n}: {{kind: {kind}, url: '{engine.url}'}}\n"
            for n, (kind, engine) in enumerate(zip(kinds, engines, strict=True))
        )
        targets = ", ".join(f"{{engine: box-{n}, model: m, tier: {n}}}" for n in range(len(kinds)))
        config = (
            f"engines:\n{named}  local: {{kind: llamacpp}}\npolicies:\n  default: {policy}\n"
            f"models:\n  chat: {{targets: [{targets}{more}]}}\n"
        )
        server = await stack.enter_async_context(serving(home, config))
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=120)
        yield server, await stack.enter_async_context(client), engines


def broken_after(words: Sequence[str]) -> Stream:
    """A stream that is cut after these words."""
    frames = openai_frames("chat.completion.chunk", tuple(words))[: len(words) + 1]  # the first tells the role
    return Stream(frames=frames, cut_after=sum(map(len, frames)), then="reset")


async def told(client: openai.AsyncOpenAI, **members: Any) -> tuple[str, list[Any]]:
    """The text of a streamed answer, and its chunks."""
    stream = await client.chat.completions.create(model="chat", stream=True, **{**GREEDY, **members})
    chunks = [chunk async for chunk in stream]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


# --- hedging ----------------------------------------------------------------------------------------------------------


async def test_a_second_engine_answers_for_one_that_says_nothing(tmp_path: Path) -> None:
    async with pool(tmp_path, "{hedge: {percent: 100, least_s: 0.1, most_s: 0.1}}") as (_, client, engines):
        engines[0].script(PATH, Raw(then="stall"))
        answer = await client.chat.completions.with_raw_response.create(model="chat", **GREEDY)
        assert answer.parse().choices[0].message.content == ANSWER
        assert (answer.headers["x-drivetrain-engine"], answer.headers["x-drivetrain-attempts"]) == ("box-1", "2")
        await next(request for request in engines[0].requests if request.path == PATH).wait_closed()


# --- kept answers -----------------------------------------------------------------------------------------------------


async def test_the_same_question_is_answered_again_without_an_engine(tmp_path: Path) -> None:
    async with pool(tmp_path, "{cache: {ttl_s: 60}}") as (_, client, engines):
        create = client.chat.completions.with_raw_response.create
        first = await create(model="chat", **GREEDY)
        again = await create(model="chat", **GREEDY)
        streamed, chunks = await told(client, stream_options={"include_usage": True})
        fresh = await create(model="chat", extra_headers={"cache-control": "no-cache"}, **GREEDY)
        assert [answer.parse().choices[0].message.content for answer in (first, again, fresh)] == [ANSWER] * 3
        assert streamed == ANSWER
        assert [answer.headers.get("x-drivetrain-cache") for answer in (first, again, fresh)] == [None, "hit", None]
        usage = chunks[-1].usage
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens > 0
        assert chunks[0].choices[0].delta.role == "assistant"
        assert sum(request.path == PATH for request in engines[0].requests) == 2


# --- answers that are continued ---------------------------------------------------------------------------------------


async def test_vllm_goes_on_with_an_answer_that_broke_off(tmp_path: Path) -> None:
    async with pool(tmp_path, "{retries: {resume: true}}", kinds=("openai", "vllm")) as (_, client, engines):
        engines[0].script(PATH, broken_after(("The first of ", "them is ")))
        text, chunks = await told(client)
        assert text == f"The first of them is {ANSWER}"
        assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
        assert len({(chunk.id, chunk.model, chunk.created) for chunk in chunks}) == 1
        body = next(request for request in engines[1].requests if request.path == PATH).json
        assert body["messages"] == [*QUESTION, {"role": "assistant", "content": "The first of them is"}]
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
        assert body["max_tokens"] == GREEDY["max_tokens"] - 2


@pytest.mark.slow
async def test_the_real_model_goes_on_where_another_engine_broke_off(tmp_path: Path) -> None:
    add_small_model(tmp_path)
    local = f", {{engine: local, model: '{MODEL}', tier: 1}}"
    async with pool(tmp_path, "{retries: {resume: true}}", kinds=("openai",), more=local) as (_, client, engines):
        whole = (await client.chat.completions.create(model=MODEL, **GREEDY)).choices[0].message.content or ""
        words = whole.split(" ")[:6]
        engines[0].script(PATH, broken_after([words[0], *(f" {word}" for word in words[1:])]))
        text, chunks = await told(client)
        assert text == whole
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")


async def test_without_the_policy_an_answer_that_breaks_off_ends_in_one_error(tmp_path: Path) -> None:
    async with pool(tmp_path, "{}", kinds=("openai", "vllm")) as (_, client, engines):
        engines[0].script(PATH, broken_after(("The first of ", "them is ")))
        with pytest.raises(openai.APIError, match="box-0"):
            await told(client)
        assert not any(request.path == PATH for request in engines[1].requests)
