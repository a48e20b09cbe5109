"""A board in Redis or Valkey on which replicas tell each other what they have found out, so that one of them has to.

Nothing depends on it: while it is away nobody has said anything, and each finds out by itself.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import msgspec

from drivetrain.quota.spots import encode
from drivetrain.quota.wire import Away, Call, Wire
from drivetrain.types import Value
from drivetrain.ulid import ulid

NAME = "board"  # of the script
TOGETHER = 256  # subjects in one question

_found: Final = msgspec.msgpack.Decoder(tuple[str, float, bool]).decode
_told: Final = msgspec.msgpack.Decoder(list[bool]).decode


class Found(Value, frozen=True, kw_only=True):
    text: str | None  # the last finding, None if there is none
    age_s: float  # of it
    mine: bool  # it is too old, and the one who asked is to find out; `post` ends the turn


class Board:
    """Let `run` run. Every question is answered within the deadline."""

    def __init__(self, url: str, *, deadline_s: float = 0.05, prefix: str = "drivetrain") -> None:
        self._wire = Wire(url, deadline_s)
        self._tag = f"{{{prefix}}}:board"
        self._who = ulid()

    async def look(self, subject: str, *, fresh_s: float, turn_s: float) -> Found | None:
        """What is known; None while the board is away. If it is older than `fresh_s`, one of all who ask has the turn,
        for `turn_s` at most."""
        asked = encode((None, "look", self._who, float(fresh_s), float(turn_s)))
        try:
            text, age_s, mine = _found(await self._wire.ask(NAME, self._keys(subject), asked))
        except Away:
            return None
        return Found(text=text if age_s >= 0 else None, age_s=age_s, mine=mine)

    async def post(self, subject: str, text: str, *, keep_s: float) -> None:
        with suppress(Away):
            await self._wire.ask(NAME, self._keys(subject), encode((None, "post", text, float(keep_s))))

    def warn(self, subject: str, for_s: float) -> None:
        """Of something that others will soon find out to be so. Does not wait; may be lost."""
        call = Call(NAME, (self._warning(subject),), encode((None, "warn", self._who, float(for_s))))
        call.answer.add_done_callback(_heard)
        self._wire.send(call)

    async def warned(self, subjects: Sequence[str]) -> frozenset[str]:
        """Those of which somebody else warns now."""
        found: set[str] = set()
        for at in range(0, len(subjects), TOGETHER):
            part = subjects[at : at + TOGETHER]
            keys = [self._warning(subject) for subject in part]
            try:
                told = _told(await self._wire.ask(NAME, keys, encode((None, "warned", self._who))))
            except Away:
                break
            found.update(subject for subject, warned in zip(part, told, strict=True) if warned)
        return frozenset(found)

    async def run(self) -> None:
        """Keep the connection, until cancelled."""
        await self._wire.run(anyio.sleep_forever, lambda: None)

    def _keys(self, subject: str) -> Sequence[str]:
        return f"{self._tag}:found:{subject}", f"{self._tag}:turn:{subject}"

    def _warning(self, subject: str) -> str:
        return f"{self._tag}:warned:{subject}"


def _heard(answer: asyncio.Future[bytes]) -> None:
    """Nobody waits for it, so nobody is told that it failed."""
    answer.exception()
