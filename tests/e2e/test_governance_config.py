"""An earlier configuration comes back by HTTP, at a real server with workers, at once, or all stays as it was."""

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.replicas import CHAT, chat
from tests.e2e.servers import Server, serving
from tests.e2e.test_auth import KEY
from tests.fakes.manners import MODEL as FAKE
from tests.fakes.upstream import FakeUpstream

pytestmark = pytest.mark.anyio
V1 = "/admin/v1"


def config(url: str, *names: str) -> str:
    models = {name: {"targets": [{"engine": "box", "model": FAKE}]} for name in names}
    return json.dumps({"server": {"auth": "on"}, "engines": {"box": {"kind": "openai", "url": url}}, "models": models})


@asynccontextmanager
async def administered(home: Path, first: str) -> AsyncGenerator[tuple[Server, httpx2.AsyncClient], None]:
    async with serving(home, first, "--workers", "2") as server:
        headers = {"authorization": f"Bearer {KEY.findall(server.log)[0]}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            yield server, client


async def taken(server: Server, client: httpx2.AsyncClient, text: str, newest: int) -> None:
    """This configuration is in force, as that revision."""
    (server.home / "drivetrain.yaml").write_text(text)
    server.signal(signal.SIGHUP)
    while (await revisions(client))[0]["revision"] != newest:
        pass


async def revisions(client: httpx2.AsyncClient) -> Any:
    return (await client.get(f"{V1}/config/revisions")).json()["data"]


async def test_an_earlier_configuration_is_in_force_again_when_the_answer_comes(tmp_path: Path) -> None:
    async with FakeUpstream() as mock:
        first, second = config(mock.url, "chat"), config(mock.url, "chat", "better")
        file = tmp_path / "drivetrain.yaml"
        async with administered(tmp_path, first) as (server, client):
            file.chmod(0o600)
            await taken(server, client, second, 2)
            while (await client.post(CHAT, json=chat("better"))).status_code != 200:
                pass
            stale = await client.post(f"{V1}/config/rollback", json={"revision": 1, "newest": 1})
            assert (stale.status_code, file.read_text()) == (409, second)

            back = await client.post(f"{V1}/config/rollback", json={"revision": 1, "newest": 2})
            assert (back.status_code, back.json()["revision"], back.json()["like"]) == (200, 3, 1)
            assert sorted((await client.get(f"{V1}/config")).json()["models"]) == ["chat"]
            assert (file.read_text(), file.stat().st_mode & 0o777) == (first, 0o600)
            while (
                await client.post(CHAT, json=chat("better"))
            ).status_code != 404:  # workers hear of it from the owner
                pass
            (line,) = (await client.get(f"{V1}/audit", params={"kind": "config"})).json()["data"]
            assert (line["action"], line["before"]["revision"], line["after"]["revision"]) == ("apply", 2, 3)
            assert line["actor"].startswith("key ")
            assert (await client.get(f"{V1}/audit/verify")).json()["broken"] is None


async def test_what_cannot_be_put_in_force_changes_nothing(tmp_path: Path) -> None:
    async with FakeUpstream() as mock:
        first, broken = config(mock.url, "chat"), config("ftp://box", "chat")
        file = tmp_path / "drivetrain.yaml"
        async with administered(tmp_path, first) as (server, client):
            await taken(server, client, second := config(mock.url, "chat", "better"), 2)
            store = server.home / "state" / "drivetrain.db"
            keep(store, broken)
            refused = await client.post(f"{V1}/config/rollback", json={"revision": 3})
            assert refused.status_code == 400
            told = "revision 3 cannot be put in force: revision 3:1:73: engines.box.url: scheme 'ftp' is none of"
            assert told in refused.json()["error"]["message"]
            assert (await client.post(f"{V1}/config/rollback", json={"revision": 9})).status_code == 404
            assert file.read_text() == second
            assert sorted((await client.get(f"{V1}/config")).json()["models"]) == ["better", "chat"]


def keep(store: Path, text: str) -> None:
    """As a revision, though it was never in force."""
    from drivetrain.store import Store

    opened = Store.open(f"sqlite:///{store}", store.parent)
    opened.keep_config(text, actor="test", at_s=0.0)
    opened.close()
