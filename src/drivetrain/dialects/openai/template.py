"""What the frames of one stream have in common: a stream's text frames differ in one JSON string only.

Once a frame has been decoded, the bytes before and after its text are known. A frame between the same bytes whose
middle is exactly one JSON string says that string, and the rest of it need not be decoded again: half the cost of a
frame is saved.
"""

import re

import msgspec

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_MEMBERS = (re.compile(rb'"content"\s*:\s*'), re.compile(rb'"text"\s*:\s*'))
_UNKNOWN = b"\0"  # begins no JSON

_decode = msgspec.json.Decoder(str).decode


class Template:
    """The bytes around the text, and the choice it belongs to."""

    __slots__ = ("_after", "_before", "_end", "_start", "index")

    def __init__(self) -> None:
        self._before, self._after = _UNKNOWN, _UNKNOWN
        self._start, self._end = 1, -1
        self.index = 0

    def text(self, data: bytes) -> str:
        """The text of a frame of this form; "" if it has none or another form."""
        if not data.startswith(self._before) or not data.endswith(self._after):
            return ""
        try:
            return _decode(data[self._start : self._end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    def learn(self, data: bytes, text: str, index: int, *, completions: bool) -> None:
        """Take the form of a frame that was decoded to this text and nothing else."""
        found = _MEMBERS[completions].search(data)
        string = _STRING.match(data, found.end()) if found else None
        if found is None or string is None or data.count(found.group().split(b":")[0].rstrip()) != 1:
            return
        if _decode(string.group()) == text:
            self._before, self._after = data[: string.start()], data[string.end() :]
            self._start, self._end = len(self._before), -len(self._after)
            self.index = index
