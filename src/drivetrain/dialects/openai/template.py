"""What the frames of one stream have in common: a stream's text frames differ in one JSON string only.

Once a frame has been decoded, the bytes before and after its text are known. Frames between the same bytes, each with
exactly one JSON string in its middle, say those strings, and the rest of them need not be decoded again: a run of such
frames costs one split and one decoding.
"""

import re
from operator import itemgetter

import msgspec

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NAMES = (b'"content"', b'"text"')
_MEMBERS = tuple([re.compile(name + rb"\s*:\s*") for name in _NAMES])
_UNKNOWN = b"\0"  # begins no JSON
_END = b"\n\n"

_decode = msgspec.json.Decoder(str).decode
_decode_all = msgspec.json.Decoder(list[str]).decode


class Template:
    """The bytes around the text, and the choice it belongs to."""

    __slots__ = ("_between", "_middle", "after", "before", "index")

    def __init__(self) -> None:
        self.before, self.after = _UNKNOWN, _UNKNOWN  # up to the text, and from it to the end of the frame
        self.index = 0
        self._between = _UNKNOWN  # from one text to the next
        self._middle = itemgetter(slice(None))  # of a frame, without its end

    def run(self, data: bytes) -> list[str] | None:
        """The texts of all the frames of this form, one after another, that `data` is.

        None if it is not such a run: cutting it where one frame meets the next must give exactly one string per frame.
        """
        frames = data.split(_END)  # a short one: what is long costs a search of its own for each frame
        frames.pop()  # what follows the last one: nothing
        strings = list(map(self._middle, frames))
        if self.before + self._between.join(strings) + self.after != data:
            return None
        try:
            texts = _decode_all(b"[" + b",".join(strings) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return texts if len(texts) == len(strings) > 0 and "" not in texts else None

    def learn(self, data: bytes, text: str, index: int, *, completions: bool) -> None:
        """Take the form of a frame that was decoded to this text and nothing else."""
        found = _MEMBERS[completions].search(data)
        string = _STRING.match(data, found.end()) if found else None
        if found is None or string is None or data.count(_NAMES[completions]) != 1:
            return
        if _decode(string.group()) == text:
            self.before, self.after = data[: string.start()], data[string.end() :] + _END
            self.index = index
            self._between = self.after + self.before
            self._middle = itemgetter(slice(string.start(), string.end() - len(data) or None))
