"""Keys and teams that are stricter than the policy of a model, over servers that run, on both kinds of state."""

import asyncio
from typing import Any

import httpx2
import pytest

from tests.e2e.replicas import CHAT, Place, chat, client, replicas
from tests.e2e.servers import Server
from tests.fakes.manners import ANSWER, PROMPT_TOKENS, WORDS, openai_frames
from tests.fakes.replies import Stream
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
FRAMES = openai_frames("chat.completion.chunk")
SLOW = Stream(frames=FRAMES, delay_s=3.0)  # to begin
TALKATIVE = Stream(frames=openai_frames("chat.completion.chunk", WORDS * 400), pause_s=0.01)
OLLAMA = "/api/chat"


async def asked(server: Server, key: str, path: str = CHAT, **more: Any) -> httpx2.Response:
    async with client(server, key) as caller:
        return await caller.post(path, json=chat(**more))


async def leaves(server: Server, key: str) -> None:
    """Somebody who goes as soon as the answer has begun."""
    async with client(server, key) as caller, caller.stream("POST", CHAT, json=chat(stream=True)) as answer:
        async for line in answer.aiter_lines():
            if WORDS[0] in line:
                return


async def test_a_key_that_waits_less_long_for_a_first_token_is_told_504_and_another_is_answered(
    place: Place, mock: FakeUpstream
) -> None:
    async with replicas(place, mock, count=2 if place.shared else 1) as servers:
        hurried, patient = await place.key("hurried"), await place.key("patient")
        for server in servers:
            assert (await asked(server, hurried)).status_code == 200
        await place.command("terms", "set", "--key", "hurried", "--first-token", "0.2s")
        mock.script(CHAT, SLOW)
        told = (
            "the 0.2 s that first_token_s of key 'hurried' allows are over; engine 'mock' was asked and has not begun"
        )
        for server in servers:
            async with asyncio.timeout(20):
                while (late := await asked(server, hurried)).status_code != 504:
                    assert late.status_code == 200  # it does not know of it yet
            assert late.json()["error"]["message"] == told
            assert late.json()["error"]["code"] == "deadline_exceeded"
            streamed, ollama, other = await asyncio.gather(
                asked(server, hurried, stream=True),
                asked(server, hurried, OLLAMA),
                asked(server, patient),
            )
            assert (streamed.status_code, streamed.json()["error"]["message"]) == (504, told)
            assert (ollama.status_code, ollama.json()) == (504, {"error": told})
            assert (other.status_code, other.json()["choices"][0]["message"]["content"]) == (200, ANSWER)
    rows = await place.rows()
    assert {(row.outcome, row.status, row.why) for row in rows if row.outcome != "ok"} == {
        ("error", 504, "deadline_exceeded")
    }


async def test_a_team_that_does_not_wait_is_refused_at_once_and_another_waits(place: Place, mock: FakeUpstream) -> None:
    async with replicas(place, mock, policy="{limits: {concurrency: 1}}") as (server,):
        await place.command("teams", "create", "search")
        await place.command("terms", "set", "--team", "search", "--queue-size", "0")
        team, other = await place.key("ci", "--team", "search"), await place.key("other")
        async with client(server, other) as caller:
            mock.script(CHAT, TALKATIVE, Stream(frames=FRAMES))
            async with caller.stream("POST", CHAT, json=chat(stream=True)) as running:
                assert running.status_code == 200
                refused = await asked(server, team)
                waiting = asyncio.create_task(asked(server, other))
                again = await asked(server, team)
                assert not waiting.done()
        assert (await waiting).status_code == 200
        for answer in (refused, again):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert "team 'search' lets none of its requests wait" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.headers["x-should-retry"] == "true"
        async with asyncio.timeout(10):
            while (let_in := await asked(server, team)).status_code == 429:
                await asyncio.sleep(0.05)  # until the slot of the one before is given back
        assert let_in.status_code == 200


async def test_an_answer_whose_caller_left_is_drained_for_one_key_and_cut_for_another(
    place: Place, mock: FakeUpstream
) -> None:
    mock.script(CHAT, Stream(frames=FRAMES, pause_s=0.1))
    async with replicas(place, mock) as (server,):
        await place.command("prices", "set", "*", "--output", "1")
        cut, first = await place.key("cut"), await place.key("drained")
        await place.command("terms", "set", "--key", "drained", "--on-disconnect", "drain")
        drained = (await place.command("keys", "rotate", "drained")).strip()  # no server knows this one without terms
        async with asyncio.timeout(20):
            while "x-drivetrain-cost" not in (await asked(server, first)).headers:
                pass  # until the price is known there
        await asyncio.gather(leaves(server, drained), leaves(server, cut))
        async with asyncio.timeout(20):
            while len(rows := [row for row in await place.rows() if row.outcome == "cancelled"]) < 2:
                await asyncio.sleep(0.05)
    one, other = sorted(rows, key=lambda row: row.why, reverse=True)
    assert (one.why, other.why) == ("drained", "cancelled")
    assert (one.usage_estimated, one.prompt_tokens, one.completion_tokens) == (False, PROMPT_TOKENS, len(WORDS))
    assert other.usage_estimated
    assert 1 <= other.completion_tokens < len(WORDS)
    assert (one.cost_micro_usd, other.cost_micro_usd) == (one.completion_tokens, other.completion_tokens)
