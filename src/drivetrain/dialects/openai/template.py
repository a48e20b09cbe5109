"""What the frames of one stream have in common: a stream's text frames differ in one JSON string only.

Once a frame has been decoded, the bytes before and after its text are known. Frames between the same bytes, each with
exactly one JSON string in its middle, say those strings, and the rest of them need not be decoded again: a run of such
frames costs one split and one decoding.
"""

import re

import msgspec

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_MEMBERS = (re.compile(rb'"content"\s*:\s*'), re.compile(rb'"text"\s*:\s*'))
_UNKNOWN = b"\0"  # begins no JSON

_decode = msgspec.json.Decoder(str).decode
_decode_all = msgspec.json.Decoder(list[str]).decode


class Template:
    """The bytes around the text, and the choice it belongs to."""

    __slots__ = ("after", "before", "index")

    def __init__(self) -> None:
        self.before, self.after = _UNKNOWN, _UNKNOWN  # up to the text, and from it to the end of the frame
        self.index = 0

    def run(self, data: bytes) -> list[str] | None:
        """The texts of all the frames of this form, one after another, that `data` is.

        None if it is not such a run: cutting it where one frame meets the next must give exactly one string per frame.
        """
        before, after, start = self.before, self.after, len(self.before)
        strings = [frame[start:] for frame in data.split(after)]
        strings.pop()  # what follows the last one: nothing
        if before + (after + before).join(strings) + after != data:
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
        if found is None or string is None or data.count(found.group().split(b":")[0].rstrip()) != 1:
            return
        if _decode(string.group()) == text:
            self.before, self.after = data[: string.start()], data[string.end() :] + b"\n\n"
            self.index = index
