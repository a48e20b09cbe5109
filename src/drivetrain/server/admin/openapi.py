"""The admin API as OpenAPI 3.1: made from the shapes that its handlers decode and encode, so that it cannot lie."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from drivetrain import __version__
from drivetrain.governance import Attempt, Change, Key, Move
from drivetrain.rollouts.plan import Prompt, Rollout
from drivetrain.server.admin.configuration import Rollback
from drivetrain.server.admin.kinds import COLLECTIONS, Collection, KeyWithSecret, Rotation
from drivetrain.server.admin.query import MOST
from drivetrain.server.admin.reports import FILTERS
from drivetrain.server.admin.rollout_kinds import SHAPES, Moving, NewPrompt, NewRollout, RolloutChange
from drivetrain.server.admin.tables import PARQUET
from drivetrain.store import DIMENSIONS, Body, ConfigRevision, RolloutReport, Turn, UsageRow
from drivetrain.store.timeline import Life

REF = "#/components/schemas/{name}"
NAMES: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
ERRORS: Mapping[int, str] = {
    400: "What was sent cannot be used; the message names the member, the value, and what is expected",
    401: "No key, or one that is not valid",
    403: "The key lacks the scope, or its organisation may not do this",
    404: "There is no such thing, or it belongs to another organisation",
    409: "Somebody else has changed it since it was read, or something depends on it",
    413: "The body is too large",
    415: "The body is compressed",
    503: "The database cannot be asked now",
}
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_MOVES: Mapping[Move, str] = {
    "advance": "To the next stage, behind the last one to its end",
    "pause": "Stay where it is",
    "resume": "Go on",
    "finish": "End an experiment",
    "rollback": "Everybody back to the baseline, for good",
}
_INSTANT = {"type": "string", "description": "Unix seconds, or an ISO 8601 date or time"}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string", "pattern": '^"[0-9]{1,15}"$'},
    "description": "The version that was read; the body may say it instead",
}


@cache
def document() -> bytes:
    """JSON."""
    shapes = [shape for one in COLLECTIONS for shape in (one.shape, one.new, one.change)]
    reports = [KeyWithSecret, Rotation, Rollback, UsageRow, Attempt, Change, Body, ConfigRevision]
    _, components = msgspec.json.schema_components([*shapes, *SHAPES, *reports], ref_template=REF)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Drivetrain, administration",
                "version": __version__,
                "description": "Money is integer micro-dollars, instants are Unix seconds, ids are ULIDs.",
            },
            "security": [{"bearer": []}, {"x-api-key": []}],
            "paths": dict([*_collections(), *_rollouts(), *_prompts(), *_reports()]),
            "components": {
                "schemas": {**components, "Error": _ERROR},
                "responses": {str(status): _error(text) for status, text in ERRORS.items()},
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
        }
    )


def _collections() -> Iterator[tuple[str, Any]]:
    for collection in COLLECTIONS:
        path = f"/admin/v1/{collection.path}"
        yield path, {"get": _list(collection), "post": _create(collection)}
        yield (
            f"{path}/{{id}}",
            {"parameters": [_ID], "get": _get(collection), "patch": _update(collection), "delete": _delete(collection)},
        )
    yield "/admin/v1/keys/{id}/rotate", {"parameters": [_ID], "post": _act("rotate", KeyWithSecret)}
    yield "/admin/v1/keys/{id}/revoke", {"parameters": [_ID], "post": _act("revoke", Key)}
    yield from _engines()


def _engines() -> Iterator[tuple[str, Any]]:
    name = {**_ID, "name": "name", "description": "an engine, or one instance of it, NAME@HOST:PORT"}
    answer = _object({"name": {"type": "string"}, "drained": {"type": "boolean"}})
    told = {"drain": "No new requests for an engine from now on", "resume": "An engine takes requests again"}
    for action, text in told.items():
        operation = _operation(f"{action}_engine", text, answer)
        yield f"/admin/v1/engines/{{name}}/{action}", {"parameters": [name], "post": operation}


def _rollouts() -> Iterator[tuple[str, Any]]:
    path, one = "/admin/v1/rollouts", "/admin/v1/rollouts/{id}"
    filters = [_parameter(name, {"type": "string"}) for name in ("model", "kind", "state")]
    pages = [*filters, _parameter("after", {"type": "string"}), _limit()]
    listed = _page(_ref(Rollout), {"type": ["string", "null"]})
    made = _operation("create_rollout", "Begin a rollout or an experiment", _ref(Rollout), status=201)
    told = "Rollouts and experiments, in the order in which they were made"
    yield (
        path,
        {"get": _operation("list_rollouts", told, listed, pages), "post": made | {"requestBody": _body(NewRollout)}},
    )
    amended = _operation("amend_rollout", "Other guards, or another shadow", _ref(Rollout), [_IF_MATCH])
    yield (
        one,
        {
            "parameters": [_ID],
            "get": _operation("get_rollout", "One rollout or experiment", _ref(Rollout)),
            "patch": amended | {"requestBody": _body(RolloutChange)},
            "delete": _operation("delete_rollout", "Remove one that is over", None, [_IF_MATCH], status=204),
        },
    )
    history, report = "How it came to where it is", "What was seen of its arms, and what would become of it now"
    yield f"{one}/history", _one(_operation("rollout_history", history, _listed(_ref(Turn))))
    yield f"{one}/report", _one(_operation("rollout_report", report, _ref(RolloutReport)))
    for move, meaning in _MOVES.items():
        operation = _operation(f"{move}_rollout", meaning, _ref(Rollout), [_IF_MATCH])
        body = {**_body(Moving), "required": False}
        yield f"{one}/{move}", {"parameters": [_ID], "post": operation | {"requestBody": body}}


def _prompts() -> Iterator[tuple[str, Any]]:
    pages = [_parameter("name", {"type": "string"}), _parameter("after", {"type": "string"}), _limit()]
    listed = _page(_ref(Prompt), {"type": ["string", "null"]})
    made = _operation("add_prompt", "The next version of a name", _ref(Prompt), status=201)
    told = "Versions of prompts, by name"
    yield (
        "/admin/v1/prompts",
        {"get": _operation("list_prompts", told, listed, pages), "post": made | {"requestBody": _body(NewPrompt)}},
    )
    reference = {**_ID, "name": "reference", "description": "NAME@VERSION, or NAME for the newest"}
    got = _operation("get_prompt", "One version of a prompt", _ref(Prompt))
    yield "/admin/v1/prompts/{reference}", {"parameters": [reference], "get": got}


def _one(operation: Any) -> Any:
    return {"parameters": [_ID], "get": operation}


def _list(one: Collection) -> Any:
    filters = [_parameter(name, {"type": "boolean" if name == "disabled" else "string"}) for name in one.filters]
    answer = _page(_ref(one.shape), {"type": ["string", "null"]})
    parameters = [*filters, _parameter("after", {"type": "string"}), _limit()]
    return _operation(f"list_{one.path}", f"{one.path}, in the order in which they were made", answer, parameters)


def _create(one: Collection) -> Any:
    shape = KeyWithSecret if one.kind == "key" else one.shape
    operation = _operation(f"create_{one.kind}", f"Make one of {one.path}", _ref(shape), status=201)
    return operation | {"requestBody": _body(one.new)}


def _get(one: Collection) -> Any:
    return _operation(f"get_{one.kind}", f"One of {one.path}", _ref(one.shape))


def _update(one: Collection) -> Any:
    told = f"Change some members of one of {one.path}; its version has to be said"
    return _operation(f"update_{one.kind}", told, _ref(one.shape), [_IF_MATCH]) | {"requestBody": _body(one.change)}


def _delete(one: Collection) -> Any:
    return _operation(f"delete_{one.kind}", f"Remove one of {one.path}", None, [_IF_MATCH], status=204)


def _act(action: str, shape: type[Any]) -> Any:
    told = {"rotate": "A key in the place of another", "revoke": "End a key for good"}[action]
    operation = _operation(f"{action}_key", told, _ref(shape), [_IF_MATCH])
    return operation | {"requestBody": {**_body(Rotation), "required": False}}


def _reports() -> Iterator[tuple[str, Any]]:
    usage = {"requests": {"type": "integer"}, "rows": {"type": "array", "items": _ref(UsageRow)}}
    asked = [
        _parameter("by", {"type": "string", "description": f"some of {', '.join(DIMENSIONS)}, separated by commas"}),
        _parameter("since", _INSTANT),
        _parameter("until", _INSTANT),
        _parameter("format", {"enum": ["json", "csv", "parquet"]}),
    ]
    narrowed = [_parameter(name, {"type": "string"}) for name in FILTERS]
    own = [_parameter(name, {"type": "string"}) for name in ("model", "engine", "outcome")]
    table = {
        "application/json": {"schema": _object(usage)},
        "text/csv": {"schema": {"type": "string"}},
        PARQUET.decode(): {},
    }
    for path, id, text, more in (
        ("/admin/v1/usage", "usage", "What requests came to", narrowed),
        ("/v1/usage", "own_usage", "What one's own requests came to", own),
    ):
        operation = _operation(id, text, {}, [*asked, *more])
        operation["responses"]["200"]["content"] = table
        yield path, {"get": operation}
    yield from _lookups()
    for path, id, text, answer, parameters in _plain_reports():
        yield path, {"get": _operation(id, text, answer, parameters)}
    yield "/admin/v1/config/rollback", {"post": _rollback()}


def _lookups() -> Iterator[tuple[str, Any]]:
    request = {**_ID, "name": "request_id"}
    yield (
        "/admin/v1/traces/{request_id}",
        {"parameters": [request], "get": _operation("trace", "A request's life, and every attempt", _trace())},
    )
    yield (
        "/admin/v1/explain/{request_id}",
        {
            "parameters": [request],
            "get": _operation("explain", "What was chosen for a request then, and what would be now", _explained()),
        },
    )
    number = {"name": "revision", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 1}}
    yield (
        "/admin/v1/config/revisions/{revision}",
        {
            "parameters": [number],
            "get": _operation("config_revision", "One configuration as it was written", _ref(ConfigRevision)),
        },
    )


def _trace() -> Any:
    step = _object({"at_ms": {"type": "number"}, "step": {"type": "string"}, "attempt": {"type": ["integer", "null"]}})
    life = {field.name: {"type": NAMES[field.type]} for field in msgspec.structs.fields(Life) if field.type in NAMES}
    return _object(
        {
            **life,
            "timeline": {"type": "array", "items": step},
            "attempts": {"type": "array", "items": _ref(Attempt)},
            "body": {"anyOf": [_ref(Body), {"type": "null"}]},
        }
    )


def _explained() -> Any:
    now = {"type": ["object", "null"], "description": "As of GET /v1/explain; null: its model is no more"}
    told = {"request_id": {"type": "string"}, "model": {"type": "string"}, "received_s": {"type": "number"}}
    return _object({**told, "then": {"type": "array", "items": _ref(Attempt)}, "now": now})


def _heading() -> dict[str, Any]:
    told = {"at_s": "number", "actor": "string", "hash": "string"}
    return {"revision": {"type": "integer"}, **{name: {"type": kind} for name, kind in told.items()}}


def _rollback() -> Any:
    told = "Put an earlier configuration back in force"
    answer = _object({**_heading(), "like": {"type": "integer"}})
    return _operation("roll_back_config", told, answer) | {"requestBody": _body(Rollback)}


def _plain_reports() -> Iterator[tuple[str, str, str, Any, Sequence[Any]]]:
    since = _parameter("since", {"type": "integer", "minimum": 0, "description": "the revision before the first line"})
    about = [_parameter("kind", {"type": "string"}), _parameter("object_id", {"type": "string"})]
    lines = _page(_ref(Change), {"type": ["integer", "null"]})
    used = _object({"rule": {"type": "string"}, "used": {"type": "integer"}})
    heading = _object(_heading())
    verdict = {"type": "object", "description": "How far the audit is as it was written, and where it is not"}
    yield "/admin/v1/audit", "audit", "Who changed what, oldest first", lines, [since, _limit(), *about]
    yield "/admin/v1/audit/verify", "verify_audit", "Whether the audit is as it was written", verdict, ()
    yield "/admin/v1/spent", "spent", "What limits and budgets have used", _listed(used), ()
    yield "/admin/v1/config", "config", "The configuration in force, without secrets", {"type": "object"}, ()
    yield "/admin/v1/config/revisions", "config_revisions", "Configurations, newest first", _listed(heading), [_limit()]
    yield "/admin/v1/openapi.json", "openapi", "This document", {"type": "object"}, ()


# --- pieces -----------------------------------------------------------------------------------------------------------


def _operation(id: str, told: str, answer: Any, parameters: Sequence[Any] = (), *, status: int = 200) -> dict[str, Any]:
    content = {} if answer is None else {"content": {"application/json": {"schema": answer}}}
    errors = {str(code): {"$ref": f"#/components/responses/{code}"} for code in ERRORS}
    found: dict[str, Any] = {"operationId": id, "summary": told}
    if parameters:
        found["parameters"] = list(parameters)
    return found | {"responses": {str(status): {"description": told, **content}, **errors}}


def _error(text: str) -> Any:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": REF.format(name="Error")}}}}


def _parameter(name: str, schema: Any) -> Any:
    return {"name": name, "in": "query", "schema": schema}


def _limit() -> Any:
    return _parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST})


def _body(shape: type[Any]) -> Any:
    return {"required": True, "content": {"application/json": {"schema": _ref(shape)}}}


def _ref(shape: type[Any]) -> Any:
    return {"$ref": REF.format(name=shape.__name__)}


def _object(properties: Mapping[str, Any]) -> Any:
    return {"type": "object", "required": list(properties), "properties": properties}


def _listed(item: Any) -> Any:
    return _object({"object": {"const": "list"}, "data": {"type": "array", "items": item}})


def _page(item: Any, following: Any) -> Any:
    return _object(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": item},
            "has_more": {"type": "boolean"},
            "next": following,
        }
    )
