"""The admin API over HTTP, on each kind of store: one way for every kind, versions, the audit, what is out of sight."""

import asyncio
import csv
import io
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyarrow import parquet

from drivetrain.governance import SCOPES, Attempt
from drivetrain.store import Body, Store
from drivetrain.ulid import ulid
from tests.e2e.governed import Governed, governed

pytestmark = pytest.mark.anyio
V1 = "/admin/v1"


@pytest.fixture
async def server(store: Store, tmp_path: Path) -> AsyncGenerator[Governed, None]:
    async with governed(store, tmp_path) as made:
        yield made


@pytest.fixture
async def root(server: Governed) -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with server.root() as client:
        yield client


async def made(client: httpx2.AsyncClient, path: str, **fields: Any) -> Any:
    answer = await client.post(f"{V1}/{path}", json=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def said(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["message"])


# --- every kind -------------------------------------------------------------------------------------------------------


def samples(org: str, team: str, project: str) -> Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """For each path, what makes one, and a change of it."""
    return {
        "orgs": ({"name": "acme"}, {"name": "acme inc"}),
        "teams": ({"name": "search", "org": org, "models": ["chat*"]}, {"models": None}),
        "projects": ({"name": "web", "team": team}, {"disabled": True}),
        "users": ({"name": "ada", "org": org, "email": "ada@example.com"}, {"scopes": ["usage"]}),
        "keys": ({"name": "ci", "project": project, "models": ["chat"], "tags": {"env": "ci"}}, {"priority": "bulk"}),
        "limits": ({"subject": "team", "subject_id": team, "resource": "requests", "amount": 100}, {"amount": 200}),
        "budgets": ({"subject": "org", "subject_id": org, "amount": 5_000_000, "per": "month"}, {"hard": False}),
        "prices": ({"engine": "box", "model": "m", "input": 150_000, "output": 600_000}, {"until_s": 2e9}),
    }


PATHS = tuple(samples("", "", ""))


@pytest.mark.parametrize("path", PATHS)
async def test_every_kind_is_made_read_listed_changed_and_removed_in_one_way(
    server: Governed, root: httpx2.AsyncClient, path: str
) -> None:
    place = server.tenant("x")
    fields, change = samples(place.org, place.team, place.project)[path]
    created = await root.post(f"{V1}/{path}", json=fields)
    assert created.status_code == 201, created.text
    one = created.json()
    secret = one.pop("secret", None)
    assert (secret is not None) is (path == "keys")
    assert {name: one[name] for name in fields} == dict(fields)
    assert (one["version"], created.headers["etag"]) == (1, '"1"')
    assert created.headers["location"] == f"{V1}/{path}/{one['id']}"
    assert (await root.get(created.headers["location"])).json() == one
    assert one in (await root.get(f"{V1}/{path}")).json()["data"]
    changed = await root.patch(f"{V1}/{path}/{one['id']}", json={**change, "version": 1})
    assert changed.status_code == 200, changed.text
    assert changed.json() == {**one, **change, "version": 2}
    removed = await root.delete(f"{V1}/{path}/{one['id']}")
    assert (removed.status_code, removed.content) == (204, b"")
    assert (await root.get(f"{V1}/{path}/{one['id']}")).status_code == 404


async def test_of_two_writers_who_read_the_same_version_one_is_told_to_read_again(root: httpx2.AsyncClient) -> None:
    org = await made(root, "orgs", name="acme")
    place = f"{V1}/orgs/{org['id']}"
    answers = await asyncio.gather(*(root.patch(place, json={"name": f"acme {n}", "version": 1}) for n in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]
    late = next(answer for answer in answers if answer.status_code == 409)
    assert (late.json()["error"]["code"], late.headers["x-should-retry"]) == ("conflict", "false")
    assert "version 2" in said(late)


async def test_a_version_may_come_as_a_header_and_has_to_come_for_a_change(root: httpx2.AsyncClient) -> None:
    org = await made(root, "orgs", name="acme")
    place = f"{V1}/orgs/{org['id']}"
    bare = await root.patch(place, json={"name": "b"})
    assert (bare.status_code, "which version" in said(bare)) == (400, True)
    assert (await root.patch(place, json={"name": "b"}, headers={"if-match": '"1"'})).json()["version"] == 2
    assert (await root.delete(place, headers={"if-match": '"1"'})).status_code == 409
    assert (await root.delete(place, headers={"if-match": "soon"})).status_code == 400
    assert (await root.delete(place, headers={"if-match": '"2"'})).status_code == 204


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("orgs", {}, "name"),
        ("orgs", {"name": "a", "nam": "b"}, "nam"),
        ("orgs", {"name": 5}, "name"),
        ("orgs", {"name": ""}, "name"),
        ("orgs", [], "object"),
        ("keys", {"name": "a", "scopes": ["root"]}, "root"),
        ("keys", {"name": "a", "public_id": "chosen"}, "public_id"),
        ("keys", {"name": "a", "hash": "0"}, "hash"),
        ("limits", {"subject": "team", "subject_id": "x", "resource": "money", "amount": 1}, "money"),
        ("budgets", {"subject": "org", "subject_id": "x", "amount": -1, "per": "day"}, "x"),
        ("prices", {"input": -1}, "input"),
        ("projects", {"name": "a", "team": "nobody"}, "nobody"),
        ("keys", {"name": "a", "terms": {"idle_s": 0}}, "$.terms.idle_s"),
        ("teams", {"name": "a", "terms": {"patience_s": 1}}, "patience_s"),
        ("orgs", {"name": "a", "terms": {"on_disconnect": "never"}}, "never"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_told(
    root: httpx2.AsyncClient, path: str, body: Any, told: str
) -> None:
    answer = await root.post(f"{V1}/{path}", json=body)
    assert answer.status_code in (400, 404)
    assert told in said(answer)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"name": "\xff"}', b"[" * 100_000, b"null", b'"text"'])
async def test_what_is_no_json_is_refused(root: httpx2.AsyncClient, body: bytes) -> None:
    assert (await root.post(f"{V1}/orgs", content=body)).status_code == 400


async def test_lists_come_in_pages_and_can_be_narrowed(server: Governed, root: httpx2.AsyncClient) -> None:
    place = server.tenant("x")
    ids = [(await made(root, "teams", name=f"t{n}", org=place.org))["id"] for n in range(5)]
    seen: list[str] = []
    after = ""
    while True:
        page = (await root.get(f"{V1}/teams", params={"org": place.org, "limit": 2, "after": after})).json()
        seen += [team["id"] for team in page["data"]]
        assert len(page["data"]) <= 2
        if not page["has_more"]:
            break
        after = page["next"]
    assert seen == [place.team, *ids]
    named = (await root.get(f"{V1}/teams", params={"name": "t3"})).json()["data"]
    assert [team["id"] for team in named] == [ids[3]]
    assert (await root.get(f"{V1}/teams", params={"disabled": "true"})).json()["data"] == []


@pytest.mark.parametrize(
    "query",
    [
        "nam=x",
        "limit=0",
        "limit=1001",
        "limit=two",
        "name=a&name=b",
        "disabled=perhaps",
        "name=%00",
        "&" * 60 + "a=b" * 60,
    ],
)
async def test_a_query_that_nobody_knows_is_refused(root: httpx2.AsyncClient, query: str) -> None:
    assert (await root.get(f"{V1}/orgs?{query}")).status_code == 400


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_a_new_key_opens_the_door_and_its_secret_is_never_told_again(
    server: Governed, root: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        key = await made(root, "keys", name="ci", scopes=["inference"])
        secret = key["secret"]
        async with server.client(secret) as caller:
            assert (await caller.get("/v1/models")).status_code == 200
        rotated = (await root.post(f"{V1}/keys/{key['id']}/rotate")).json()
        places = ("keys", f"keys/{key['id']}", f"keys/{rotated['id']}", "audit", "config")
        read = "".join([(await root.get(f"{V1}/{place}")).text for place in places])
    assert rotated["secret"] != secret
    for text in (read, caplog.text):
        assert secret[16:] not in text
        assert rotated["secret"][16:] not in text
        assert "not to be shown" not in text


async def test_a_rotated_key_works_beside_its_successor_for_the_grace_that_was_given(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    key = await made(root, "keys", name="ci", scopes=["inference"])
    new = (await root.post(f"{V1}/keys/{key['id']}/rotate", json={"grace_s": 3600})).json()
    assert (new["scopes"], new["name"], new["id"] != key["id"]) == (["inference"], "ci", True)
    for secret in (key["secret"], new["secret"]):
        async with server.client(secret) as caller:
            assert (await caller.get("/v1/models")).status_code == 200
    again = await root.post(f"{V1}/keys/{key['id']}/rotate")
    assert again.status_code == 409
    gone = await root.post(f"{V1}/keys/{new['id']}/rotate", json={"grace_s": 0})
    await server.directory.refresh()
    async with server.client(new["secret"]) as caller:
        assert (await caller.get("/v1/models")).status_code == 401
    async with server.client(gone.json()["secret"]) as caller:
        assert (await caller.get("/v1/models")).status_code == 200


async def test_a_revoked_key_is_refused_within_a_second(server: Governed, root: httpx2.AsyncClient) -> None:
    key = await made(root, "keys", name="ci", scopes=["inference"])
    async with server.client(key["secret"]) as caller:
        assert (await caller.get("/v1/models")).status_code == 200
        revoked = await root.post(f"{V1}/keys/{key['id']}/revoke")
        assert (revoked.status_code, revoked.json()["disabled"]) == (200, True)
        async with asyncio.timeout(5):
            while (answer := await caller.get("/v1/models")).status_code == 200:
                await asyncio.sleep(0.02)
    assert (answer.status_code, "is not valid" in said(answer)) == (401, True)


async def test_nobody_gives_away_what_they_do_not_have(server: Governed) -> None:
    key, secret = server.key("admin", "inference")
    _, stronger = server.key("admin", "models", "metrics")
    strong = server.office.list("key")[-1]
    async with server.client(secret) as client:
        refused = await client.post(f"{V1}/keys", json={"name": "a", "scopes": ["inference", "models"]})
        assert (refused.status_code, "they lack: models" in said(refused)) == (403, True)
        grown = await client.patch(f"{V1}/keys/{key.id}", json={"scopes": ["admin", "metrics"], "version": 1})
        assert grown.status_code == 403
        taken = await client.post(f"{V1}/keys/{strong.id}/rotate")
        assert taken.status_code == 403
        assert (await client.post(f"{V1}/users", json={"name": "u", "scopes": ["models"]})).status_code == 403
        assert (await client.post(f"{V1}/keys", json={"name": "a", "scopes": ["inference"]})).status_code == 201
    assert stronger


# --- what is out of sight ---------------------------------------------------------------------------------------------


async def one_of_each(root: httpx2.AsyncClient, org: str, team: str, project: str) -> Mapping[str, str]:
    """An id by path, all of them inside one organisation."""
    kinds = samples(org, team, project)
    inside = [path for path in PATHS if path not in ("orgs", "prices")]
    return {"orgs": org} | {path: (await made(root, path, **kinds[path][0]))["id"] for path in inside}


async def test_an_administrator_of_one_organisation_neither_sees_nor_touches_another(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    foreign = await one_of_each(root, theirs.org, theirs.team, theirs.project)
    kinds = samples(theirs.org, theirs.team, theirs.project)
    async with server.client(mine.secret) as client:
        for path, id in foreign.items():
            place = f"{V1}/{path}/{id}"
            listed = (await client.get(f"{V1}/{path}")).json()["data"]
            assert id not in [one["id"] for one in listed]
            assert (await client.get(place)).status_code == 404
            assert (await client.patch(place, json={**kinds[path][1], "version": 1})).status_code == 404
            assert (await client.delete(place)).status_code == 404
            refused = await client.post(f"{V1}/{path}", json=kinds[path][0])
            assert refused.status_code in (403, 404), (path, refused.text)
        for action in ("rotate", "revoke"):
            assert (await client.post(f"{V1}/keys/{foreign['keys']}/{action}")).status_code == 404
    for path, id in foreign.items():
        assert (await root.get(f"{V1}/{path}/{id}")).json()["version"] == 1


async def test_names_tell_nothing_about_other_organisations(server: Governed) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    async with server.client(mine.secret) as client:
        for path in ("orgs/theirs", "teams/theirs team", "projects/theirs project", f"keys/{theirs.secret[3:15]}"):
            answer = await client.get(f"{V1}/{path}")
            assert (answer.status_code, theirs.org in answer.text) == (404, False)
        for query in (f"org={theirs.org}", "org=theirs", "org=nobody"):
            assert (await client.get(f"{V1}/teams?{query}")).json()["data"] == []
        assert (await client.get(f"{V1}/limits?subject_id={theirs.team}")).json()["data"] == []


async def test_inside_its_own_organisation_an_administrator_is_at_home(server: Governed) -> None:
    mine = server.tenant("mine")
    async with server.client(mine.secret) as client:
        team = await made(client, "teams", name="new")
        assert team["org"] == mine.org
        project = await made(client, "projects", name="p", team=team["id"])
        key = await made(client, "keys", name="k", project=project["id"], scopes=["inference"])
        beside = await made(client, "keys", name="beside", scopes=["inference"])
        assert beside["project"] == mine.project
        limit = await made(client, "limits", subject="key", subject_id=key["id"], resource="requests", amount=5)
        assert (await client.get(f"{V1}/limits")).json()["data"] == [limit]
        assert [org["id"] for org in (await client.get(f"{V1}/orgs")).json()["data"]] == [mine.org]
        assert (await client.delete(f"{V1}/limits/{limit['id']}")).status_code == 204
        assert (await client.post(f"{V1}/keys/{key['id']}/revoke")).status_code == 200


async def test_what_was_set_on_an_organisation_is_not_its_own_administrators_to_change(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    mine = server.tenant("mine")
    budget = await made(root, "budgets", subject="org", subject_id=mine.org, amount=1_000_000, per="month")
    place = f"{V1}/budgets/{budget['id']}"
    async with server.client(mine.secret) as client:
        assert (await client.get(place)).json() == budget
        assert (await client.patch(place, json={"amount": 10**9, "version": 1})).status_code == 403
        assert (await client.delete(place)).status_code == 403
        assert (await client.patch(f"{V1}/orgs/{mine.org}", json={"disabled": True, "version": 1})).status_code == 403
        for path in ("audit", "audit/verify", "config", "config/revisions", "config/revisions/1"):
            assert (await client.get(f"{V1}/{path}")).status_code == 403
        price = await client.post(f"{V1}/prices", json={"input": 0})
        assert (price.status_code, "ask one of 'default'" in said(price)) == (403, True)


async def test_terms_are_given_whole_with_their_owner_and_its_version(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    tenant = server.tenant("acme")
    terms = {"first_token_s": 0.5, "queue_size": 0, "on_disconnect": "drain"}
    for path, id in (("orgs", tenant.org), ("teams", tenant.team), ("projects", tenant.project), ("keys", tenant.key)):
        place = f"{V1}/{path}/{id}"
        assert (await root.get(place)).json()["terms"] == {}
        set_ = await root.patch(place, json={"terms": terms, "version": 1})
        assert (set_.status_code, set_.json()["terms"], set_.json()["version"]) == (200, terms, 2)
        assert (await root.patch(place, json={"terms": {}, "version": 1})).status_code == 409
        less = await root.patch(place, json={"terms": {"idle_s": 3, "queue_size": None}, "version": 2})
        assert less.json()["terms"] == {"idle_s": 3.0}
        assert (await root.patch(place, json={"terms": {}, "version": 3})).json()["terms"] == {}
    lines = (await root.get(f"{V1}/audit?kind=team&object_id={tenant.team}")).json()["data"]
    assert [line["after"]["terms"] for line in lines] == [{}, terms, {"idle_s": 3.0}, {}]


async def test_an_administrator_of_one_organisation_cannot_have_its_answers_for_nothing(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    mine = server.tenant("mine")
    free = {"terms": {"on_disconnect": "free", "idle_s": 2.0}}
    async with server.client(mine.secret) as client:
        place = f"{V1}/teams/{mine.team}"
        refused = await client.patch(place, json={**free, "version": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "terms")
        assert "may not set on_disconnect 'free'" in said(refused)
        assert (await client.post(f"{V1}/keys", json={"name": "k", "scopes": ["inference"], **free})).status_code == 403
        drained = await client.patch(place, json={"terms": {"on_disconnect": "drain"}, "version": 1})
        assert drained.status_code == 200
        assert (await root.patch(place, json={**free, "version": 2})).status_code == 200
        kept = await client.patch(place, json={"terms": {**free["terms"], "idle_s": 9.0}, "version": 3})
        assert kept.json()["terms"] == {"on_disconnect": "free", "idle_s": 9.0}
        own = await client.patch(f"{V1}/orgs/{mine.org}", json={"terms": {"idle_s": 1}, "version": 1})
        assert own.status_code == 403


# --- the audit --------------------------------------------------------------------------------------------------------


async def test_every_write_leaves_a_line_with_who_and_in_which_request(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    key, secret = server.key("admin")
    before = (await root.get(f"{V1}/audit", params={"limit": 1000})).json()["data"][-1]["revision"]
    async with server.client(secret) as client:
        org = (await client.post(f"{V1}/orgs", json={"name": "a"}, headers={"x-request-id": "one"})).json()
        place = f"{V1}/orgs/{org['id']}"
        await client.patch(place, json={"name": "b", "version": 1}, headers={"x-request-id": "two"})
        await client.patch(place, json={"name": "c", "version": 1}, headers={"x-request-id": "lost"})
        await client.delete(place, headers={"x-request-id": "three"})
    page = (await root.get(f"{V1}/audit", params={"since": before})).json()
    lines = [(line["request_id"], line["action"], line["kind"], line["object_id"]) for line in page["data"]]
    assert lines == [
        (n, action, "org", org["id"]) for n, action in (("one", "create"), ("two", "update"), ("three", "delete"))
    ]
    assert {line["actor"] for line in page["data"]} == {f"key {key.id}"}
    assert (page["data"][1]["before"]["name"], page["data"][1]["after"]["name"]) == ("a", "b")
    verdict = (await root.get(f"{V1}/audit/verify")).json()
    assert (verdict["broken"], verdict["lines"]) == (None, page["data"][-1]["revision"])
    paged = (await root.get(f"{V1}/audit", params={"since": before, "limit": 2})).json()
    assert (len(paged["data"]), paged["has_more"], paged["next"]) == (2, True, before + 2)


# --- usage and traces -------------------------------------------------------------------------------------------------


def attempt(**fields: Any) -> Attempt:
    usual: dict[str, Any] = {
        "id": ulid(),
        "request_id": "req_1",
        "position": 1,
        "started_s": 1_767_225_600.0,  # 2026-01-01
        "dialect": "openai.chat",
        "model": "chat",
        "engine": "box",
        "engine_model": "m",
        "stream": False,
        "outcome": "ok",
        "status": 200,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost_micro_usd": 7,
    }
    return Attempt(**(usual | fields))


async def test_usage_is_added_up_as_asked_in_json_and_csv(server: Governed, root: httpx2.AsyncClient) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    for tenant in (mine, mine, theirs):
        server.record(
            attempt(
                request_id=ulid(), org_id=tenant.org, key_id=tenant.key, model="=cmd" if tenant is theirs else "chat"
            )
        )
    whole = (await root.get(f"{V1}/usage")).json()
    assert (whole["requests"], whole["rows"][0]["cost_micro_usd"]) == (3, 21)
    by = (await root.get(f"{V1}/usage", params={"by": "org,model"})).json()["rows"]
    assert {(row["org"], row["model"], row["requests"]) for row in by} == {
        (mine.org, "chat", 2),
        (theirs.org, "=cmd", 1),
    }
    late = await root.get(f"{V1}/usage", params={"since": "2026-01-02"})
    assert late.json()["requests"] == 0
    table = await root.get(f"{V1}/usage", params={"by": "model", "format": "csv", "until": "2026-01-01T00:00:01Z"})
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [(row["model"], row["requests"], row["cost_micro_usd"]) for row in rows] == [
        ("'=cmd", "1", "7"),
        ("chat", "2", "14"),
    ]
    file = await root.get(f"{V1}/usage", params={"by": "model", "format": "parquet"})
    assert file.headers["content-type"] == "application/vnd.apache.parquet"
    read = parquet.read_table(io.BytesIO(file.content)).to_pylist()
    assert [(row["model"], row["requests"], row["cost_micro_usd"]) for row in read] == [("=cmd", 1, 7), ("chat", 2, 14)]


async def test_a_trace_tells_the_life_of_a_request_as_the_command_does(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    came_s = 1_767_225_600.0
    server.record(
        attempt(
            request_id="req_1",
            received_s=came_s,
            started_s=came_s + 0.03,
            queued_s=0.025,
            admitted_s=0.0255,
            reserved_micro_usd=12_000,
            first_token_s=0.1,
            total_s=0.5,
        )
    )
    told = (await root.get(f"{V1}/traces/req_1")).json()
    assert [(step["at_ms"], step["step"]) for step in told["timeline"]] == [
        (0.0, "received"),
        (0.5, "queued"),
        (25.5, "admitted"),
        (25.5, "reserved"),
        (30.0, "attempt"),
        (130.0, "first token"),
        (530.0, "last token"),
        (530.0, "settled"),
    ]
    assert (told["outcome"], told["status"], told["cost_micro_usd"], told["received_s"]) == ("ok", 200, 7, came_s)
    assert [row["engine"] for row in told["attempts"]] == ["box"]


async def test_an_administrator_sees_the_usage_and_traces_of_its_own_organisation(server: Governed) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    server.record(attempt(request_id="req_mine", org_id=mine.org), attempt(request_id="req_theirs", org_id=theirs.org))
    async with server.client(mine.secret) as client:
        assert (await client.get(f"{V1}/usage")).json()["requests"] == 1
        assert (await client.get(f"{V1}/usage", params={"org": theirs.org})).json()["requests"] == 1
        assert (await client.get(f"{V1}/traces/req_mine")).json()["attempts"][0]["org_id"] == mine.org
        assert (await client.get(f"{V1}/traces/req_theirs")).status_code == 404


async def test_a_request_is_explained_as_it_was_and_as_it_would_be(server: Governed, root: httpx2.AsyncClient) -> None:
    failed = attempt(request_id="req_1", engine="gone", outcome="absorbed", status=503, why="engine_unavailable")
    server.record(failed, attempt(request_id="req_1", position=2, prompt_tokens=40, completion_tokens=9, why="load 2"))
    told = (await root.get(f"{V1}/explain/req_1")).json()
    assert [(row["engine"], row["why"]) for row in told["then"]] == [("gone", "engine_unavailable"), ("box", "load 2")]
    now = told["now"]
    assert (now["prompt_tokens"], now["output_tokens"]) == (40, 9)
    assert [(seen["engine"], seen["why"]) for seen in now["choices"][0]["candidates"]] == [
        ("box", "only target (not probed yet)")
    ]
    longer = (await root.get(f"{V1}/explain/req_1", params={"prompt_tokens": "9000"})).json()
    assert longer["now"]["prompt_tokens"] == 9000


async def test_a_request_whose_model_is_no_more_is_explained_as_it_was(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    server.record(attempt(request_id="req_1", model="old"))
    told = (await root.get(f"{V1}/explain/req_1")).json()
    assert (told["model"], len(told["then"]), told["now"]) == ("old", 1, None)


async def test_a_request_of_another_organisation_is_not_explained(server: Governed) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    server.record(attempt(request_id="req_theirs", org_id=theirs.org))
    async with server.client(mine.secret) as client:
        answer = await client.get(f"{V1}/explain/req_theirs")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "no request 'req_theirs' in the ledger; it is there some seconds after its end",
    )


async def test_a_request_id_that_two_organisations_chose_shows_neither_what_the_other_said(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    server.record(attempt(request_id="same", org_id=mine.org), attempt(request_id="same", org_id=theirs.org))
    server.keep(Body(request_id="same", at_s=1.0, delete_s=2e9, request="secret", answer="answer"))
    async with server.client(mine.secret) as client:
        told = (await client.get(f"{V1}/traces/same")).json()
    assert ([row["org_id"] for row in told["attempts"]], told["body"]) == ([mine.org], None)
    assert (await root.get(f"{V1}/traces/same")).json()["body"]["request"] == "secret"


async def test_a_key_sees_its_own_usage_and_no_other(server: Governed) -> None:
    mine = server.tenant("mine")
    server.record(
        attempt(request_id="a", key_id=mine.key), attempt(request_id="b", key_id=ulid()), attempt(request_id="c")
    )
    async with server.client(mine.secret) as client:
        assert (await client.get("/v1/usage", params={"by": "key"})).json()["requests"] == 1
        assert (await client.get("/v1/usage", params={"key": "other"})).status_code == 400


@pytest.mark.parametrize(
    "query", ["by=colour", "by=key,key", "since=yesterday", "format=xml", "since=1e400", "since=nan"]
)
async def test_a_question_that_makes_no_sense_is_refused(root: httpx2.AsyncClient, query: str) -> None:
    assert (await root.get(f"{V1}/usage?{query}")).status_code == 400


async def test_what_is_used_of_limits_is_told_to_whom_they_belong(server: Governed, root: httpx2.AsyncClient) -> None:
    mine, theirs = server.tenant("mine"), server.tenant("theirs")
    server.used = {
        f"team:{mine.team}:L1": 3,
        f"org:{mine.org}:L2": 4,
        f"team:{theirs.team}:L3": 5,
        "policy:p:m:tokens:day": 6,
    }
    assert len((await root.get(f"{V1}/spent")).json()["data"]) == 4
    async with server.client(mine.secret) as client:
        seen = (await client.get(f"{V1}/spent")).json()["data"]
    assert seen == [{"rule": f"org:{mine.org}:L2", "used": 4}, {"rule": f"team:{mine.team}:L1", "used": 3}]


async def test_the_configuration_is_shown_without_secrets_and_its_revisions_with_their_authors(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    config = await root.get(f"{V1}/config")
    assert (config.json()["keys"]["pepper"], config.headers["cache-control"]) == ("***", "no-store")
    server.store.keep_config("server: {port: 1}\n", actor="cli root", at_s=1.0)
    listed = (await root.get(f"{V1}/config/revisions")).json()["data"]
    assert [(one["actor"], "body" in one) for one in listed] == [("cli root", False)]
    one = await root.get(f"{V1}/config/revisions/{listed[0]['revision']}")
    assert one.json()["body"] == "server: {port: 1}\n"
    assert (await root.get(f"{V1}/config/revisions/999")).status_code == 404
    assert (await root.get(f"{V1}/config/revisions/x")).status_code == 400


async def test_who_may_not_see_the_configuration_does_not_put_one_back_either(
    server: Governed, root: httpx2.AsyncClient
) -> None:
    async with server.client(server.tenant("mine").secret) as client:
        assert (await client.post(f"{V1}/config/rollback", json={"revision": 1})).status_code == 403
    assert (await root.post(f"{V1}/config/rollback", json={"revision": 0})).status_code == 400
    refused = await root.post(f"{V1}/config/rollback", json={"revision": 1})
    assert (refused.status_code, said(refused)) == (409, "this server has no configuration file that it could write")


async def test_with_authentication_off_everybody_administers_as_anybody(store: Store, tmp_path: Path) -> None:
    async with governed(store, tmp_path, auth=False) as server, server.client() as client:
        await made(client, "orgs", name="acme")
        lines = (await client.get(f"{V1}/audit")).json()["data"]
        assert [line["actor"] for line in lines] == ["anybody"]
        assert (await client.get("/v1/usage")).status_code == 200


async def test_unknown_paths_below_a_key_are_not_there(server: Governed, root: httpx2.AsyncClient) -> None:
    key, _ = server.key("inference")
    for path in (f"keys/{key.id}/steal", f"keys/{key.id}", "keys//rotate", "nothing"):
        assert (await root.post(f"{V1}/{path}")).status_code in (404, 405)
    assert (await root.get(f"{V1}/keys/{key.id}/secret")).status_code == 404
    assert json.loads((await root.get(f"{V1}/openapi.json")).text)["openapi"] == "3.1.0"
    assert SCOPES
