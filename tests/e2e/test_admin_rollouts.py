"""Rollouts and prompts by the admin API: who may, versions, and what every answer says."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.store import Store
from tests.e2e.governed import Governed, governed

pytestmark = pytest.mark.anyio
PATH = "/admin/v1/rollouts"
PROMPTS = "/admin/v1/prompts"
SPEC: dict[str, Any] = {
    "model": "CHAT:latest",
    "arms": [{"name": "baseline"}, {"name": "new", "targets": [{"engine": "box", "model": "other"}]}],
    "stages": [{"percent": 10}, {"percent": 100}],
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Governed, None]:
    store = Store.open(f"sqlite:///{tmp_path}/state/drivetrain.db", tmp_path)
    async with governed(store, tmp_path) as made:
        yield made
    store.close()


async def test_a_rollout_is_made_moved_and_taken_back(server: Governed) -> None:
    async with server.root() as root:
        made = await root.post(PATH, json=SPEC)
        assert made.status_code == 201
        one = made.json()
        assert made.headers["location"] == f"{PATH}/{one['id']}"
        assert (made.headers["etag"], one["model"], one["state"], one["stage"]) == ('"1"', "chat", "running", 0)
        assert (await root.get(f"{PATH}/{one['id']}")).json() == one
        assert (await root.get(PATH, params={"state": "running"})).json()["data"] == [one]
        place = f"{PATH}/{one['id']}"
        moved = await root.post(f"{place}/advance", json={"version": 1, "why": "it is good"})
        assert (moved.json()["stage"], moved.json()["why"], moved.headers["etag"]) == (1, "it is good", '"2"')
        stale = await root.post(f"{place}/advance", headers={"if-match": '"1"'})
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "conflict")
        back = await root.post(f"{place}/rollback")  # who is in a hurry need not say from where
        assert back.json()["state"] == "rolled_back"
        history = (await root.get(f"{place}/history")).json()["data"]
        assert [turn["move"] for turn in history] == ["create", "advance", "rollback"]
        assert history[2]["why"].startswith("rollback by key ")
        assert (await root.delete(place)).status_code == 204
        assert (await root.get(place)).status_code == 404
        actions = [line["action"] for line in (await root.get("/admin/v1/audit?kind=rollout")).json()["data"]]
        assert actions == ["create", "advance", "rollback", "delete"]


async def test_guards_change_and_a_report_tells_what_would_become_of_it(server: Governed) -> None:
    async with server.root() as root:
        one = (await root.post(PATH, json=SPEC)).json()
        place = f"{PATH}/{one['id']}"
        assert (await root.patch(place, json={"guards": {"cost": 2.0}})).status_code == 400
        changed = await root.patch(place, json={"guards": {"cost": 2.0}, "version": 1})
        assert changed.json()["guards"] == {**one["guards"], "cost": 2.0}
        report = (await root.get(f"{place}/report")).json()
        assert (report["next"], report["why"], report["whole"]) == (
            "hold",
            "0 of 100 requests answered at the new arm",
            True,
        )
        assert [arm["arm"] for arm in report["arms"]["arms"]] == ["baseline", "new"]


@pytest.mark.parametrize(
    ("change", "status", "problem"),
    [
        ({"model": "gone"}, 404, "gone"),
        ({"speed": 1}, 400, "unknown field `speed`"),
        ({"arms": [{"name": "b"}, {"name": "n", "target": []}]}, 400, "unknown field `target`"),
        ({"arms": [{"name": "b"}, {"name": "n", "targets": [{"engine": "x", "model": "m"}]}]}, 400, "engine 'x'"),
        ({"stages": [{"percent": 50}]}, 400, "has to have 100"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    server: Governed, change: dict[str, Any], status: int, problem: str
) -> None:
    async with server.root() as root:
        answer = await root.post(PATH, json={**SPEC, **change})
        assert answer.status_code == status
        assert problem in answer.json()["error"]["message"]


async def test_who_sees_one_organisation_has_no_part_in_it(server: Governed) -> None:
    tenant = server.tenant("acme")
    async with server.client(tenant.secret) as theirs:
        for answer in (await theirs.get(PATH), await theirs.post(PATH, json=SPEC), await theirs.get(PROMPTS)):
            assert answer.status_code == 403
    async with server.client(server.secret("inference")) as caller:
        assert (await caller.get(PATH)).status_code == 403


async def test_a_prompt_is_added_and_read(server: Governed) -> None:
    async with server.root() as root:
        made = await root.post(PROMPTS, json={"name": "brief", "text": "Be brief."})
        assert (made.status_code, made.headers["location"]) == (201, f"{PROMPTS}/brief@1")
        await root.post(PROMPTS, json={"name": "brief", "text": "Be very brief."})
        assert (await root.get(f"{PROMPTS}/brief")).json()["text"] == "Be very brief."
        assert (await root.get(f"{PROMPTS}/brief@1")).json() == made.json()
        page = (await root.get(PROMPTS, params={"limit": "1"})).json()
        assert (page["has_more"], page["next"]) == (True, "brief@1")
        rest = (await root.get(PROMPTS, params={"after": page["next"]})).json()
        assert [prompt["version"] for prompt in rest["data"]] == [2]
        assert (await root.get(f"{PROMPTS}/brief@7")).status_code == 404
        assert (await root.get(f"{PROMPTS}/brief@x")).status_code == 400
