"""Requests that schemathesis makes up from a description, valid ones and others, and what a server answers to each."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import schemathesis
from schemathesis import Config, engine
from schemathesis.engine import events
from schemathesis.engine.recorder import ScenarioRecorder

from tests.e2e.specs import JSON, Answer, Document, Spec

SEED = 20260821
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


class Outcome(NamedTuple):
    """One request. `faults`: what schemathesis and we have against the answer."""

    label: str  # "POST /api/chat"
    sent: str
    status: int
    faults: Sequence[str]


class Plan(NamedTuple):
    """What to send. `steer`: where in a schema, a path of names, what else stands there. Without it hardly any request
    would name a model that exists."""

    operations: Sequence[str]  # paths
    steer: Mapping[str, Any]
    examples: int  # random ones per operation and kind
    kinds: str = "all"  # or "positive"
    edges: bool = True  # also every edge of every schema, one by one


def outcomes(spec: Spec, url: str, plan: Plan) -> list[Outcome]:
    """Send all of a plan. The same requests each time; takes a while, so call it in a thread."""
    schema = schemathesis.openapi.from_dict(_steered(spec.document, plan), config=_config(url, plan))
    found: list[Outcome] = []
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            found += _judged(spec, event.recorder)
        else:
            assert not isinstance(event, events.NonFatalError | events.FatalError), event
    return found


def _config(url: str, plan: Plan) -> Config:
    checks: dict[str, Any] = {"enabled": False, **{name: {"enabled": True} for name in CHECKS}}
    # What it learns from answers would lead it to other models than those of the plan.
    fuzzing = {"extra-data-sources": {"responses": False}, "error-feedback": {"enabled": False}}
    phases = {
        "examples": {"enabled": False},
        "coverage": {"enabled": plan.edges},
        "fuzzing": fuzzing,
        "stateful": {"enabled": False},
    }
    given = {
        "seed": SEED,
        "base-url": url,
        "continue-on-failure": True,
        "request-timeout": 120,
        "suppress-health-check": ["all"],
        "generation": {
            "mode": plan.kinds,
            "max-examples": plan.examples,
            "deterministic": True,
            "no-shrink": True,
            "database": "none",
        },
        "phases": phases,
        "checks": checks,
    }
    return Config.from_dict(given)


def _steered(document: Document, plan: Plan) -> Document:
    """The description that requests are made from."""
    steered = copy.deepcopy(document)
    steered["paths"] = {path: steered["paths"][path] for path in plan.operations}
    for where, what in plan.steer.items():
        *way, last = where.split(".")
        node = steered["components"]["schemas"]
        for name in way:
            node = node[int(name) if name.isdigit() else name]
        node[last] = what
    for path in steered["paths"].values():
        for operation in path.values():
            _leave_streams_to_us(operation)
    return steered


def _leave_streams_to_us(operation: Document) -> None:
    """Schemathesis would hold a stream as a whole against the schema of a frame."""
    for media_type, content in operation["responses"]["200"].get("content", {}).items():
        if media_type != JSON:
            del content["schema"]


def _judged(spec: Spec, recorder: ScenarioRecorder) -> Iterator[Outcome]:
    for number, interaction in recorder.interactions.items():
        case = recorder.cases[number].value
        label = f"{case.method} {case.operation.path}"
        sent = case.as_curl_command()
        response = interaction.response
        if response is None:
            yield Outcome(label, sent, 0, ["no answer"])
            continue
        media_type = response.headers.get("content-type", [""])[0]
        answer = Answer(
            case.method.lower(), case.operation.path, response.status_code, media_type, response.content or b""
        )
        told = [check.failure_info.failure for check in recorder.checks.get(number, ()) if check.failure_info]
        said = f"{answer.status} {answer.body[:300]!r}"
        faults = [f"{fault}: {said}" for fault in (*map(str, told), *spec.faults(answer))]
        yield Outcome(label, sent, answer.status, faults)
