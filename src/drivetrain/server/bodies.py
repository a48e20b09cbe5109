"""What was said, where a policy asks for it to be kept: the request and the answer, redacted, cut, with an end."""

import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import lru_cache

from drivetrain.config.schema import Bodies as Wanted
from drivetrain.store import Body
from drivetrain.types import Event, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

BLACKENED = "***"
MARGIN = 4096  # characters behind what is kept that are looked at too: a secret may begin before the cut and end there
Batches = AsyncGenerator[Sequence[Event], None]


class Bodies:
    """Listens to answers and hands over what is to be kept."""

    def __init__(self, keep: Callable[[Body], None], redact: Callable[[str], str]) -> None:
        """`keep` must not wait; `redact` takes out what looks like a secret."""
        self._keep = keep
        self._redact = redact

    async def overheard(self, batches: Batches, request_id: str, body: bytes, wanted: Wanted) -> Batches:
        """`batches` as they are; what they say is kept when they end."""
        began_s, words, size = time.time(), list[str](), 0
        try:
            async with aclosing(batches):
                async for events in batches:
                    if size <= wanted.max_bytes + MARGIN:
                        words += (heard := said_in(events))
                        size += sum(map(len, heard))
                    yield events
        finally:
            self.keep(request_id, body, "".join(words), wanted, began_s=began_s)

    def keep(self, request_id: str, body: bytes, answer: str, wanted: Wanted, *, began_s: float) -> None:
        """A request's body and its answer, from `began_s` (Unix time) on."""
        self._keep(
            Body(
                request_id=request_id,
                at_s=began_s,
                delete_s=began_s + wanted.retention_s,
                request=self._kept(body.decode(errors="replace"), wanted),
                answer=self._kept(answer, wanted),
            )
        )

    def _kept(self, text: str, wanted: Wanted) -> str:
        """Redacted first: a cut in a secret would hide it from the redaction. So what is too long to be looked at whole
        loses its end, where that may have happened."""
        looked_at = wanted.max_bytes + MARGIN
        kept = self._redact(text[:looked_at])
        for pattern in wanted.redact:
            kept = compiled(pattern).sub(BLACKENED, kept)
        if len(text) > looked_at:
            kept = kept[:-MARGIN]
        return kept.encode()[: wanted.max_bytes].decode(errors="ignore")


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def said_in(events: Sequence[Event]) -> list[str]:
    """The words of a batch: text, reasoning, calls of tools."""
    words = []
    for event in events:
        match event:
            case TextDelta() | ReasoningDelta():
                words.append(event.text)
            case ToolCallStart():
                words.append(f"\n{event.name}(")
            case ToolCallDelta():
                words.append(event.arguments)
    return words
