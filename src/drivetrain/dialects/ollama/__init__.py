"""Ollama's own API as a dialect, both ways. Sans-I/O, and reads no clock but one that it is given.

`CHAT` and `GENERATE` are the surfaces that generate; `surface_for` tells by which one an Ollama engine is asked.
Everything else Ollama serves under `/api` is here as plain functions: `decode_*_request` reads what a caller sends,
`encode_*` writes an answer, and for engines `encode_*_request` and `decode_*` do the reverse.

Decisions a caller can see:

- `context`, in the final frame of `/api/generate`, is our transcript of the conversation as integers, for clients hand
  it back unread (see `context`); a real Ollama engine's own goes out, and comes back to it, untouched.
- `template` in a request is rendered if it uses what such templates use (see `template`), and refused if not.
- Options of load time (`num_ctx`, …), and others that `Sampling` lacks, are in `Request.options`. Unknown ones are
  ignored.
- A conversation beyond the context loses its oldest turns (see `history`), unless `truncate` is false.
- `DEFAULTS` is what Ollama assumes where neither the request nor the model says a value. It is for engines of other
  kinds: an Ollama engine knows its own, and its models' parameters come before them.
"""

from drivetrain.dialects.ollama import context, durations, errors, modelfile, names, options
from drivetrain.dialects.ollama.embeddings import (
    EMBED_PATH,
    decode_embed_request,
    decode_embeddings,
    decode_legacy_embed_request,
    encode_embed_request,
    encode_embeddings,
    encode_legacy_embedding,
)
from drivetrain.dialects.ollama.errors import decode_error, encode_error
from drivetrain.dialects.ollama.history import MOST_TRIES, shortened
from drivetrain.dialects.ollama.listing import (
    API_VERSION,
    Shown,
    decode_ps,
    decode_show,
    decode_tags,
    encode_ps,
    encode_show,
    encode_tags,
    encode_version,
)
from drivetrain.dialects.ollama.management import (
    SUCCESS,
    CopyRequest,
    CreateRequest,
    ShowRequest,
    StatusLine,
    TransferRequest,
    decode_copy_request,
    decode_create_request,
    decode_delete_request,
    decode_pull_request,
    decode_push_request,
    decode_show_request,
    decode_status,
    encode_load_request,
    encode_status,
)
from drivetrain.dialects.ollama.options import DEFAULTS
from drivetrain.dialects.ollama.replies import encode_load
from drivetrain.dialects.ollama.requests import wants_load
from drivetrain.dialects.ollama.surfaces import CHAT, GENERATE, surface_for

__all__ = [
    "API_VERSION",
    "CHAT",
    "DEFAULTS",
    "EMBED_PATH",
    "GENERATE",
    "MOST_TRIES",
    "SUCCESS",
    "CopyRequest",
    "CreateRequest",
    "ShowRequest",
    "Shown",
    "StatusLine",
    "TransferRequest",
    "context",
    "decode_copy_request",
    "decode_create_request",
    "decode_delete_request",
    "decode_embed_request",
    "decode_embeddings",
    "decode_error",
    "decode_legacy_embed_request",
    "decode_ps",
    "decode_pull_request",
    "decode_push_request",
    "decode_show",
    "decode_show_request",
    "decode_status",
    "decode_tags",
    "durations",
    "encode_embed_request",
    "encode_embeddings",
    "encode_error",
    "encode_legacy_embedding",
    "encode_load",
    "encode_load_request",
    "encode_ps",
    "encode_show",
    "encode_status",
    "encode_tags",
    "encode_version",
    "errors",
    "modelfile",
    "names",
    "options",
    "shortened",
    "surface_for",
    "wants_load",
]
