"""The published descriptions of both APIs, as something to hold every answer against.

The files lie beside the project. What they say of answers is taken as it is but for `ERRATA`, each with its reason, and
`ADDED`, which says what they leave open: that an error looks like an error.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
import yaml

SPECS = Path(__file__).parents[3] / "shared" / "specs"
OPENAI = "openai-openapi.yaml"
OLLAMA = "ollama-openapi.yaml"
PREFIX = "#/components/schemas/"
JSON, NDJSON, SSE = "application/json", "application/x-ndjson", "text/event-stream"

Document = dict[str, Any]
Operations = Mapping[str, Sequence[str]]

OURS: Mapping[str, Operations] = {
    OPENAI: {
        "/chat/completions": ["post"],
        "/completions": ["post"],
        "/embeddings": ["post"],
        "/models": ["get"],
        "/models/{model}": ["get", "delete"],
    },
    OLLAMA: {
        **{
            f"/api/{name}": ["post"] for name in ("generate", "chat", "embed", "show", "create", "copy", "pull", "push")
        },
        **{f"/api/{name}": ["get"] for name in ("tags", "ps", "version")},
        "/api/delete": ["delete"],
    },
}

# --- what the descriptions get wrong ----------------------------------------------------------------------------------


def _streamed_completions(document: Document) -> None:
    """A stream of completions is described in words only, as objects of the same shape as the whole answer. Chunks
    before the last have no reason to finish yet: OpenAI and every engine send null."""
    chunk = copy.deepcopy(document["components"]["schemas"]["CreateCompletionResponse"])
    finish = chunk["properties"]["choices"]["items"]["properties"]["finish_reason"]
    chunk["properties"]["choices"]["items"]["properties"]["finish_reason"] = _or_null(finish)
    chunk["properties"]["usage"] = _or_null(chunk["properties"]["usage"])  # as in the chunks of chat, until the last
    document["components"]["schemas"]["CreateCompletionChunk"] = chunk
    content = document["paths"]["/completions"]["post"]["responses"]["200"]["content"]
    content[SSE] = {"schema": {"$ref": f"{PREFIX}CreateCompletionChunk"}}


def _unknown_logprobs(document: Document) -> None:
    """With `echo` the first token of a prompt has no probability: OpenAI and every engine send null."""
    choice = document["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]
    logprobs = choice["properties"]["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):
        logprobs[name]["items"] = _or_null(logprobs[name]["items"])


def _embeddings_in_base64(document: Document) -> None:
    """`encoding_format: base64`, which the official clients ask for, is answered with text."""
    embedding = document["components"]["schemas"]["Embedding"]["properties"]
    embedding["embedding"] = {"anyOf": [embedding["embedding"], {"type": "string", "contentEncoding": "base64"}]}


def _nullable(document: Document) -> None:
    """The document claims OpenAPI 3.1 and says `nullable`, which is a word of 3.0: null is allowed there."""
    document["components"] = _with_nulls(document["components"])


def _with_nulls(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {name: _with_nulls(value) for name, value in node.items()}
    return _or_null(schema) if schema.pop("nullable", False) is True else schema


def _or_null(schema: Any) -> Any:
    return {"anyOf": [schema, {"type": "null"}]}


ERRATA: Mapping[str, Sequence[Callable[[Document], None]]] = {
    OPENAI: (_nullable, _unknown_logprobs, _streamed_completions, _embeddings_in_base64),
    OLLAMA: (),
}

# --- what they leave open ---------------------------------------------------------------------------------------------

# Ollama's description requires no member of any answer. These are in every one, and clients break without them.
REQUIRED: Mapping[str, Sequence[str]] = {
    "GenerateResponse": ["model", "created_at", "response", "done", "done_reason"],
    "GenerateStreamEvent": ["model", "created_at", "response", "done"],
    "ChatResponse": ["model", "created_at", "message", "done", "done_reason"],
    "ChatStreamEvent": ["model", "created_at", "message", "done"],
    "StatusEvent": ["status"],
    "StatusResponse": ["status"],
    "EmbedResponse": ["model", "embeddings"],
    "ShowResponse": ["details", "model_info"],
    "ListResponse": ["models"],
    "ModelSummary": ["name", "model", "modified_at", "size", "digest", "details"],
    "PsResponse": ["models"],
    "Ps": ["name", "model", "size", "digest", "details", "expires_at", "size_vram", "context_length"],
    "VersionResponse": ["version"],
    "TokenLogprob": ["token", "logprob"],
    "Logprob": ["token", "logprob"],
    "ErrorResponse": ["error"],
}


def _require(document: Document) -> None:
    for name, members in REQUIRED.items():
        document["components"]["schemas"][name]["required"] = members
    for name in ("ChatResponse", "ChatStreamEvent"):
        document["components"]["schemas"][name]["properties"]["message"]["required"] = ["role", "content"]


def _say_errors(document: Document) -> None:
    """Neither says how an error looks in an answer, though both define its shape. In a stream that has begun, it is the
    last frame."""
    error = {"$ref": f"{PREFIX}ErrorResponse"}
    for operation in _operations(document):
        operation["responses"]["4XX"] = {"description": "the caller erred", "content": {JSON: {"schema": error}}}
        for media_type, content in operation["responses"]["200"].get("content", {}).items():
            if media_type != JSON:
                content["schema"] = {"anyOf": [error, content["schema"]]}


def _operations(document: Document) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


ADDED: Mapping[str, Sequence[Callable[[Document], None]]] = {OPENAI: (_say_errors,), OLLAMA: (_require, _say_errors)}

# --- reading ----------------------------------------------------------------------------------------------------------


@cache
def described(name: str) -> "Spec":
    """The description of our routes. Skips the test that asks where the file is missing."""
    file = SPECS / name
    if not file.is_file():
        pytest.skip(f"{name} is not beside the project: it belongs into ../shared/specs of the repository")
    document = _ours(yaml.load(file.read_bytes(), yaml.CSafeLoader), OURS[name])
    for change in (*ERRATA[name], *ADDED[name]):
        change(document)
    return Spec(document)


def _ours(document: Document, operations: Operations) -> Document:
    """Our routes of a description, and the schemas that they need."""
    paths = {path: {method: document["paths"][path][method] for method in ms} for path, ms in operations.items()}
    schemas: dict[str, Any] = {}
    wanted = [f"{PREFIX}ErrorResponse", *_references(paths)]
    while wanted:
        kind, _, name = wanted.pop().removeprefix("#/components/").partition("/")
        if name not in schemas and kind == "schemas":
            schemas[name] = document["components"][kind][name]
            wanted += _references(schemas[name])
    responses = document["components"].get("responses", {})
    components = {"schemas": schemas, "responses": responses}
    return {"openapi": document["openapi"], "info": document["info"], "paths": paths, "components": components}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)


# --- judging ----------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    method: str  # in lower case, as in the description
    path: str  # as described, `/models/{model}`
    status: int
    media_type: str
    body: bytes


class Spec:
    """One description. `document` is what generators of requests read; it is not to be changed."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def faults(self, answer: Answer) -> list[str]:
        """What is wrong with an answer, in words; nothing if it conforms."""
        if answer.status >= 500:
            return [f"status {answer.status}: {answer.body[:300]!r}"]
        content = self._content(answer)
        if content is None:
            return [f"status {answer.status} is not described"]
        if not content:
            return [f"a body where none is described: {answer.body[:300]!r}"] if answer.body else []
        media_type = answer.media_type.partition(";")[0]
        if media_type not in content:
            return [f"{media_type!r} is not described for {answer.status}: {answer.body[:300]!r}"]
        validator = self._validator(content[media_type]["schema"])
        return [fault for frame in frames(media_type, answer.body) for fault in _errors(validator, frame)]

    def validator(self, name: str) -> jsonschema_rs.Validator:
        """Of one of the schemas that have a name."""
        return self._validator({"$ref": PREFIX + name})

    def _content(self, answer: Answer) -> Mapping[str, Any] | None:
        """What an answer may hold, by media type. None: there is no such answer."""
        operation = self.document["paths"][answer.path].get(answer.method)
        if operation is None:  # a method that is not described: refused, in the shape of all errors
            operation = {"responses": {"4XX": next(_operations(self.document))["responses"]["4XX"]}}
        responses = operation["responses"]
        described = responses.get(str(answer.status)) or responses.get(f"{answer.status // 100}XX")
        if described is None:
            return None
        if "$ref" in described:
            described = self.document["components"]["responses"][described["$ref"].rpartition("/")[2]]
        content: Mapping[str, Any] = described.get("content", {})
        return {} if answer.method == "head" else content

    def _validator(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        return self._validators[key]


def _errors(validator: jsonschema_rs.Validator, frame: Any) -> list[str]:
    return [f"{error.message} at {error.instance_path} of {frame}"[:1000] for error in validator.iter_errors(frame)]


def frames(media_type: str, body: bytes) -> list[Any]:
    """The JSON documents of an answer, with the framing checked: no blank line, no half line, a proper end."""
    match media_type:
        case "application/x-ndjson":
            assert body.endswith(b"\n")
            lines = [json.loads(line) for line in body[:-1].split(b"\n")]
            assert "error" in lines[-1] or lines[-1].get("done") or lines[-1].get("status") == "success"
            return lines
        case "text/event-stream":
            assert body.endswith(b"\n\n")
            events = [event for event in body[:-2].split(b"\n\n") if not event.startswith(b":")]
            assert all(event.startswith(b"data: ") for event in events)
            data = [event.removeprefix(b"data: ") for event in events]
            if data[-1] == b"[DONE]":
                data.pop()
            else:
                assert "error" in json.loads(data[-1])
            return [json.loads(piece) for piece in data]
        case _:
            return [json.loads(body)]
