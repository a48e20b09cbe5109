"""Ids of models, and the folder that each one has: one level deep, reversible, never outside the library.

An id may hold "/" and ":" (`org/name`, `llama3.2:3b`, `hf.co/org/repo:Q4_K_M`); its folder is the percent-encoded id.
"""

import unicodedata
from urllib.parse import quote, unquote

from drivetrain.errors import BadRequest

MAX_FOLDER_BYTES = 200  # file systems allow 255; the rest is for temporary names


def check(id: str) -> str:
    """The id itself. Raises `BadRequest` if no model can have it, and says why."""
    reason = _flaw(id)
    if reason:
        raise BadRequest(f"invalid model name: {id[:80]!r} {reason}", param="model")
    return id


def _flaw(id: str) -> str:
    if not id:
        return "is empty"
    if any(unicodedata.category(char)[0] == "C" for char in id):
        return "holds a control character"
    if "\\" in id:
        return "holds a backslash"
    for segment in id.split("/"):
        if not segment:
            return "has an empty segment"
        if segment.strip(".") == "":
            return f"has the segment {segment!r}"
        if segment != segment.strip():
            return "has a segment with white space around it"
    if len(_encoded(id)) > MAX_FOLDER_BYTES:
        return f"is too long: {MAX_FOLDER_BYTES} characters at most"
    return ""


def _encoded(id: str) -> str:
    text = quote(id, safe="")
    if text.startswith("."):  # hidden folders are not models
        text = "%2E" + text[1:]
    if text.endswith("."):  # Windows drops it
        text = text[:-1] + "%2E"
    return text


def folder(id: str) -> str:
    """The name of the folder of this id. Raises `BadRequest` for an id that is none."""
    return _encoded(check(id))


def parse(folder: str) -> str:
    """The id of a folder. Raises `BadRequest` for one that can be no model's."""
    return check(unquote(folder, errors="replace"))
