"""Who may speak to a server on this machine: the Host guard against DNS rebinding, and browsers' origins. Pure."""

import ipaddress
import re
import socket
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from drivetrain.server.exchange import Header

LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
# What Ollama admits without being told: pages of this machine and desktop shells.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104  # names to compare with, nothing is bound
LOCAL_SCHEMES = ("app", "file", "tauri", "vscode-webview", "vscode-file")
_STAINLESS = """
    arch async custom-poll-interval helper-method lang os package-version poll-helper retry-count runtime
    runtime-version timeout read-timeout
"""
ALLOWED_HEADERS = ", ".join(
    [
        *["Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta", "X-Api-Key"],
        *["Anthropic-Version", "Anthropic-Beta", "X-Request-Id"],
        *(f"x-stainless-{name}" for name in _STAINLESS.split()),
    ]
)
PREFLIGHT: tuple[Header, ...] = (
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"),
    (b"access-control-allow-headers", ALLOWED_HEADERS.encode()),
    (b"access-control-max-age", b"43200"),
)


def is_loopback(host: str) -> bool:
    """Whether a listening address is reached from this machine only."""
    if host in ("localhost", ""):
        return host != ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def host_allowed(host: str) -> bool:
    """Whether a `Host` header may reach a server on loopback: local names and private addresses, no others."""
    name = _hostname(host).lower().rstrip(".")
    if name in ("", "localhost", socket.gethostname().lower()) or name.endswith(LOCAL_SUFFIXES):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified


def _hostname(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if re.fullmatch(r"[^:]*:\d+", host) else host


def origin_allowed(origin: str, further: Iterable[str]) -> bool:
    """Whether a browser page of this origin may read our answers. `further` may hold `*` anywhere in a pattern."""
    if any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), origin) for pattern in further):
        return True
    parts = urlsplit(origin)
    if parts.scheme in LOCAL_SCHEMES:
        return True
    return parts.scheme in ("http", "https") and parts.hostname in LOCAL_HOSTS


def origin_headers(origin: bytes) -> list[Header]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
