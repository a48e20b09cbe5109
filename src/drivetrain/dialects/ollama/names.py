"""Model names, `[host/][namespace/]model[:tag]`, and digests: what is valid, how it is shown, what equals what.

A parsed name cannot leave the folder it is joined to: no part is empty, starts with a dot, or holds a separator.
"""

import re
from pathlib import PurePosixPath

from drivetrain.errors import BadRequest
from drivetrain.types import Value

HOST = "registry.ollama.ai"
NAMESPACE = "library"
TAG = "latest"

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", re.ASCII)
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})", re.ASCII)


class Name(Value, frozen=True, kw_only=True):
    """A valid name with every part filled in; the case is kept as given."""

    host: str = HOST
    namespace: str = NAMESPACE
    model: str
    tag: str = TAG

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def shown(self) -> str:
        """The shortest form that still has a tag: `llama3:latest`, `me/llama3:8b`, `hf.co/user/repo:Q4_K_M`."""
        if self.host.lower() != HOST:
            return self.full
        if self.namespace.lower() != NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"

    @property
    def key(self) -> str:
        """Equal for names that differ in case only."""
        return self.full.lower()

    @property
    def path(self) -> PurePosixPath:
        """A relative path of four parts; ":" occurs only in a host with a port."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)


def parse(text: str) -> Name:
    """Raises `BadRequest` with Ollama's text, `invalid model name`."""
    bare = text.removeprefix("https://").removeprefix("http://")
    head, slash, last = bare.rpartition("/")
    model, colon, tag = last.partition(":")
    host, separator, namespace = head.rpartition("/")
    name = Name(
        host=host if separator else HOST,
        namespace=namespace if slash else NAMESPACE,
        model=model,
        tag=tag if colon else TAG,
    )
    if not _valid(name):
        raise BadRequest("invalid model name", param="model")
    return name


def _valid(name: Name) -> bool:
    parts = (name.namespace, name.model, name.tag)
    return (
        _HOST.fullmatch(name.host) is not None
        and all(_PART.fullmatch(part) for part in parts)
        and "." not in name.namespace
        and ".." not in name.full
    )


def is_valid(text: str) -> bool:
    try:
        parse(text)
    except BadRequest:
        return False
    return True


def shown(text: str) -> str:
    """How a listing shows an id of ours: with its tag. An id that is no Ollama name is shown as it is."""
    return parse(text).shown if is_valid(text) else text


def key(text: str) -> str:
    """A key under which all spellings of one name meet: case, default host, namespace and tag."""
    return parse(text).key if is_valid(text) else text


def same(one: str, other: str) -> bool:
    return key(one) == key(other)


def digest(text: str) -> str:
    """The 64 hex digits of `sha256:…` (or `sha256-…`). Raises `BadRequest` for anything else."""
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise BadRequest(f'invalid digest format "{text}"; expected "sha256:" and 64 hex digits', param="digest")
    return found[1].lower()
