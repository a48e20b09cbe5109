"""What a prompt begins with, as numbers that are the same in every replica. Pure.

Only the beginning is looked at: `prefix_bytes` of what stands before the conversation, and as many of its first
message. So a conversation keeps its number while it grows, and no prompt is kept to be compared.
"""

from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from drivetrain.types import EmbedRequest, Image, Message, Request, Text

SESSION = ("prompt_cache_key", "session_id", "user")  # what bodies call a conversation, or who has it
_SYSTEM = ("system", "developer")
_text = msgspec.json.Decoder(str).decode


def of_session(request: Request | EmbedRequest, header: str) -> int:
    """0 if nobody named one."""
    name = header or _named(request)
    return _number(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()) if name else 0


def of_prefix(request: Request | EmbedRequest, prompt: str, prefix_bytes: int) -> tuple[int, int]:
    """Of what stands before the conversation, and of that with the first message. `prompt`: the name of a system prompt
    that the request will get. Both 0 for what no cache helps with: embeddings and token ids."""
    if isinstance(request, EmbedRequest):
        return 0, 0
    if request.completion is not None:
        first = request.completion.prompts[0] if request.completion.prompts else ""
        return _one(first, prefix_bytes) if isinstance(first, str) else (0, 0)
    messages = request.messages
    if not messages:
        return 0, 0
    begun = next((at for at, message in enumerate(messages) if message.role not in _SYSTEM), len(messages))
    seen = blake2b(prompt.encode(), digest_size=8)
    for piece in _pieces(request, messages[:begun], prefix_bytes):
        seen.update(piece.encode(errors="surrogatepass"))
    shared = seen.copy() if begun or request.tools or prompt else None
    if begun < len(messages):
        for piece in _said(messages[begun], prefix_bytes):
            seen.update(piece.encode(errors="surrogatepass"))
    own = _number(seen.digest())
    return (own if shared is None else _number(shared.digest())), own


def _named(request: Request | EmbedRequest) -> str:
    fields = request.source.fields if request.source is not None else {}
    for member in SESSION:
        if member in fields:
            try:
                if told := _text(fields[member]):
                    return told
            except msgspec.DecodeError:
                continue
    return (request.user or "") if isinstance(request, Request) else ""


def _one(text: str, prefix_bytes: int) -> tuple[int, int]:
    number = _number(blake2b(text[:prefix_bytes].encode(errors="surrogatepass"), digest_size=8).digest())
    return number, number


def _pieces(request: Request, system: tuple[Message, ...], left: int) -> Iterator[str]:
    """System prompt, then tools, up to so many characters: engines put one before the other, most of them so."""
    for message in system:
        for piece in _said(message, left):
            yield piece
            left -= len(piece)
    for tool in request.tools:
        if left <= 0:
            return
        yield tool.name
        left -= len(tool.name)


def _said(message: Message, left: int) -> Iterator[str]:
    for part in message.content:
        if left <= 0:
            return
        said = part.text if isinstance(part, Text) else part.url if isinstance(part, Image) else part.data
        yield said[:left]
        left -= len(said)


def _number(digest: bytes) -> int:
    return int.from_bytes(digest) or 1
