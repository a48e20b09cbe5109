"""What callers do and meet: they leave, they err, their engine dies. Each over real sockets, in each dialect."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.servers import MODEL, Server, serving
from tests.fakes.manners import ANSWER, ENDLESS, openai_frames
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.replies import Stream, sse
from tests.fakes.upstream import FakeUpstream, Received

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
CONFIG = """
engines:
  box: {{kind: openai, url: "{url}"}}
models:
  chat: {{targets: [{{engine: box, model: {fake}}}]}}
  endless: {{targets: [{{engine: box, model: {endless}}}]}}
"""


@pytest.fixture(scope="module")
async def upstream() -> AsyncGenerator[FakeUpstream, None]:
    async with FakeUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
async def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server, None]:
    config = CONFIG.format(url=upstream.url, fake=FAKE, endless=ENDLESS)
    async with serving(tmp_path_factory.mktemp("callers"), config) as server:
        yield server


@pytest.fixture(autouse=True)
def manners(upstream: FakeUpstream) -> None:
    """Every test starts with a healthy engine."""
    upstream.forget()


async def asked(upstream: FakeUpstream, after: int) -> Received:
    """The first request for an answer after so many requests of any kind; probes come in between."""

    def found() -> list[Received]:
        return [request for request in upstream.requests[after:] if request.path == CHAT]

    await upstream.wait(lambda: bool(found()), within_s=10)
    return found()[0]


async def send(server: Server, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, of which the test sees every byte."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    return reader, writer


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
async def test_a_caller_who_leaves_before_the_first_token_frees_the_engine_within_a_second(
    server: Server, upstream: FakeUpstream, path: str, stream: bool
) -> None:
    upstream.script(CHAT, Stream(frames=(), cut_after=0, then="stall"))
    before = len(upstream.requests)
    _, writer = await send(server, path, {"model": "chat", "messages": MESSAGES, "stream": stream})
    request = await asked(upstream, before)
    writer.close()
    await request.wait_closed(within_s=1.0)
    assert request.closed_early


@pytest.mark.parametrize(("path", "stream"), [(CHAT, True), (CHAT, False), ("/api/chat", True), ("/api/chat", False)])
async def test_a_caller_who_leaves_in_the_answer_frees_the_engine_within_a_second(
    server: Server, upstream: FakeUpstream, path: str, stream: bool
) -> None:
    before = len(upstream.requests)
    reader, writer = await send(server, path, {"model": "endless", "messages": MESSAGES, "stream": stream})
    request = await asked(upstream, before)
    if stream:
        await reader.readuntil(b"Hello")
    writer.close()
    await request.wait_closed(within_s=1.0)
    assert request.closed_early
    await server.until("/v1/engines", lambda engines: outstanding(engines) == 0)


def outstanding(engines: Any) -> int:
    return sum(one["outstanding"] for one in engines["data"])


async def test_a_thousand_random_aborts_leave_nothing_behind(server: Server, upstream: FakeUpstream) -> None:
    chance = random.Random(5)

    async def abort() -> None:
        path = chance.choice([CHAT, "/api/chat"])
        body = {"model": "endless", "messages": MESSAGES, "stream": chance.random() < 0.7}
        _, writer = await send(server, path, body)
        await asyncio.sleep(chance.random() * 0.05)
        writer.transport.abort()

    for _ in range(50):
        await asyncio.gather(*(abort() for _ in range(20)))
    await upstream.wait(lambda: upstream.active == 0, within_s=10)
    await server.until("/v1/engines", lambda engines: outstanding(engines) == 0)
    answer = await server.post(CHAT, {"model": "chat", "messages": MESSAGES})
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    assert "a defect" not in server.log


# --- an engine that dies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_an_engine_that_dies_in_a_stream_gives_one_well_formed_error_and_the_next_request_is_served(
    server: Server, upstream: FakeUpstream, then: Any
) -> None:
    frames = openai_frames("chat.completion.chunk")
    upstream.script(CHAT, Stream(frames=frames, cut_after=len(b"".join(frames[:3])), then=then))
    body = {"model": "chat", "messages": MESSAGES, "stream": True}
    spoken = await server.post(CHAT, body)
    assert spoken.status_code == 200
    events = [line.removeprefix("data: ") for line in spoken.text.splitlines() if line.startswith("data: ")]
    errors = [json.loads(event)["error"] for event in events if event.startswith('{"error"')]
    assert [error["type"] for error in errors] == ["server_error"]
    assert events[-1].startswith('{"error"') or events[-2].startswith('{"error"')

    native = await server.post("/api/chat", body)
    lines = [json.loads(line) for line in native.text.splitlines()]
    assert list(lines[-1]) == ["error"]
    assert all("error" not in line for line in lines[:-1])

    upstream.forget()
    assert (await server.post(CHAT, {**body, "stream": False})).json()["choices"][0]["message"]["content"] == ANSWER


async def test_an_engine_that_dies_before_its_first_token_is_an_http_error(
    server: Server, upstream: FakeUpstream
) -> None:
    upstream.script(CHAT, Stream(frames=(), cut_after=0, then="close"))
    for path in (CHAT, "/api/chat"):
        answer = await server.post(path, {"model": "chat", "messages": MESSAGES, "stream": True})
        assert answer.status_code == 502
        assert answer.headers["content-type"].startswith("application/json")


async def test_an_error_frame_in_a_stream_that_began_with_200_reaches_the_caller(
    server: Server, upstream: FakeUpstream
) -> None:
    frame = {"error": {"message": "the engine is currently busy", "type": "Service Unavailable", "code": 503}}
    upstream.script(CHAT, Stream(frames=sse(frame)))
    answer = await server.post(CHAT, {"model": "chat", "messages": MESSAGES, "stream": True})
    assert answer.status_code == 503
    assert "currently busy" in answer.json()["error"]["message"]


# --- callers' mistakes ----------------------------------------------------------------------------------------------

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]}]

MISTAKES: list[tuple[str, Any, int, str]] = [
    (CHAT, b"{", 400, "JSON"),
    (CHAT, b"", 400, ""),
    (CHAT, b"[" * 100_000, 400, ""),
    (CHAT, {"messages": MESSAGES}, 400, "model"),
    (CHAT, {"model": MODEL, "messages": []}, 400, "messages"),
    (CHAT, {"model": MODEL, "messages": "hi"}, 400, "messages"),
    (CHAT, {"model": MODEL, "messages": [{"role": "poet", "content": "x"}]}, 400, "role"),
    (CHAT, {"model": MODEL, "messages": MESSAGES, "temperature": "hot"}, 400, "temperature"),
    (CHAT, {"model": MODEL, "messages": MESSAGES, "n": 0}, 400, "n"),
    (CHAT, {"model": MODEL, "messages": MESSAGES, "max_tokens": 10**30}, 400, "max_tokens"),
    (CHAT, {"model": MODEL, "messages": MESSAGES, "top_logprobs": 99, "logprobs": True}, 400, "top_logprobs"),
    (CHAT, {"model": "nobody", "messages": MESSAGES}, 404, "nobody"),
    (CHAT, {"model": MODEL, "messages": IMAGE}, 400, "image"),
    (CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "word " * 20_000}]}, 400, "context"),
    ("/v1/completions", {"model": MODEL}, 400, "prompt"),
    ("/v1/embeddings", {"model": MODEL}, 400, "input"),
    ("/v1/embeddings", {"model": MODEL, "input": []}, 400, "input"),
    ("/api/chat", b"", 400, "missing request body"),
    ("/api/chat", {"messages": MESSAGES}, 400, "model is required"),
    ("/api/chat", {"model": MODEL, "messages": MESSAGES, "options": {"temperature": "hot"}}, 400, "temperature"),
    ("/api/chat", {"model": "nobody", "messages": MESSAGES}, 404, "not found"),
    ("/api/generate", {"model": "nobody", "prompt": "x"}, 404, "not found"),
    ("/api/generate", {"model": MODEL, "prompt": "x", "raw": True, "system": "s"}, 400, "raw mode does not support"),
    ("/api/embed", {"model": MODEL, "input": 5}, 400, "invalid input type"),
    ("/api/show", {"model": "nobody"}, 404, "not found"),
    ("/api/copy", {"source": "nobody", "destination": "x"}, 404, "not found"),
    ("/api/create", {"model": "x"}, 400, "from"),
    ("/api/create", {"model": "../../etc", "from": MODEL}, 400, "invalid model name"),
    ("/api/pull", {"model": ""}, 400, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), MISTAKES, ids=range(len(MISTAKES)))
async def test_a_callers_mistake_is_a_4xx_that_helps(
    drivetrain: Server, path: str, body: Any, status: int, text: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx2.AsyncClient(base_url=drivetrain.url, timeout=120) as client:
        answer = await client.post(path, content=content)
    assert (answer.status_code, answer.text) == (status, answer.text)
    error = answer.json()["error"]
    message = error if path.startswith("/api/") else error["message"]
    assert text in message
    if not path.startswith("/api/"):
        assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "param", "content"),
    [
        (CHAT, "messages", [{"role": "user", "content": "word " * 20_000}]),
        ("/v1/completions", "prompt", "word " * 20_000),
        ("/v1/embeddings", "input", "word " * 20_000),
    ],
)
async def test_what_is_too_long_is_named_as_the_route_calls_it(
    drivetrain: Server, path: str, param: str, content: Any
) -> None:
    answer = await drivetrain.post(path, {"model": MODEL, param: content})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)


async def test_a_body_of_20_mb_is_refused_before_it_is_read(drivetrain: Server) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 20_000_000}]}
    answer = await drivetrain.post(CHAT, body)
    assert answer.status_code == 413
    assert "server.max_body_bytes" in answer.json()["error"]["message"]


async def test_a_compressed_body_is_refused(drivetrain: Server) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as client:
        answer = await client.post(CHAT, content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


# --- the guard ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:1234"}, 200),
        ({"host": "box.local"}, 200),
        ({"host": "192.168.1.5:11435"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "8.8.8.8"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "app://obsidian.md"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "chrome-extension://abc"}, 403),
    ],
)
async def test_foreign_hosts_and_origins_stay_out(drivetrain: Server, headers: dict[str, str], status: int) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as client:
        answer = await client.get("/api/version", headers=headers)
    assert answer.status_code == status
    if "origin" in headers and status == 200:
        assert answer.headers["access-control-allow-origin"] == headers["origin"]


async def test_a_preflight_names_the_headers_that_sdks_send(drivetrain: Server) -> None:
    headers = {"origin": "http://localhost", "access-control-request-method": "POST"}
    async with httpx2.AsyncClient(base_url=drivetrain.url) as client:
        answer = await client.options("/api/chat", headers=headers)
    assert answer.status_code == 204
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"authorization", "x-stainless-timeout", "x-api-key"} <= set(allowed.split(", "))


async def test_a_listed_extension_is_let_in(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, 'server: {origins: ["chrome-extension://*"]}') as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        answer = await client.get("/api/version", headers={"origin": "chrome-extension://abc"})
    assert answer.status_code == 200


# --- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/api/nothing", 404, "404 page not found"),
        ("GET", "/api/chat", 405, "takes POST, not GET"),
        ("POST", "/v1/v1/chat/completions", 404, "you want /v1/chat/completions"),
        ("GET", "/v1/api/tags", 404, "you want /api/tags"),
        ("POST", "/v1/v1/messages", 404, "no such path: /v1/v1/messages; see /v1/models"),
        ("GET", "/nothing", 404, "no such path: /nothing"),
        ("GET", "/", 200, "Ollama is running"),
    ],
)
async def test_wrong_paths_and_verbs_are_told_apart(
    drivetrain: Server, method: str, path: str, status: int, text: str
) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, text in answer.text) == (status, True)


async def test_a_request_id_goes_through_and_a_wild_one_is_replaced(drivetrain: Server) -> None:
    async with httpx2.AsyncClient(base_url=drivetrain.url) as client:
        kept = await client.get("/v1/models", headers={"x-request-id": "mine-1"})
        wild = await client.get("/v1/models", headers={"x-request-id": "a b\tc"})
    assert kept.headers["x-request-id"] == "mine-1"
    assert wild.headers["x-request-id"].startswith("req_")
