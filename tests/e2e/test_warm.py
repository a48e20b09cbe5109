"""A server that has its models in memory, and their system prompts in their caches, before the first request comes."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import MODEL, Server, add_small_model, serving
from tests.kin import under

pytestmark = pytest.mark.anyio
SETTINGS = {"num_ctx": 1024, "n_parallel": 1, "cache_ram": 0}  # a cache for one conversation
SYSTEM = "You are the keeper of a lighthouse. " * 20
WARM = f"""
models:
  keeper: {{targets: [{{engine: local, model: "{MODEL}"}}], policy: warm}}
policies:
  warm: {{warm: {{prompts: ["{SYSTEM}"]}}}}
"""
PINNED = f"""
models:
  keeper: {{targets: [{{engine: local, model: "{MODEL}"}}]}}
residency: {{pin: [keeper], keep_alive_s: 0}}
"""


def in_memory(answer: Any) -> bool:
    return [model["name"] for model in answer["models"]] == [MODEL]


async def usage(server: Server, system: str) -> Any:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Who are you?"}]
    body = {"model": "keeper", "messages": messages, "max_tokens": 4}
    answer = (await server.post("/v1/chat/completions", body)).json()
    return answer["usage"]


async def test_the_first_request_finds_its_system_prompt_in_the_cache(tmp_path: Path) -> None:
    add_small_model(tmp_path, settings=SETTINGS)
    async with serving(tmp_path, WARM) as server:
        await server.until("/readyz", lambda answer: answer["status"] == "ready", within_s=60)
        assert in_memory(await server.get("/api/ps"))
        warm = await usage(server, SYSTEM)
        assert warm["prompt_tokens_details"]["cached_tokens"] > 0.8 * warm["prompt_tokens"]
        rows = [line for line in server.log.splitlines() if '"drivetrain.warm"' in line]
        assert len(rows) == 1


async def test_a_pinned_model_is_there_from_the_start_and_stays_whatever_happens(tmp_path: Path) -> None:
    add_small_model(tmp_path, settings=SETTINGS)
    async with serving(tmp_path, PINNED) as server:
        await server.until("/api/ps", in_memory, within_s=60)
        refused = await server.post("/api/generate", {"model": "keeper", "keep_alive": 0})
        assert refused.status_code == 403
        assert "`residency.pin`" in refused.json()["error"]
        answer = await server.post("/api/generate", {"model": MODEL, "prompt": "Hi", "keep_alive": 0, "stream": False})
        assert answer.status_code == 200
        assert in_memory(await server.get("/api/ps"))

        [worker] = under(server.pid, "worker.py")
        worker.kill()
        await server.until("/api/ps", lambda answer: not answer["models"], within_s=10)
        await server.until("/api/ps", in_memory, within_s=60)


async def test_a_hint_loads_a_model_before_it_is_asked_for(tmp_path: Path) -> None:
    add_small_model(tmp_path, settings=SETTINGS)
    async with serving(tmp_path, "logging: {level: warning}") as server:
        loaded = await server.post(f"/v1/models/{MODEL}/load", {"keep_alive": "10m"})
        assert loaded.json() == {"id": MODEL, "object": "model", "loaded": ["local"]}
        assert in_memory(await server.get("/api/ps"))
        gone = await server.post(f"/v1/models/{MODEL}/unload", {})
        assert gone.json() == {"id": MODEL, "object": "model", "loaded": []}
        assert not (await server.get("/api/ps"))["models"]
        assert (await server.post(f"/v1/models/{MODEL}/load", {"keep": 1})).status_code == 400
        assert (await server.post(f"/v1/models/{MODEL}/start", {})).status_code == 404
