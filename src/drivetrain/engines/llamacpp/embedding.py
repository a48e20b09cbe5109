"""What embeddings need beyond llama.cpp's own: inputs cut to the context, vectors cut to the dimensions asked for."""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from drivetrain.dialects.openai import decode_embeddings, decode_error, encode_embed_request
from drivetrain.engines import llamaserver
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import call
from drivetrain.engines.llamacpp.tokens import tokens_of
from drivetrain.errors import BadRequest, ContextOverflow
from drivetrain.types import Embeddings, EmbedRequest

SPECIAL_TOKENS = 2  # that the model may put around an input


async def embed(upstream: Upstream, request: EmbedRequest, *, context: int) -> Embeddings:
    """One vector per input. Raises `ContextOverflow` for an input beyond `context`, unless it may be cut."""
    try:
        embeddings = await _ask(upstream, request)
    except ContextOverflow:
        if not request.truncate:
            raise
        inputs = [await _cut(upstream, text, context - SPECIAL_TOKENS) for text in request.inputs]
        embeddings = await _ask(upstream, replace(request, inputs=tuple(inputs)))
    if request.dimensions is None:
        return embeddings
    lenient = request.source is not None and request.source.dialect.startswith("ollama.")
    vectors = tuple(shortened(vector, request.dimensions, lenient=lenient) for vector in embeddings.vectors)
    return replace(embeddings, vectors=vectors)


def shortened(vector: Sequence[float], dimensions: int, *, lenient: bool) -> Sequence[float]:
    """The first `dimensions` of it, again of length 1, as models are trained for that can be cut.

    Where it has fewer, `lenient` callers get all it has (Ollama's do), others a `BadRequest`.
    """
    if lenient and not 1 <= dimensions < len(vector):
        return vector
    if not 1 <= dimensions <= len(vector):
        raise BadRequest(f"dimensions is {dimensions}; this model gives at most {len(vector)}", param="dimensions")
    if dimensions == len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum(value * value for value in kept)) or 1.0
    return [value / length for value in kept]


async def _ask(upstream: Upstream, request: EmbedRequest) -> Embeddings:
    body = encode_embed_request(replace(request, dimensions=None, source=None))
    more = llamaserver.embedding(request)
    return decode_embeddings(await call(upstream, "/v1/embeddings", body, decode_error, more=more))


async def _cut(upstream: Upstream, text: str | tuple[int, ...], tokens: int) -> tuple[int, ...]:
    if isinstance(text, str):
        text = await tokens_of(upstream, text)
    return text[:tokens]
