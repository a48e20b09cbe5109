"""What was said is kept where a policy says so, without what must not be in it, and no longer than it says."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from drivetrain.store import Store
from tests.e2e.replicas import CHAT
from tests.e2e.servers import Server, serving
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
KEPT_S = 600.0
CARD, KEY = "4111 1111 1111 1111", "sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


def config(mock: str, retention_s: float) -> str:
    targets = [{"engine": "box", "model": FAKE}]
    bodies = {"keep": True, "max_bytes": 120, "retention_s": retention_s, "redact": [r"\d{4}( \d{4}){3}"]}
    return json.dumps(
        {
            "engines": {"box": {"kind": "openai", "url": mock}},
            "models": {"kept": {"targets": targets, "policy": "kept"}, "forgotten": {"targets": targets}},
            "policies": {"kept": {"bodies": bodies}},
        }
    )


async def said(server: Server, model: str, text: str) -> str:
    """The id of a request that was answered."""
    messages = [{"role": "user", "content": text}]
    answer = await server.post(CHAT, {"model": model, "messages": messages, "stream": True})
    assert answer.status_code == 200
    return str(answer.headers["x-request-id"])


async def trace(server: Server, request_id: str) -> Any:
    """As an administrator sees it, once it is on record."""
    return await server.until(f"/admin/v1/traces/{request_id}", lambda told: "attempts" in told, within_s=20)


async def test_a_policy_has_what_is_said_kept_cut_and_blackened(tmp_path: Path, mock: FakeUpstream) -> None:
    async with serving(tmp_path, config(mock.url, KEPT_S)) as server:
        kept = await said(server, "kept", f"my card is {CARD}, my key {KEY}, and {'so on ' * 100}")
        forgotten = await said(server, "forgotten", "nobody is to know this")
        body = (await trace(server, kept))["body"]
        assert (await trace(server, forgotten))["body"] is None
    assert re.search(r"my card is \*+, my key \S*\*+", body["request"])
    assert len(body["request"].encode()) <= 120
    assert body["answer"] == "Hello, wörld 🌍!"
    assert body["delete_s"] == pytest.approx(body["at_s"] + KEPT_S)
    for file in tmp_path.rglob("*"):
        written = file.read_bytes() if file.is_file() else b""
        assert b"nobody is to know this" not in written, file
        assert CARD.encode() not in written, file
        assert KEY.encode() not in written, file


async def test_of_an_embedding_the_text_is_kept_and_no_number(tmp_path: Path, mock: FakeUpstream) -> None:
    async with serving(tmp_path, config(mock.url, KEPT_S)) as server:
        answer = await server.post("/v1/embeddings", {"model": "kept", "input": f"card {CARD}"})
        body = (await trace(server, answer.headers["x-request-id"]))["body"]
    assert json.loads(body["request"]) == {"model": "kept", "input": "card ***"}
    assert body["answer"] == ""


async def test_what_was_kept_is_gone_when_its_time_is_over(tmp_path: Path, mock: FakeUpstream) -> None:
    async with serving(tmp_path, config(mock.url, 5.0)) as server:
        id = await said(server, "kept", "for a moment")
        assert (await trace(server, id))["body"]["answer"]
        await server.until(f"/admin/v1/traces/{id}", lambda told: told["body"] is None)
    async with serving(tmp_path, config(mock.url, 5.0), keep_state=True):  # which sweeps when it starts
        async with asyncio.timeout(20):
            while bodies(tmp_path):
                await asyncio.sleep(0.05)


def bodies(home: Path) -> int:
    store = Store.open("sqlite:///state/drivetrain.db", home)
    with store.reading() as connection:
        found: int = connection.exec_driver_sql("SELECT count(*) FROM bodies").scalar_one()
    store.close()
    return found
