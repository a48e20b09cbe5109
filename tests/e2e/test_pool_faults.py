"""Three engines, each in a process of its own, a real server over them, and callers who never stop asking: whatever
happens to one engine, no caller notices but those whose stream had begun on it, and it comes back by itself."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import openai
import pytest

from tests.e2e.servers import COMMAND, Server, serving
from tests.fakes.apart import PATH, SAID, Apart, apart

pytestmark = pytest.mark.anyio
CALLERS = 6
ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
CONFIG = """
engines:
{engines}
models:
  chat: {{targets: [{targets}]}}
policies:
  default: {{timeouts: {{first_token_s: 2, idle_s: 2}}}}
breaker: {{open_s: 0.5, slow_start_s: 1}}
"""


class Answer(NamedTuple):
    engine: str  # "": none answered
    begun: bool  # some content came
    whole: bool  # it came to its end
    errors: Sequence[Any]  # frames that tell one, or the body of a refusal


class Load:
    """Callers, and what they got."""

    def __init__(self, server: Server, ask: "Ask") -> None:
        self._server = server
        self._ask = ask
        self.answers: list[Answer] = []
        self._more = asyncio.Condition()

    async def call(self) -> None:
        """One after the other, for ever."""
        async with httpx2.AsyncClient(base_url=self._server.url, timeout=60) as client:
            while True:
                self.answers.append(await self._ask(client))
                async with self._more:
                    self._more.notify_all()

    async def until(self, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s), self._more:
            await self._more.wait_for(holds)

    async def more(self, number: int) -> Sequence[Answer]:
        """The next so many answers."""
        before = len(self.answers)
        await self.until(lambda: len(self.answers) >= before + number)
        return self.answers[before:]

    async def served(self, name: str, number: int) -> None:
        """So many more by this engine."""
        before = self.from_engine(name)
        await self.until(lambda: self.from_engine(name) >= before + number)

    def from_engine(self, name: str) -> int:
        return sum(answer.engine == name and answer.whole for answer in self.answers)


async def _answer(client: httpx2.AsyncClient) -> Answer:
    async with client.stream("POST", PATH, json=ASK) as response:
        engine = response.headers.get("x-drivetrain-engine", "")
        if response.status_code != 200:
            return Answer(engine, False, False, [json.loads(await response.aread())])
        frames = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    read = [json.loads(frame) for frame in frames if frame != "[DONE]"]
    begun = any(choice["delta"].get("content") for frame in read for choice in frame.get("choices", ()))
    ended = any(choice["finish_reason"] for frame in read for choice in frame.get("choices", ()))
    return Answer(engine, begun, ended and frames[-1] == "[DONE]", [frame for frame in read if "error" in frame])


Ask = Callable[[httpx2.AsyncClient], Awaitable[Answer]]


async def _openai_whole(client: httpx2.AsyncClient) -> Answer:
    return _read(await client.post(PATH, json={**ASK, "stream": False}), lambda body: body["choices"][0])


async def _ollama_whole(client: httpx2.AsyncClient) -> Answer:
    return _read(await client.post("/api/chat", json={**ASK, "stream": False}), lambda body: body)


def _read(response: httpx2.Response, choice: Callable[[Any], Any]) -> Answer:
    """Of an answer in one body: it is whole if it is what an engine says from beginning to end, once."""
    engine, body = response.headers.get("x-drivetrain-engine", ""), response.json()
    if response.status_code != 200:
        return Answer(engine, False, False, [body])
    return Answer(engine, True, choice(body)["message"]["content"] == SAID, [])


@asynccontextmanager
async def under_load(home: Path, ask: Ask = _answer) -> AsyncGenerator[tuple[Load, list[Apart], Server], None]:
    async with pool(home) as (server, engines):
        load = Load(server, ask)
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(load.call()) for _ in range(CALLERS)]
            await load.until(lambda: all(load.from_engine(engine.name) >= 3 for engine in engines))
            yield load, engines, server
            for caller in callers:
                caller.cancel()


@asynccontextmanager
async def pool(home: Path, count: int = 3) -> AsyncGenerator[tuple[Server, list[Apart]], None]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(apart()) for _ in range(count)]
        for number, engine in enumerate(engines):
            engine.name = f"box-{number}"
        config = CONFIG.format(
            engines="\n".join(f"  {engine.name}: {{kind: openai, url: '{engine.url}'}}" for engine in engines),
            targets=", ".join(f"{{engine: {engine.name}, model: fake}}" for engine in engines),
        )
        yield await stack.enter_async_context(serving(home, config)), engines


def only_streams_begun_on(name: str, answers: Sequence[Answer]) -> list[Answer]:
    """Those that were not whole: each had begun there, and ended with one error that says what happened."""
    broken = [answer for answer in answers if not answer.whole]
    assert [answer for answer in answers if answer.whole and answer.errors] == []
    for answer in broken:
        assert (answer.engine, answer.begun, len(answer.errors)) == (name, True, 1), answer
        error = answer.errors[0]["error"]
        assert error["message"].startswith(f"engine '{name}'"), error
        assert error["code"] in ("engine_failed", "engine_unavailable", "engine_timeout"), error
    return broken


async def fault(engine: Apart, kind: str) -> None:
    match kind:
        case "kill":
            await engine.kill()
        case "hang":
            engine.signal(signal.SIGSTOP)
        case _:
            await engine.behave(kind)


async def heal(engine: Apart, kind: str) -> None:
    match kind:
        case "kill":
            await engine.start()
        case "hang":
            engine.signal(signal.SIGCONT)
        case _:
            await engine.behave("well")


SLOW = pytest.mark.slow  # the same rule, once more


@pytest.mark.parametrize(
    ("kind", "breaks"),
    [
        ("truncated", True),
        pytest.param("kill", True, marks=SLOW),
        pytest.param("hang", True, marks=SLOW),
        pytest.param("refuse", True, marks=SLOW),
        pytest.param("broken", False, marks=SLOW),
        pytest.param("half-open", False, marks=SLOW),
        pytest.param("silent", False, marks=SLOW),
        pytest.param("slow", False, marks=SLOW),
    ],
)
async def test_one_of_three_fails_and_nobody_notices_whose_stream_had_not_begun_there(
    tmp_path: Path, kind: str, breaks: bool
) -> None:
    async with under_load(tmp_path) as (load, engines, _):
        sick, *others = engines
        await fault(sick, kind)
        broken = only_streams_begun_on(sick.name, await load.more(150))
        assert breaks or broken == []
        settled = await load.more(100)  # by now it is avoided
        only_streams_begun_on(sick.name, settled)
        shares = Counter(answer.engine for answer in settled)
        assert shares[sick.name] <= min(shares[other.name] for other in others) / 2, shares
        await heal(sick, kind)
        await load.served(sick.name, 20)
        only_streams_begun_on(sick.name, load.answers)


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("truncated", _openai_whole),
        pytest.param("kill", _openai_whole, marks=SLOW),
        pytest.param("hang", _openai_whole, marks=SLOW),
        pytest.param("truncated", _ollama_whole, marks=SLOW),
        pytest.param("kill", _ollama_whole, marks=SLOW),
    ],
)
async def test_one_of_three_fails_and_nobody_notices_who_is_answered_whole(tmp_path: Path, kind: str, ask: Ask) -> None:
    async with under_load(tmp_path, ask) as (load, engines, _):
        sick = engines[0]
        await fault(sick, kind)
        await load.more(150)
        await heal(sick, kind)
        await load.served(sick.name, 10)
        assert [answer for answer in load.answers if not answer.whole or answer.errors] == []


async def test_a_dead_pool_is_told_fast_and_is_not_stormed_by_clients_that_retry(tmp_path: Path) -> None:
    async with pool(tmp_path) as (server, engines):
        for engine in engines:
            await engine.behave("broken")
        before = sum([await engine.behave("tell") for engine in engines])
        calls, answers = await _ask_with_the_sdk(server, 40)
        asked = sum([await engine.behave("tell") for engine in engines]) - before
        assert {type(answer) for answer in answers} == {openai.InternalServerError}
        assert asked <= 1.2 * calls
        for engine in engines:
            await engine.kill()
        await server.until("/v1/engines", _all_away)
        async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
            refusals = [await client.post(PATH, json=ASK) for _ in range(20)]
        assert {answer.status_code for answer in refusals} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refusals)
        assert max(answer.elapsed.total_seconds() for answer in refusals) < 2  # no engine's time-out was waited for
        await engines[0].start()
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
            await server.until("/v1/engines", lambda told: not _all_away(told))
            answer = await client.chat.completions.create(**{**ASK, "stream": False})
        assert answer.choices[0].message.content


def _all_away(told: Any) -> bool:
    return not any(engine["health"]["live"] for engine in told["data"] if engine["kind"] != "llamacpp")


async def _ask_with_the_sdk(server: Server, number: int) -> tuple[int, list[Any]]:
    """How many calls the SDK made of so many requests, its retries counted, and what they got."""
    calls = 0

    async def count(_: Any) -> None:
        nonlocal calls
        calls += 1

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=2) as client:
        client._client.event_hooks["request"].append(count)  # the SDK offers no other way to see its own retries
        asking = (client.chat.completions.create(**{**ASK, "stream": False}) for _ in range(number))
        answers = await asyncio.gather(*asking, return_exceptions=True)
    return calls, answers


@pytest.mark.slow  # tests/unit/gateway/test_pool.py has the same rule
async def test_a_lone_engine_of_which_a_third_of_requests_fail_keeps_its_traffic(tmp_path: Path) -> None:
    async with pool(tmp_path, 1) as (server, (engine,)):
        async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
            answers = []
            for number in range(90):
                if number % 3 != 2:
                    await engine.behave("broken" if number % 3 else "well")
                answers.append(await _answer(client))
        whole = [answer.whole for answer in answers]
        assert whole[::3] == [True] * 30
        assert await engine.behave("tell") >= 90


@pytest.mark.slow  # three processes are started again, one after the other
async def test_instances_are_updated_one_at_a_time_and_no_caller_notices(tmp_path: Path) -> None:
    async with under_load(tmp_path) as (load, engines, server):
        for engine in engines:
            await _command(server, "engines", "drain", engine.name, "--wait")
            had = await engine.behave("tell")
            await load.more(60)
            assert await engine.behave("tell") == had
            await engine.kill()
            await engine.start()
            await _command(server, "engines", "resume", engine.name)
            await load.served(engine.name, 1)
        assert [answer for answer in load.answers if not answer.whole or answer.errors] == []


async def _command(server: Server, *words: str) -> None:
    process = await asyncio.create_subprocess_exec(COMMAND, *words, "--home", server.home)
    assert await process.wait() == 0
