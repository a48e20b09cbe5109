"""A webhook: each batch as JSON lines in one signed POST, tried again until it is taken."""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from drivetrain.sinks.batches import Batch
from drivetrain.sinks.posting import Poster
from drivetrain.sinks.target import Answer

SIGNATURE = "x-drivetrain-signature"
DELIVERY = "x-drivetrain-delivery"


class Webhook:
    """Whoever listens may get a batch twice, after a crash or a lost answer: it then has the same delivery."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str], secret: str | None) -> None:
        self._name = name
        self._secret = secret
        self._poster = Poster(url, headers)

    async def prepare(self, place: str) -> str:
        return place

    async def send(self, batch: Batch) -> Answer:
        content = body(batch)
        headers = {
            "content-type": "application/x-ndjson",
            DELIVERY: f"{self._name}-{batch.first}-{batch.last}-{len(batch.rows)}",
        }
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, content)
        verdict, _ = await self._poster.post(content, headers)
        return verdict

    async def aclose(self) -> None:
        await self._poster.aclose()


def body(batch: Batch) -> bytes:
    """One JSON object a line: `seq`, and the fields of the row."""
    return b"".join(_line(seq, msgspec.to_builtins(attempt)) for seq, attempt in batch.rows)


def _line(seq: int, fields: dict[str, object]) -> bytes:
    return msgspec.json.encode({"seq": seq} | fields) + b"\n"


def signature(secret: str, content: bytes) -> str:
    """What the receiver compares with its own reckoning, over the bytes as they came."""
    return "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
