"""OpenAI's API: chat completions, completions, embeddings, models and errors, both ways.

What does not cross from another dialect: load-time options and keep-alive (no words for them), refusals as such (they
become text), citations and audio in answers, tools other than functions. `effort` "max" goes to engines as "high".
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from drivetrain.dialects import Decoder, Reply, Surface
from drivetrain.dialects.openai import errors, requests
from drivetrain.dialects.openai.embeddings import (
    EMBEDDINGS,
    decode_embed_request,
    decode_embeddings,
    encode_embed_request,
    encode_embeddings,
)
from drivetrain.dialects.openai.models import decode_models, encode_model, encode_models
from drivetrain.dialects.openai.reply import ChatReply, CompletionReply
from drivetrain.dialects.openai.stream import StreamDecoder
from drivetrain.errors import DrivetrainError
from drivetrain.types import Request

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBEDDINGS",
    "around",
    "decode_embed_request",
    "decode_embeddings",
    "decode_error",
    "decode_models",
    "encode_embed_error",
    "encode_embed_request",
    "encode_embeddings",
    "encode_error",
    "encode_model",
    "encode_models",
]

around = requests.around
decode_error = errors.decode
encode_error = errors.encode
encode_embed_error = partial(errors.encode, content="input")


class OpenAISurface:
    """A `drivetrain.dialects.Surface`. `name` is that of the source of requests decoded by it."""

    def __init__(
        self,
        name: str,
        path: str,
        *,
        decode: Callable[[bytes], Request],
        encode: Callable[[Request], bytes],
        reply: type[ChatReply] | type[CompletionReply],
    ) -> None:
        self.name = name
        self.path = path
        self._decode = decode
        self._encode = encode
        self._reply = reply

    def decode_request(self, body: bytes) -> Request:
        return self._decode(body)

    def reply(self, request: Request, *, id: str, created_s: float) -> Reply:
        return self._reply(request, id=id, created_s=created_s)

    def encode_request(self, request: Request) -> bytes:
        return self._encode(request)

    def decoder(self, request: Request) -> Decoder:
        return StreamDecoder(request, self.name)

    def decode_error(self, status: int, body: bytes) -> DrivetrainError:
        return errors.decode(status, body)

    def encode_error(self, error: DrivetrainError) -> bytes:
        return errors.encode(error, content=self._reply.content)


CHAT: Final[Surface] = OpenAISurface(
    requests.CHAT,
    "/chat/completions",
    decode=requests.decode_chat,
    encode=requests.encode_chat,
    reply=ChatReply,
)
COMPLETIONS: Final[Surface] = OpenAISurface(
    requests.COMPLETIONS,
    "/completions",
    decode=requests.decode_completion,
    encode=requests.encode_completion,
    reply=CompletionReply,
)
