"""Embeddings in OpenAI's form, both ways.

The official clients ask for base64 (little-endian float32) unless told otherwise. Engines are always asked for numbers:
all of them can send those, and some get base64 wrong. Both are understood.
"""

import base64
import binascii
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from drivetrain.dialects.openai import errors, invalid, messages, requests, usage, wire
from drivetrain.errors import BadRequest, EngineFailed
from drivetrain.types import Embeddings, EmbedRequest, Source

EMBEDDINGS: Final = "openai.embeddings"
PATH: Final = "/embeddings"

_request = msgspec.json.Decoder(wire.EmbedIn)
_answer = msgspec.json.Decoder(wire.EmbeddingsOut)
_encode = msgspec.json.Encoder().encode


def decode_embed_request(body: bytes) -> EmbedRequest:
    given = invalid.read(_request, body)
    if not given.model.strip():
        raise BadRequest("'model' is empty; name a model", param="model")
    if given.encoding_format not in (None, "float", "base64"):
        messages.refuse("encoding_format", given.encoding_format, "float or base64")
    inputs = requests.inputs(given.input, "input")
    for at, text in enumerate(inputs):
        if not text:
            raise BadRequest(f"'input[{at}]' is empty; there is nothing to embed", param="input")
    return EmbedRequest(
        model=given.model,
        inputs=inputs,
        dimensions=given.dimensions,
        truncate=False,
        source=Source(dialect=EMBEDDINGS, fields=invalid.fields(body)),
    )


def encode_embeddings(request: EmbedRequest, embeddings: Embeddings) -> bytes:
    """The answer to a caller, in the encoding asked for. Vectors longer than the dimensions asked for are cut and
    normalised anew, as models trained for it allow."""
    wanted = request.source.fields.get("encoding_format") if request.source is not None else None
    as_text = wanted is not None and bytes(wanted) == b'"base64"'
    data = []
    for index, vector in enumerate(embeddings.vectors):
        fitted = _fitted(vector, request.dimensions)
        value = _to_base64(fitted) if as_text else fitted
        data.append({"object": "embedding", "index": index, "embedding": value})
    took = embeddings.usage
    told = {"prompt_tokens": took.prompt, "total_tokens": took.prompt, **usage.cost(took)}
    return _encode({"object": "list", "data": data, "model": request.model, "usage": told})


def encode_embed_request(request: EmbedRequest) -> bytes:
    source = request.source
    if source is not None and source.dialect == EMBEDDINGS:
        return _encode({**source.fields, "model": request.model, "encoding_format": "float"})
    inputs = request.inputs[0] if len(request.inputs) == 1 and isinstance(request.inputs[0], str) else request.inputs
    body: dict[str, Any] = {"model": request.model, "input": inputs, "encoding_format": "float"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    return _encode(body)


def decode_embeddings(body: bytes) -> Embeddings:
    """An engine's answer. Raises the error that it holds, or `EngineFailed` if it cannot be read."""
    try:
        answer = _answer.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if (told := errors.decode_frame(body)) is not None:
            raise told from error
        raise EngineFailed(f"the engine sent embeddings that cannot be read: {error}") from error
    ordered = sorted(enumerate(answer.data), key=lambda pair: pair[0] if pair[1].index is None else pair[1].index)
    vectors = tuple(_numbers(item.embedding) for _, item in ordered)
    return Embeddings(vectors=vectors, usage=usage.decode(answer.usage))


def _numbers(given: list[float] | str) -> Sequence[float]:
    if not isinstance(given, str):
        return given
    try:
        numbers = array("f", base64.b64decode(given, validate=True))
    except (binascii.Error, ValueError) as error:
        raise EngineFailed(f"the engine sent an embedding that is not base64 of float32: {error}") from error
    return _little_endian(numbers).tolist()


def _to_base64(vector: Sequence[float]) -> str:
    return base64.b64encode(_little_endian(array("f", vector)).tobytes()).decode()


def _little_endian(numbers: "array[float]") -> "array[float]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _fitted(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    if dimensions is None or len(vector) <= dimensions:
        return vector
    cut = vector[:dimensions]
    norm = math.sqrt(math.fsum(value * value for value in cut))
    return [value / norm for value in cut] if norm else cut
