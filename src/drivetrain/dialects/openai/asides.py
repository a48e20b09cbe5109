"""What choices have that no event says: kept for an answer that is not streamed, whose caller speaks the dialect."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.dialects.openai import wire
from drivetrain.dialects.openai.calls import Calls

# Of a choice, and of its message: what events say.
_SAID: Final = frozenset({"index", "delta", "message", "text", "finish_reason", "logprobs"})
_SAID_IN_MESSAGE: Final = frozenset(
    {"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"}
)
_NULL: Final = Raw(b"null")
_NOTHING: Final = wire.Apart()

_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_object = msgspec.json.Decoder(dict[str, Raw] | None).decode
_integer = msgspec.json.Decoder(int).decode
_encode = msgspec.json.Encoder().encode


class Asides:
    """Of one answer."""

    __slots__ = ("_apart",)

    def __init__(self) -> None:
        self._apart: dict[int, wire.Apart] = {}

    def keep(self, choices: Raw) -> None:
        """Of a frame's choices: `stop_reason`, `annotations`, …"""
        for given in _choices(choices):
            message = _object(given.get("delta", given.get("message", _NULL))) or {}
            if not (given.keys() <= _SAID and message.keys() <= _SAID_IN_MESSAGE):
                own = {name: value for name, value in given.items() if name not in _SAID}
                its = {name: value for name, value in message.items() if name not in _SAID_IN_MESSAGE}
                index = _integer(given["index"]) if "index" in given else 0
                before = self._apart.get(index, _NOTHING)
                self._apart[index] = replace(before, choice=before.choice | own, message=before.message | its)

    def refuse(self, index: int, text: str) -> None:
        """A refusal is text to all dialects but this one."""
        before = self._apart.get(index, _NOTHING)
        self._apart[index] = replace(before, refusal=before.refusal + text)

    def members(self, calls: Mapping[int, Calls]) -> Mapping[str, Raw]:
        """For `Finished.extra`."""
        for index, each in calls.items():
            if each.custom:
                self._apart[index] = replace(self._apart.get(index, _NOTHING), custom=tuple(each.custom))
        return {"choices": Raw(_encode(self._apart))} if self._apart else {}
