"""Between text and a model's tokens, as its worker sees them."""

import msgspec

from drivetrain.dialects.openai import decode_error
from drivetrain.engines._http import Upstream
from drivetrain.engines._remote import call


class _Tokens(msgspec.Struct):
    tokens: tuple[int, ...]


class _Content(msgspec.Struct):
    content: str


async def tokens_of(upstream: Upstream, text: str) -> tuple[int, ...]:
    body = msgspec.json.encode({"content": text})
    return msgspec.json.decode(await call(upstream, "/tokenize", body, decode_error), type=_Tokens).tokens


async def text_of(upstream: Upstream, tokens: tuple[int, ...]) -> str:
    body = msgspec.json.encode({"tokens": tokens})
    return msgspec.json.decode(await call(upstream, "/detokenize", body, decode_error), type=_Content).content
