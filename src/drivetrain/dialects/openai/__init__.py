"""OpenAI's API: chat completions, completions, embeddings, models and errors, both ways.

What does not cross from another dialect: load-time options and keep-alive (no words for them), refusals as such (they
become text), citations and audio in answers, tools other than functions. `effort` "max" goes to engines as "high".
"""

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
    "decode_embed_request",
    "decode_embeddings",
    "decode_error",
    "decode_models",
    "encode_embed_request",
    "encode_embeddings",
    "encode_error",
    "encode_model",
    "encode_models",
]

decode_error = errors.decode
encode_error = errors.encode


class ChatSurface:
    name = requests.CHAT
    path = "/chat/completions"

    def decode_request(self, body: bytes) -> Request:
        return requests.decode_chat(body)

    def reply(self, request: Request, *, id: str, created_s: float) -> Reply:
        return ChatReply(request, id=id, created_s=created_s)

    def encode_request(self, request: Request) -> bytes:
        return requests.encode_chat(request)

    def decoder(self, request: Request) -> Decoder:
        return StreamDecoder(request, self.name)

    def decode_error(self, status: int, body: bytes) -> DrivetrainError:
        return errors.decode(status, body)

    def encode_error(self, error: DrivetrainError) -> bytes:
        return errors.encode(error)


class CompletionsSurface:
    name = requests.COMPLETIONS
    path = "/completions"

    def decode_request(self, body: bytes) -> Request:
        return requests.decode_completion(body)

    def reply(self, request: Request, *, id: str, created_s: float) -> Reply:
        return CompletionReply(request, id=id, created_s=created_s)

    def encode_request(self, request: Request) -> bytes:
        return requests.encode_completion(request)

    def decoder(self, request: Request) -> Decoder:
        return StreamDecoder(request, self.name)

    def decode_error(self, status: int, body: bytes) -> DrivetrainError:
        return errors.decode(status, body)

    def encode_error(self, error: DrivetrainError) -> bytes:
        return errors.encode(error)


CHAT: Final[Surface] = ChatSurface()
COMPLETIONS: Final[Surface] = CompletionsSurface()
