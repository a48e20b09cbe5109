"""The class that a body names, by every API that generates: it is ours, and a number in its place is the engine's."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from drivetrain.store import Store
from tests.e2e.governed import Governed, governed

pytestmark = pytest.mark.anyio
SAID: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
GENERATING: dict[str, Any] = {
    "/v1/chat/completions": SAID,
    "/v1/completions": {"prompt": "Hi"},
    "/api/chat": SAID,
    "/api/generate": {"prompt": "Hi"},
}
BULK, INTERACTIVE = 0, 2


@pytest.fixture
async def server(store: Store, tmp_path: Path) -> AsyncGenerator[Governed, None]:
    async with governed(store, tmp_path) as made:
        yield made


@pytest.mark.parametrize("path", GENERATING)
async def test_a_body_names_its_class_and_the_engine_does_not_get_the_word(server: Governed, path: str) -> None:
    body = {"model": "chat", "stream": False, **GENERATING[path]}
    async with server.client(server.secret("inference", priority="interactive")) as client:
        for priority in ("bulk", "interactive"):
            assert (await client.post(path, json={**body, "priority": priority})).status_code == 200
        assert (await client.post(path, json={**body, "priority": -100})).status_code == 200
        refused = await client.post(path, json={**body, "priority": "urgent"})
    asked = server.engine.asked
    assert [request.urgency for request in asked] == [BULK, INTERACTIVE, 1]
    assert ["priority" in request.source.fields for request in asked if request.source] == [False, False, True]
    assert refused.status_code == 400
    assert "priority takes one of interactive, default, bulk; got 'urgent'" in refused.text
