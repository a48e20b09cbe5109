"""The `context` of `/api/generate`: our transcript of a conversation as a list of integers.

Ollama puts its tokens there, and clients hand the list back unread. Engines of other kinds cannot produce tokens that
continue a conversation, so the list holds the messages themselves: a mark, the length, a checksum, then the text's
bytes, four to an integer. A list without our mark comes from a real Ollama server and is for that server only.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from drivetrain.types import Message, Role, Text

_MARK = 0x44545231  # "DTR1"
_HEAD = 3  # mark, bytes, checksum
_Turns = list[tuple[Role, str]]


def encode(messages: Iterable[Message]) -> list[int]:
    """Only text is kept: images of earlier turns are not."""
    data = msgspec.json.encode([(message.role, message.text) for message in messages])
    padded = data + bytes(-len(data) % 4)
    return [_MARK, len(data), zlib.crc32(data), *struct.unpack(f"<{len(padded) // 4}I", padded)]


def is_ours(context: Sequence[int] | None) -> bool:
    return bool(context) and context is not None and context[0] == _MARK


def decode(context: Sequence[int] | None) -> tuple[Message, ...]:
    """The messages, or none if the list is not ours or was damaged."""
    if context is None or not is_ours(context) or len(context) < _HEAD:
        return ()
    try:
        data = struct.pack(f"<{len(context) - _HEAD}I", *context[_HEAD:])[: context[1]]
    except struct.error:
        return ()
    if zlib.crc32(data) != context[2]:
        return ()
    try:
        turns = msgspec.json.decode(data, type=_Turns)
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(Message(role=role, content=(Text(text=text),) if text else ()) for role, text in turns)
