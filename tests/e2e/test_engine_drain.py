"""Administrators take an engine out of service by HTTP, and put it back; on each kind of store."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from drivetrain.store import Store
from tests.e2e.governed import Governed, governed

pytestmark = pytest.mark.anyio
ENGINES = "/admin/v1/engines"


@pytest.fixture
async def server(store: Store, tmp_path: Path) -> AsyncGenerator[Governed, None]:
    async with governed(store, tmp_path) as made:
        yield made


async def test_an_engine_is_drained_and_resumed_and_the_audit_tells_by_whom(server: Governed) -> None:
    key, secret = server.key("admin")
    async with server.client(secret) as client:
        for action, drained in (("drain", True), ("drain", True), ("resume", False)):
            answer = await client.post(f"{ENGINES}/box/{action}")
            assert (answer.status_code, answer.json()) == (200, {"name": "box", "drained": drained})
    lines = server.office.audit(kind="engine")
    assert [(line.action, line.object_id, line.actor) for line in lines] == [
        ("drain", "box", f"key {key.id}"),
        ("resume", "box", f"key {key.id}"),
    ]
    assert all(line.request_id for line in lines)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("bix/drain", "there is no engine 'bix'; there are box"),
        ("box@/drain", "there is no engine 'box@'"),
        ("box@10.0.0.5:8000/drain", "there is no engine 'box@10.0.0.5:8000'"),
        ("box/stop", "no such path: POST …/engines/NAME/drain"),
        ("box", "no such path"),
    ],
)
async def test_what_is_not_there_cannot_be_drained(server: Governed, path: str, words: str) -> None:
    async with server.root() as client:
        answer = await client.post(f"{ENGINES}/{path}")
    assert answer.status_code == 404
    assert words in answer.json()["error"]["message"]
    assert server.office.audit(kind="engine") == []


async def test_engines_are_everybodys_so_the_administrator_of_one_organisation_may_not(server: Governed) -> None:
    async with server.client(server.tenant("acme").secret) as client:
        answer = await client.post(f"{ENGINES}/box/drain")
    assert answer.status_code == 403
    async with server.client(server.secret("inference")) as client:
        assert (await client.post(f"{ENGINES}/box/drain")).status_code == 403
    assert server.office.audit(kind="engine") == []
