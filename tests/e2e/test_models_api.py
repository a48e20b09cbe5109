"""Models of the library through `/v1/models`: pulled, told line by line or not, changed, deleted."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.e2e.servers import MODEL, Server

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(drivetrain: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=drivetrain.url, timeout=120) as client:
        yield client


def lines(answer: httpx2.Response) -> list[Any]:
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_pull_answers_when_the_model_is_there(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/models", json={"pull": MODEL, "name": "quiet"})
    assert (answer.status_code, answer.json()["id"], answer.json()["object"]) == (201, "quiet", "model")
    gone = await client.delete("/v1/models/quiet")
    assert gone.json() == {"id": "quiet", "object": "model", "deleted": True}


async def test_a_pull_tells_how_it_goes_line_by_line(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/models", json={"pull": MODEL, "name": "told", "stream": True})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert [lines(answer)[0], lines(answer)[-1]] == [{"status": "pulling manifest"}, {"status": "success"}]
    assert (await client.get("/v1/models/told")).status_code == 200
    await client.delete("/v1/models/told")


async def test_a_pull_that_fails_says_why_in_the_words_of_this_api(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/models", json={"pull": "./not-there.gguf", "name": "x", "stream": True})
    error = answer.json() if answer.status_code != 200 else lines(answer)[-1]
    assert error["error"]["code"] == "not_found"
    assert "not-there.gguf does not exist" in error["error"]["message"]


async def test_a_parameter_that_no_request_could_use_is_not_kept(client: httpx2.AsyncClient) -> None:
    answer = await client.patch(f"/v1/models/{MODEL}", json={"parameters": {"temperature": "hot"}})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "parameters.temperature")
    assert error["message"] == "parameter 'temperature' of a model must be a number, not \"hot\""
    kept = (await client.get(f"/v1/models/{MODEL}?effective=true")).json()["effective"]
    assert "parameters.temperature" not in kept


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"import": "/nowhere.gguf", "name": "x"}, "import"),
        ({"import": "/nowhere.gguf", "name": "a//b"}, "name"),
        ({"import": "/nowhere/\\.gguf"}, "import"),
        ({"pull": MODEL, "name": "a//b"}, "name"),
        ({"pull": "/nowhere.gguf", "name": "x"}, "pull"),
        ({"pull": "not a source"}, "pull"),
        ({"pull": "not a source", "stream": True}, "pull"),
        ({"pull": "/nowhere.gguf", "stream": True}, "pull"),
    ],
)
async def test_an_error_names_the_member_that_was_sent(client: httpx2.AsyncClient, body: Any, param: str) -> None:
    answer = await client.post("/v1/models", json=body)
    assert lines(answer)[-1]["error"]["param"] == param


@pytest.mark.parametrize("body", [{}, {"pull": MODEL, "import": "/x.gguf"}, {"pull": MODEL, "nam": "typo"}, []])
async def test_a_body_that_means_nothing_is_refused(client: httpx2.AsyncClient, body: Any) -> None:
    answer = await client.post("/v1/models", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
