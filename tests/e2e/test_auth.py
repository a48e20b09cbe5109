"""Keys at a real `drivetrain serve`: the first one, official clients with theirs, several workers, what is listed."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import ollama
import openai
import pytest

from tests.e2e.servers import Server, serving
from tests.fakes.manners import ANSWER
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
KEY = re.compile(r"dt-[0-9a-z]{12}-[0-9A-Za-z]{43}")
ASK: Any = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}]}
PUBLIC = ("/", "/healthz", "/readyz", "/api/version")


def config(url: str, server: str = "auth: on") -> str:
    targets = f"{{targets: [{{engine: box, model: {FAKE}}}]}}"
    engines = f'{{box: {{kind: openai, url: "{url}"}}}}'
    return f"server: {{{server}}}\nengines: {engines}\nmodels: {{chat: {targets}, other: {targets}}}\n"


def first_key(server: Server) -> str:
    (found,) = set(KEY.findall(server.log))
    return str(found)


@asynccontextmanager
async def client(server: Server, key: str | None) -> AsyncGenerator[httpx2.AsyncClient, None]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=30) as made:
        yield made


async def new_key(server: Server, root: str, **fields: Any) -> Any:
    async with client(server, root) as admin:
        answer = await admin.post("/admin/v1/keys", json={"name": f"key {os.urandom(4).hex()}", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_the_first_start_shows_a_key_once_and_writes_it_nowhere(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        async with serving(tmp_path, config(upstream.url)) as server:
            key = first_key(server)
            async with client(server, key) as admin:
                assert (await admin.get("/admin/v1/keys")).json()["data"][0]["public_id"] == key[3:15]
        async with serving(tmp_path, config(upstream.url), keep_state=True) as server:
            assert KEY.findall(server.log) == []
            async with client(server, key) as admin:
                assert (await admin.get("/admin/v1/keys")).status_code == 200
    written = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert [path for path in written if key[16:].encode() in path.read_bytes()] == []


async def test_on_loopback_nobody_is_asked_for_a_key_and_the_operator_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, client(server, None) as anybody:
        assert (await anybody.get("/v1/models")).status_code == 200
        assert "engines" in (await anybody.get("/readyz")).json()
        assert server.log.count("authentication is off") == 1
        assert KEY.findall(server.log) == []


async def test_on_any_other_address_everybody_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path, "server: {host: 0.0.0.0}") as server, client(server, None) as anybody:
        assert (await anybody.get("/v1/models")).status_code == 401
        assert [(await anybody.get(path)).status_code for path in PUBLIC] == [200] * 4
        assert "engines" not in (await anybody.get("/readyz")).json()
        assert first_key(server)


async def test_official_clients_come_in_with_their_own_way_of_showing_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url)) as server:
        key = (await new_key(server, first_key(server)))["secret"]
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as one:
            answer = await one.chat.completions.create(**ASK)
            assert answer.choices[0].message.content == ANSWER
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-wrong", max_retries=0) as wrong:
            with pytest.raises(openai.AuthenticationError, match="no API key of this server"):
                await wrong.chat.completions.create(**ASK)
        monkeypatch.setenv("OLLAMA_API_KEY", key)
        async with ollama.AsyncClient(host=server.url) as native:
            assert (await native.chat(**ASK)).message.content == ANSWER
        monkeypatch.delenv("OLLAMA_API_KEY")
        async with ollama.AsyncClient(host=server.url) as keyless:
            with pytest.raises(ollama.ResponseError, match="an API key is needed here"):
                await keyless.chat(**ASK)
        async with httpx2.AsyncClient(base_url=server.url, headers={"x-api-key": key}) as plain:
            assert (await plain.post("/v1/chat/completions", json=ASK)).status_code == 200


async def test_a_key_lists_and_asks_only_the_models_that_it_may_use(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url)) as server:
        key = (await new_key(server, first_key(server), models=["ch*"]))["secret"]
        async with client(server, key) as caller:
            assert [model["id"] for model in (await caller.get("/v1/models")).json()["data"]] == ["chat"]
            assert [model["name"] for model in (await caller.get("/api/tags")).json()["models"]] == ["chat:latest"]
            assert (await caller.get("/v1/models/chat")).status_code == 200
            before = len(upstream.requests)
            refused = [
                await caller.get("/v1/models/other"),
                await caller.post("/api/show", json={"model": "other"}),
                await caller.post("/v1/chat/completions", json={**ASK, "model": "other"}),
                await caller.post("/v1/completions", json={"model": "OTHER:latest", "prompt": "a"}),
                await caller.post("/v1/embeddings", json={"model": "other", "input": "a"}),
                await caller.post("/api/chat", json={**ASK, "model": "other"}),
                await caller.post("/api/generate", json={"model": "other", "prompt": "a"}),
                await caller.post("/api/generate", json={"model": "other", "keep_alive": 0}),
                await caller.post("/api/embed", json={"model": "other", "input": "a"}),
                await caller.post("/api/embed", json={"model": "other", "input": ""}),
                await caller.post("/api/embeddings", json={"model": "other", "prompt": "a"}),
            ]
            assert [answer.status_code for answer in refused] == [403] * len(refused)
            assert [request.path for request in upstream.requests[before:] if request.method == "POST"] == []
            assert (await caller.post("/v1/chat/completions", json=ASK)).status_code == 200


async def test_files_and_addresses_of_ones_own_choice_are_for_administrators(tmp_path: Path) -> None:
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(b"GGUF")
    async with FakeUpstream() as upstream, serving(tmp_path / "home", config(upstream.url)) as server:
        root = first_key(server)
        key = (await new_key(server, root, scopes=["models"]))["secret"]
        errands = [
            ("/api/pull", {"model": str(secret)}),
            ("/api/pull", {"model": f"file://{secret}"}),
            ("/api/pull", {"model": "~/secret.gguf"}),
            ("/api/pull", {"model": f"{upstream.url}/x.gguf"}),
            ("/api/pull", {"model": "127.0.0.1:1/a/b", "insecure": True}),
            ("/api/pull", {"model": "169.254.169.254/a/b"}),
            ("/api/push", {"model": "10.0.0.1/a/b"}),
            ("/api/create", {"model": "x", "from": str(secret)}),
            ("/v1/models", {"import": str(secret), "name": "x"}),
            ("/v1/models", {"pull": str(secret), "name": "x"}),
            ("/v1/models", {"pull": "http://169.254.169.254/x.gguf", "name": "x"}),
        ]
        async with client(server, key) as caller:
            answers = [await caller.post(path, json=body) for path, body in errands]
        assert [answer.status_code for answer in answers] == [403] * len(errands)
        assert [request for request in upstream.requests if request.path.endswith(".gguf")] == []
        async with client(server, root) as admin:  # who is told what is wrong with the file instead
            assert "GGUF" in (await admin.post("/v1/models", json={"import": str(secret), "name": "x"})).text


async def test_keys_that_a_new_configuration_asks_for_are_asked_for_at_once(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url, "auth: auto")) as server:
        async with client(server, None) as caller:
            assert (await caller.get("/v1/models")).status_code == 200
            (tmp_path / "drivetrain.yaml").write_text(config(upstream.url, "auth: on, drain_s: 5"))
            server.signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                while (await caller.get("/v1/models")).status_code != 401:
                    pass
                while not KEY.findall(server.log):
                    await asyncio.sleep(0.02)
        async with client(server, first_key(server)) as admin:
            assert (await admin.get("/v1/models")).status_code == 200
        assert "a change of server.drain_s takes a restart" in server.log


async def test_an_address_that_stays_open_asks_for_keys_whatever_address_the_file_names_now(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        async with serving(tmp_path, config(upstream.url, "host: 0.0.0.0")) as server:
            local = server.url.replace("0.0.0.0", "127.0.0.1")
            (tmp_path / "drivetrain.yaml").write_text(config(upstream.url, "host: 127.0.0.1"))
            server.signal(signal.SIGHUP)
            async with asyncio.timeout(10):
                while "a new configuration is in force" not in server.log:
                    await asyncio.sleep(0.02)
            async with httpx2.AsyncClient(base_url=local) as caller:
                assert (await caller.get("/v1/models")).status_code == 401


async def test_a_revocation_holds_at_every_worker_within_a_second_or_so(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream, serving(tmp_path, config(upstream.url), "--workers", "2") as server:
        root = first_key(server)
        key = await new_key(server, root)
        async with client(server, key["secret"]) as caller:
            answers = await asyncio.gather(*(caller.post("/v1/chat/completions", json=ASK) for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            async with client(server, root) as admin:
                assert (await admin.post(f"/admin/v1/keys/{key['id']}/revoke")).status_code == 200
            async with asyncio.timeout(10):
                refused = 0
                while refused < 20:  # in a row, of fresh connections to either worker
                    async with client(server, key["secret"]) as fresh:
                        again = await fresh.post("/v1/chat/completions", json=ASK)
                    refused = refused + 1 if again.status_code == 401 else 0


async def test_no_secret_is_in_anything_that_a_server_wrote(tmp_path: Path) -> None:
    async with (
        FakeUpstream() as upstream,
        serving(tmp_path, config(upstream.url) + "logging: {level: debug}\n") as server,
    ):
        root = first_key(server)
        key = (await new_key(server, root))["secret"]
        prompt = "a prompt that nobody else may read"
        async with client(server, key) as caller:
            for path in ("/v1/chat/completions", "/api/chat", "/v1/nothing", "/admin/v1/keys"):
                await caller.post(path, json={**ASK, "messages": [{"role": "user", "content": prompt}]})
        log = server.log
    written = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    for secret in (key[16:], prompt):
        assert secret not in log
        assert secret.encode() not in written
