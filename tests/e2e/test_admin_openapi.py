"""The admin API keeps to its own description: the document is valid, says every route, and made-up requests agree."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from schemathesis import Config, engine
from schemathesis.engine import events

from drivetrain.governance import SCOPES
from drivetrain.server.admin import openapi
from drivetrain.store import Store
from tests.e2e.governed import Governed, governed
from tests.unit.server.test_server_auth import whole_table

pytestmark = pytest.mark.anyio
SEED = 20261130
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
DOCUMENT: dict[str, Any] = json.loads(openapi.document())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Governed, None]:
    store = Store.open(f"sqlite:///{tmp_path}/state/drivetrain.db", tmp_path)
    async with governed(store, tmp_path) as made:
        yield made
    store.close()


def config(url: str, secret: str) -> Config:
    return Config.from_dict(
        {
            "seed": SEED,
            "base-url": url,
            "headers": {"authorization": f"Bearer {secret}"},
            "continue-on-failure": True,
            "suppress-health-check": ["all"],
            "generation": {
                "mode": "all",
                "max-examples": 10,
                "deterministic": True,
                "no-shrink": True,
                "database": "none",
            },
            "phases": {
                "examples": {"enabled": False},
                "coverage": {"enabled": True},
                "fuzzing": {"enabled": True},
                "stateful": {"enabled": False},
            },
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
        }
    )


def faults(url: str, secret: str) -> tuple[int, list[str]]:
    """How many requests were made up, and what is to be said against the answers. A made-up name of this machine is
    refused before the API is reached: that is the guard's business."""
    sent, found = 0, []
    for event in engine.from_schema(schemathesis.openapi.from_dict(DOCUMENT, config=config(url, secret))).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            sent += len(event.recorder.interactions)
            for number, checks in event.recorder.checks.items():
                case = event.recorder.cases[number].value
                found += [
                    f"{case.as_curl_command()}: {check.failure_info.failure}"
                    for check in checks
                    if check.failure_info is not None and "host" not in {name.lower() for name in case.headers}
                ]
    return sent, found


@pytest.mark.filterwarnings("default::DeprecationWarning")
async def test_no_made_up_request_finds_a_defect_or_an_answer_that_was_not_announced(server: Governed) -> None:
    sent, found = await asyncio.to_thread(faults, server.url, server.secret(*SCOPES))
    assert found == []
    assert sent > 500


def test_every_schema_of_the_document_is_one() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    for name, schema in DOCUMENT["components"]["schemas"].items():
        whole = {**schema, "components": DOCUMENT["components"]}
        jsonschema_rs.Draft202012Validator(whole)
        assert jsonschema_rs.meta.is_valid(schema), name


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        node: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for child in node.values() for found in references(child)]
    return [found for child in node for found in references(child)] if isinstance(node, list) else []


def test_every_route_of_administrators_is_described_and_no_other() -> None:
    table = whole_table()
    exact = {(method, path) for (method, path), route in table.exact.items() if route.scope in ("admin", "usage")}
    below = {(method, prefix) for (method, prefix), route in table.prefixes.items() if route.scope == "admin"}
    said = {
        (method.upper(), path)
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert {pair for pair in said if "{" not in pair[1]} == exact
    assert {(method, path.partition("{")[0]) for method, path in said if "{" in path} == below


def test_operations_have_names_of_their_own() -> None:
    names = [
        operation["operationId"]
        for operations in DOCUMENT["paths"].values()
        for method, operation in operations.items()
        if method != "parameters"
    ]
    assert len(set(names)) == len(names)
