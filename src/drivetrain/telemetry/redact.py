"""Keeps secrets and prompts out of what is written down. Pure, but for the secrets it was told."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"

# Members that are secrets whatever they hold, and members that hold what a caller wrote.
SECRET_NAMES = frozenset(
    {"api_key", "apikey", "authorization", "cookie", "password", "proxy_authorization", "secret", "token", "x_api_key"}
)
CONTENT_NAMES = frozenset({"body", "content", "completion", "input", "messages", "prompt", "text"})

_NAMED = (
    r"(?i)\b((?:x[-_])?api[-_]?key|(?:access[-_]?)?token|password|passwd|secret)([\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;}]+"
)
_PATTERNS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(sk|dt|gw|hf|pk|rk|gsk|xai|ghp)[-_][A-Za-z0-9_-]{8,}"), rf"\1-{HIDDEN}"),
    (re.compile(_NAMED), rf"\1\2{HIDDEN}"),
    (re.compile(r"(\w+://)[^/\s:@]*:[^/\s@]+@"), rf"\1{HIDDEN}@"),  # a password in a URL
)


class Redactor:
    """Replaces what looks like a secret, and every secret that the configuration holds."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """The secrets of the configuration in force, instead of those before. Short ones would hide ordinary words."""
        texts = sorted({secret for secret in secrets if len(secret) >= 6}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, texts))) if texts else None

    def text(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def value(self, value: Any, name: str = "") -> Any:
        """A field of a log line, as it may be written."""
        plain = name.lower().replace("-", "_")
        if plain in SECRET_NAMES:
            return HIDDEN
        if plain in CONTENT_NAMES:
            return f"({len(value)} long)" if hasattr(value, "__len__") else HIDDEN
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {key: self.value(item, str(key)) for key, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self.text(str(value))
