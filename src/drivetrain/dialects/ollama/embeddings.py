"""`/api/embed` and the older `/api/embeddings`, both ways.

Vectors of `/api/embed` have length 1; asked for fewer `dimensions`, they are cut and brought to length 1 again. Those
of `/api/embeddings` are as long as the model made them, where the engine can tell that. An empty input asks for
nothing: it only loads the model.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from drivetrain.dialects.ollama import options, wire
from drivetrain.dialects.ollama.durations import keep_alive, keep_alive_s
from drivetrain.dialects.ollama.errors import model_required
from drivetrain.dialects.ollama.replies import metrics
from drivetrain.dialects.ollama.wire import Wire
from drivetrain.errors import BadRequest, EngineFailed, Unsupported
from drivetrain.types import Embeddings, EmbedRequest, Source, Timings, Usage

EMBED = "ollama.embed"
EMBED_PATH = "/api/embed"
LEGACY = "ollama.embeddings"
_CLOSE = 1e-6  # a length this near 1 is 1: what is normalised already stays as it is


class _Asked(Wire, frozen=True, kw_only=True):
    model: str = ""
    options: dict[str, Any] | None = None
    keep_alive: int | float | str | None = None


class _Embed(_Asked, frozen=True, kw_only=True):
    input: Any = None
    truncate: bool | None = None
    dimensions: int | None = None


class _Legacy(_Asked, frozen=True, kw_only=True):
    prompt: str | None = None


def decode_embed_request(body: bytes) -> EmbedRequest:
    asked = wire.read(body, _Embed)
    return _request(
        asked,
        EMBED,
        body,
        inputs=_inputs(asked.input),
        truncate=asked.truncate is not False,
        dimensions=max(asked.dimensions or 0, 0) or None,  # Ollama takes any number that cuts nothing for "all"
    )


def decode_legacy_embed_request(body: bytes) -> EmbedRequest:
    asked = wire.read(body, _Legacy)
    return _request(asked, LEGACY, body, inputs=(asked.prompt,) if asked.prompt else (), normalised=False)


def _request(asked: _Asked, dialect: str, body: bytes, **said: Any) -> EmbedRequest:
    if not asked.model:
        raise model_required()
    return EmbedRequest(
        model=asked.model,
        keep_alive_s=keep_alive_s(asked.keep_alive),
        options=options.read(asked.options)[1],
        source=Source(dialect=dialect, fields=wire.fields(body)),
        **said,
    )


def _inputs(said: Any) -> tuple[str, ...]:
    if said is None or said == "":
        return ()
    items = [said] if isinstance(said, str) else said
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise BadRequest("invalid input type", param="input")
    return tuple(items)


def encode_embeddings(request: EmbedRequest, embeddings: Embeddings, *, timings: Timings | None = None) -> bytes:
    """The answer of `/api/embed`."""
    vectors = [fit(vector, request.dimensions) for vector in embeddings.vectors]
    return msgspec.json.encode({"model": request.model, "embeddings": vectors, **metrics(embeddings.usage, timings)})


def encode_legacy_embedding(embeddings: Embeddings) -> bytes:
    """The answer of `/api/embeddings`."""
    vector = embeddings.vectors[0] if embeddings.vectors else ()
    _length(vector)
    return msgspec.json.encode({"embedding": vector})


def fit(vector: Sequence[float], dimensions: int | None = None) -> Sequence[float]:
    """The vector's first `dimensions`, of length 1. A vector of zeros stays one."""
    cut = vector[:dimensions] if dimensions is not None else vector
    length = _length(cut)
    if length == 0 or abs(length - 1) < _CLOSE:
        return cut
    return [value / length for value in cut]


def _length(vector: Sequence[float]) -> float:
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise EngineFailed("the engine returned an embedding that holds NaN or infinity")
    return length


# --- for engines ------------------------------------------------------------------------------------------------------


def encode_embed_request(request: EmbedRequest) -> bytes:
    """A body for `EMBED_PATH` of an Ollama server. Raises `Unsupported` for inputs of tokens."""
    if not all(isinstance(item, str) for item in request.inputs):
        raise Unsupported("an Ollama engine embeds text, not tokens", param="input")
    members: dict[str, Any] = {"model": request.model, "input": request.inputs, "truncate": request.truncate}
    if request.dimensions is not None:
        members["dimensions"] = request.dimensions
    if request.keep_alive_s is not None:
        members["keep_alive"] = keep_alive(request.keep_alive_s)
    if request.options:
        members["options"] = request.options
    if request.source is not None and request.source.dialect == EMBED:
        members = {**members, **request.source.fields, "model": request.model}
    return msgspec.json.encode(members)


class _Embedded(Wire, frozen=True, kw_only=True):
    embeddings: list[list[float]] | None = None
    prompt_eval_count: int = 0


def decode_embeddings(body: bytes) -> Embeddings:
    """An Ollama server's answer. Raises `EngineFailed` if it is none."""
    try:
        said = msgspec.json.decode(body, type=_Embedded)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the engine sent what are no embeddings: {error}") from error
    return Embeddings(vectors=tuple(said.embeddings or ()), usage=Usage(prompt=said.prompt_eval_count))
