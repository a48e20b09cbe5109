"""Every answer conforms to the published descriptions of both APIs, and no request of a caller makes the server fail.

Requests by the thousand that schemathesis makes up go to fake engines behind a real server, a few dozen to the real
model. A table of what clients really ask covers each route in each of its forms. What is refused and what is let pass
is not asked here: the descriptions know neither what Ollama forgives nor what OpenAI checks.

Pulls go to a registry of the tests; one that cannot be reached is 424, where Ollama says 500.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e.generated import Outcome, outcomes
from tests.e2e.plans import CHAT, COMPLETIONS, EMBEDDINGS, PLANS, REAL_PLANS, SCHEMA
from tests.e2e.servers import MODEL, Server, add_small_model, serving
from tests.e2e.specs import NDJSON, OLLAMA, OPENAI, SSE, Answer, described
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.manners import ollama_frames, openai_frames
from tests.fakes.registries import Registry
from tests.fakes.replies import Stream
from tests.fakes.upstream import FakeUpstream
from tests.fakes.weights import tiny_gguf

pytestmark = pytest.mark.anyio
CONFIG = """
engines:
  box: {{kind: openai, url: "{url}"}}
  llama: {{kind: ollama, url: "{url}"}}
models:
  chat: {{targets: [{{engine: box, model: {fake}}}]}}
  native: {{targets: [{{engine: llama, model: {fake}}}]}}
downloads: {{ollama: "{registry}"}}
"""


@pytest.fixture(scope="module")
async def upstream() -> AsyncGenerator[FakeUpstream, None]:
    async with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
async def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    """Two fake engines, the real model, and a registry that has `tiny`."""
    for name in (OPENAI, OLLAMA):
        described(name)  # read now: it takes seconds, in which no fake would answer
    home = tmp_path_factory.mktemp("specs")
    add_small_model(home)
    registry = Registry()
    registry.publish("library/tiny:latest", {"model": tiny_gguf()})
    async with registry.serving() as site:
        async with serving(home, CONFIG.format(url=upstream.url, fake=FAKE, registry=site.url)) as server:
            yield server


# --- what clients ask -------------------------------------------------------------------------------------------------

ASK = [{"role": "user", "content": "Name the days of the week."}]
SHORT: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 4}
SHORTER: dict[str, Any] = {"model": MODEL, "options": {"temperature": 0, "num_predict": 4}}
FUNCTION = {"name": "weather", "description": "Tell the weather", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLED = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Asked(NamedTuple):
    name: str
    path: str  # as described
    body: Any = None
    media_type: str | None = None  # that of a document
    status: int = 200
    method: str = "post"
    at: str | None = None  # where the path has a variable


def both(name: str, path: str, body: dict[str, Any]) -> list[Asked]:
    """The same question, answered whole and as a stream."""
    stream = NDJSON if path.startswith("/api/") else SSE
    return [
        Asked(name, path, {**body, "stream": False}),
        Asked(f"{name}, streamed", path, {**body, "stream": True}, stream),
    ]


OPENAI_TABLE = [
    *both("chat", CHAT, {**SHORT, "messages": ASK}),
    *both("log probabilities", CHAT, {**SHORT, "messages": ASK, "logprobs": True, "top_logprobs": 2}),
    *both("two choices", CHAT, {**SHORT, "messages": ASK, "n": 2}),
    *both("a stop", CHAT, {**SHORT, "messages": ASK, "stop": ["The", "Mon"]}),
    *both("tools", CHAT, {**SHORT, "max_tokens": 60, "messages": ASK, "tools": TOOLS, "tool_choice": "required"}),
    *both("functions", CHAT, {**SHORT, "messages": ASK, "functions": [FUNCTION]}),
    *both(
        "a schema",
        CHAT,
        {
            **SHORT,
            "messages": ASK,
            "response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": SCHEMA}},
        },
    ),
    *both("a JSON object", CHAT, {**SHORT, "messages": ASK, "response_format": {"type": "json_object"}}),
    *both(
        "a tool's result",
        CHAT,
        {
            **SHORT,
            "messages": [
                *ASK,
                {"role": "assistant", "content": None, "tool_calls": CALLED},
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
        },
    ),
    *both("a chat of an Ollama engine", CHAT, {"model": "native", "messages": ASK}),
    Asked("usage", CHAT, {**SHORT, "messages": ASK, "stream": True, "stream_options": {"include_usage": True}}, SSE),
    Asked("no model", CHAT, {"messages": ASK}, status=400),
    Asked("an unknown model", CHAT, {"model": "absent", "messages": ASK, "stream": True}, status=404),
    Asked("no messages", CHAT, {**SHORT, "messages": []}, status=400),
    Asked(
        "an image",
        CHAT,
        {
            **SHORT,
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}],
                }
            ],
        },
        status=400,
    ),
    Asked(
        "a tool that is no function",
        CHAT,
        {**SHORT, "messages": ASK, "tools": [{"type": "custom", "custom": {"name": "a"}}]},
        status=400,
    ),
    Asked("too long", CHAT, {**SHORT, "messages": [{"role": "user", "content": "word " * 20_000}]}, status=400),
    Asked("no JSON", CHAT, b"{", status=400),
    Asked("a wrong verb", CHAT, status=405, method="get"),
    *both("a completion", COMPLETIONS, {**SHORT, "prompt": "Monday,"}),
    *both("log probabilities", COMPLETIONS, {**SHORT, "prompt": "Monday,", "logprobs": 2}),
    *both("an echo", COMPLETIONS, {**SHORT, "prompt": "Monday,", "echo": True}),
    Asked(
        "an echo with log probabilities", COMPLETIONS, {**SHORT, "prompt": "x", "echo": True, "logprobs": 1}, status=400
    ),
    *both("two prompts", COMPLETIONS, {**SHORT, "prompt": ["Monday,", "One,"]}),
    *both("tokens", COMPLETIONS, {**SHORT, "prompt": [19, 20, 21]}),
    *both("two choices", COMPLETIONS, {**SHORT, "prompt": "Monday,", "n": 2}),
    Asked(
        "usage", COMPLETIONS, {**SHORT, "prompt": "a", "stream": True, "stream_options": {"include_usage": True}}, SSE
    ),
    Asked("no prompt", COMPLETIONS, {**SHORT, "prompt": []}, status=400),
    Asked("a text", EMBEDDINGS, {"model": MODEL, "input": "Monday"}),
    Asked("in base64", EMBEDDINGS, {"model": MODEL, "input": ["Monday", "Tuesday"], "encoding_format": "base64"}),
    Asked("few dimensions", EMBEDDINGS, {"model": MODEL, "input": "Monday", "dimensions": 8}),
    Asked("tokens", EMBEDDINGS, {"model": MODEL, "input": [[19, 20], [21]]}),
    Asked("no text", EMBEDDINGS, {"model": MODEL, "input": ""}, status=400),
    Asked("the models", "/models", method="get"),
    Asked("a model", "/models/{model}", method="get", at=f"/models/{MODEL}"),
    Asked("an unknown model", "/models/{model}", method="get", at="/models/org/absent", status=404),
    Asked("deleting an unknown model", "/models/{model}", method="delete", at="/models/absent", status=404),
]
ROLES = [{"role": "system", "content": "Be brief."}, *ASK]
NATIVE_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "weather", "arguments": {"day": "Mon"}}}],
}
OLLAMA_TABLE = [
    Asked("the version", "/api/version", method="get"),
    *both("a chat", "/api/chat", {**SHORTER, "messages": ROLES}),
    *both("log probabilities", "/api/chat", {**SHORTER, "messages": ASK, "logprobs": True, "top_logprobs": 2}),
    *both("a schema", "/api/chat", {**SHORTER, "messages": ASK, "format": SCHEMA}),
    *both("JSON", "/api/chat", {**SHORTER, "messages": ASK, "format": "json"}),
    *both("no thinking", "/api/chat", {**SHORTER, "messages": ASK, "think": False}),
    *both(
        "a tool's result",
        "/api/chat",
        {
            "model": "native",
            "messages": [*ASK, NATIVE_CALL, {"role": "tool", "content": "sunny", "tool_name": "weather"}],
            "tools": TOOLS,
        },
    ),
    *both("a chat of an OpenAI engine", "/api/chat", {"model": "chat", "messages": ASK, "tools": TOOLS}),
    Asked("a load", "/api/chat", {"model": MODEL}),
    Asked("thinking", "/api/chat", {**SHORTER, "messages": ASK, "think": True}, status=400),
    Asked("an unknown model", "/api/chat", {"model": "absent", "messages": ASK}, status=404),
    Asked("no model", "/api/chat", {"messages": ASK}, status=400),
    Asked("no body", "/api/chat", b"", status=400),
    Asked("a wrong verb", "/api/chat", status=405, method="get"),
    *both("a prompt", "/api/generate", {**SHORTER, "prompt": "Monday,"}),
    *both("a raw prompt", "/api/generate", {**SHORTER, "prompt": "Monday,", "raw": True}),
    *both("log probabilities", "/api/generate", {**SHORTER, "prompt": "Monday,", "logprobs": True, "top_logprobs": 2}),
    *both("a schema", "/api/generate", {**SHORTER, "prompt": "Monday,", "format": SCHEMA}),
    *both("a prompt to an OpenAI engine", "/api/generate", {"model": "chat", "prompt": "Monday,"}),
    Asked("a load", "/api/generate", {"model": MODEL, "keep_alive": "5m"}),
    Asked(
        "an option of a wrong type",
        "/api/generate",
        {"model": MODEL, "prompt": "a", "options": {"seed": "x"}},
        status=400,
    ),
    Asked("an image", "/api/generate", {**SHORTER, "prompt": "a", "images": [PIXEL]}, status=400),
    Asked("a text", "/api/embed", {"model": MODEL, "input": "Monday"}),
    Asked("texts", "/api/embed", {"model": MODEL, "input": ["Monday", "Tuesday"], "dimensions": 8}),
    Asked("no text", "/api/embed", {"model": MODEL, "input": []}),
    Asked("a wrong type", "/api/embed", {"model": MODEL, "input": 1}, status=400),
    Asked("the models", "/api/tags", method="get"),
    Asked("the loaded models", "/api/ps", method="get"),
    Asked("a model", "/api/show", {"model": MODEL}),
    Asked("a model in full", "/api/show", {"name": MODEL, "verbose": True}),
    Asked("a model elsewhere", "/api/show", {"model": "native"}),
    Asked("an unknown model", "/api/show", {"model": "absent"}, status=404),
    *both(
        "a model made",
        "/api/create",
        {"model": "made", "from": MODEL, "system": "Be brief.", "parameters": {"top_k": 3}},
    ),
    Asked("the model made", "/api/show", {"model": "made"}),
    Asked("made of nothing", "/api/create", {"model": "made"}, status=400),
    Asked("a copy", "/api/copy", {"source": "made", "destination": "org/copied:v1"}, ""),
    Asked("a copy of nothing", "/api/copy", {"source": "absent", "destination": "x"}, status=404),
    Asked("a deletion", "/api/delete", {"model": "org/copied:v1"}, "", method="delete"),
    Asked("the same again", "/api/delete", {"model": "org/copied:v1"}, method="delete", status=404),
    *both("a pull", "/api/pull", {"model": "tiny"}),
    Asked("a pull of nothing", "/api/pull", {"model": "absent"}, NDJSON),
    Asked("a pull of nothing, told at the end", "/api/pull", {"model": "absent", "stream": False}, status=404),
    *both("a push", "/api/push", {"model": "tiny"}),
    Asked("a push of nothing", "/api/push", {"model": "absent"}, status=404),
    Asked("an unload", "/api/generate", {"model": MODEL, "keep_alive": 0}),
]


@pytest.fixture(scope="module")
async def client(server: Server) -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=180) as client:
        yield client


async def ask(client: httpx2.AsyncClient, asked: Asked) -> Answer:
    content = asked.body if isinstance(asked.body, bytes) else json.dumps(asked.body).encode() if asked.body else None
    prefix = "" if asked.path.startswith("/api/") or asked.path == "/" else "/v1"
    response = await client.request(asked.method, prefix + (asked.at or asked.path), content=content)
    media_type = response.headers.get("content-type", "")
    return Answer(asked.method, asked.path, response.status_code, media_type, response.content)


def names(table: list[Asked]) -> list[str]:
    return [f"{asked.path}: {asked.name}" for asked in table]


@pytest.mark.parametrize("asked", OPENAI_TABLE, ids=names(OPENAI_TABLE))
async def test_an_openai_client_gets_what_openai_describes(client: httpx2.AsyncClient, asked: Asked) -> None:
    answer = await ask(client, asked)
    expected = "application/json" if asked.media_type is None else asked.media_type
    assert (asked.status, expected) == (answer.status, answer.media_type), answer.body
    assert described(OPENAI).faults(answer) == []


@pytest.mark.parametrize("asked", OLLAMA_TABLE, ids=names(OLLAMA_TABLE))
async def test_an_ollama_client_gets_what_ollama_describes(client: httpx2.AsyncClient, asked: Asked) -> None:
    answer = await ask(client, asked)
    expected = "application/json; charset=utf-8" if asked.media_type is None else asked.media_type
    assert (asked.status, expected) == (answer.status, answer.media_type), answer.body
    assert described(OLLAMA).faults(answer) == []


async def test_a_deletion_is_told_as_openai_describes(client: httpx2.AsyncClient) -> None:
    copied = await ask(client, Asked("", "/api/copy", {"source": MODEL, "destination": "org/gone:v1"}))
    assert copied.status == 200
    path = "/models/{model}"
    found = await ask(client, Asked("", path, method="get", at="/models/org/gone:v1"))
    deleted = await ask(client, Asked("", path, method="delete", at="/models/org/gone:v1"))
    assert (found.status, deleted.status) == (200, 200)
    assert described(OPENAI).faults(found) + described(OPENAI).faults(deleted) == []


# --- what nobody describes, though clients ask for it -----------------------------------------------------------------

DIGEST = "sha256:" + hashlib.sha256(b"a blob").hexdigest()
UNDESCRIBED = [
    ("get", "/", None, 200, b"Ollama is running"),
    ("get", "/api/status", None, 200, {"cloud": {"disabled": True, "source": "drivetrain"}}),
    ("post", "/api/me", None, 401, {"error": "unauthorized", "signin_url": ""}),
    ("post", "/api/embeddings", {"model": "chat", "prompt": "Monday"}, 200, {"embedding": [0.5, -0.25, 0.0]}),
    ("post", "/api/embeddings", {"model": "chat", "prompt": ""}, 200, {"embedding": []}),
    ("head", f"/api/blobs/{DIGEST}", None, 404, b""),
    ("post", f"/api/blobs/{DIGEST}", b"a blob", 201, b""),
    ("post", f"/api/blobs/{DIGEST}", b"a blob", 200, b""),
    ("head", f"/api/blobs/{DIGEST}", None, 200, b""),
    ("head", "/api/blobs/sha256:12", None, 400, b""),
    ("get", "/api/nothing", None, 404, b"404 page not found"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "expected"), UNDESCRIBED)
async def test_a_route_without_a_description_answers_as_ollama_does(
    client: httpx2.AsyncClient, method: str, path: str, body: Any, status: int, expected: Any
) -> None:
    answer = await ask(client, Asked("", path, body, method=method))
    told = answer.body if isinstance(expected, bytes) else json.loads(answer.body)
    assert (status, expected) == (answer.status, told)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def broken(frames: Sequence[bytes], media_type: str) -> Stream:
    return Stream(frames=frames[:3], media_type=media_type, cut_after=10**6, then="close")


@pytest.mark.parametrize("model", ["chat", "native"])
@pytest.mark.parametrize(
    ("description", "path"),
    [(OPENAI, CHAT), (OPENAI, COMPLETIONS), (OLLAMA, "/api/chat"), (OLLAMA, "/api/generate")],
)
async def test_a_stream_that_breaks_ends_with_an_error_as_described(
    client: httpx2.AsyncClient, upstream: FakeUpstream, description: str, path: str, model: str
) -> None:
    upstream.script("/v1/chat/completions", broken(openai_frames("chat.completion.chunk"), SSE))
    upstream.script("/v1/completions", broken(openai_frames("text_completion"), SSE))
    upstream.script("/api/chat", broken(ollama_frames("chat"), NDJSON))
    upstream.script("/api/generate", broken(ollama_frames("generate"), NDJSON))
    body = {"model": model, "messages": ASK, "prompt": "Monday,", "stream": True}
    answer = await ask(client, Asked("", path, body))
    upstream.forget()
    assert b'"error"' in answer.body
    assert described(description).faults(answer) == []


# --- what a machine makes up ------------------------------------------------------------------------------------------


def url_of(server: Server, description: str) -> str:
    return server.url + ("/v1" if description == OPENAI else "")


def summary(found: list[Outcome]) -> str:
    """The faults, each once, with a request that shows it."""
    shown = {(outcome.label, fault): outcome.sent for outcome in found for fault in outcome.faults}
    return "\n".join(f"{label}: {fault}\n    {sent[:2000]}" for (label, fault), sent in shown.items())


@pytest.mark.parametrize("plan", PLANS)
async def test_no_request_makes_the_server_fail_and_every_answer_conforms(server: Server, plan: str) -> None:
    description, requests = PLANS[plan]
    found = await asyncio.to_thread(outcomes, described(description), url_of(server, description), requests)
    assert summary(found) == ""
    told = Counter(outcome.status for outcome in found)
    assert min(told[200], told[400], told[404]) >= 5, told  # all kinds were asked, and the limits are not all there is


@pytest.mark.parametrize("plan", REAL_PLANS)
async def test_no_request_makes_the_real_model_fail(server: Server, plan: str) -> None:
    description, requests = REAL_PLANS[plan]
    found = await asyncio.to_thread(outcomes, described(description), url_of(server, description), requests)
    assert summary(found) == ""
    assert Counter(outcome.status for outcome in found)[200] >= 20
