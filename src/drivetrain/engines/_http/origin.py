"""Where an engine answers: a base URL taken apart and checked, and the head of a request to it."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from drivetrain.errors import BadRequest

DEFAULT_PORTS = {"http": 80, "https": 443}
PATH = re.compile(r"[!-~]*")  # printable ASCII, no space: nothing that could end a request line
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2
FIELD_VALUE = re.compile(r"[\t -~\x80-\xff]*")  # RFC 9110 §5.5: no control characters, so no injected header
OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """One place to connect to. Either `socket` or `host` is set."""

    url: str  # for messages: no credentials, no query
    host: str = ""
    port: int = 0
    secure: bool = False
    socket: str | None = None  # path of a Unix socket
    prefix: str = ""  # path in front of every request's, no slash at the end
    authority: str = "localhost"  # value of the Host header


def parse_origin(url: str) -> Origin:
    """Takes `http://host[:port][/prefix]`, `https://…` or `unix:/path/to.sock`. Raises `BadRequest` for all else."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise BadRequest(f"URL {url!r} must hold an absolute path: unix:/path/to.sock")
        return Origin(url=url, socket=path)
    if "@" in url:
        raise BadRequest("an engine's URL may not hold credentials; use `api_key` or `headers`")
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadRequest(f"URL {url!r} is not valid: {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise BadRequest(f"URL {url!r} must look like http://host:port, https://host or unix:/path/to.sock")
    if parts.query or parts.fragment:
        raise BadRequest(f"URL {url!r} may not hold a query or a fragment")
    if not PATH.fullmatch(parts.path):
        raise BadRequest(f"path {parts.path!r} of the URL must be percent-encoded ASCII")
    authority = _authority(host, port)
    return Origin(
        url=f"{parts.scheme}://{authority}{parts.path.rstrip('/')}",
        host=host,
        port=port or DEFAULT_PORTS[parts.scheme],
        secure=parts.scheme == "https",
        prefix=parts.path.rstrip("/"),
        authority=authority,
    )


def _authority(host: str, port: int | None) -> str:
    try:
        name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise BadRequest(f"host {host!r} is not a valid name: {error}") from error
    return name if port is None else f"{name}:{port}"


def common_head(origin: Origin, api_key: str | None, headers: Mapping[str, str]) -> bytes:
    """The header lines that every request to this origin shares. Raises `BadRequest` for a header that may not be."""
    lines = {"host": origin.authority, "user-agent": "drivetrain", "accept-encoding": "identity"}
    if api_key:
        lines["authorization"] = f"Bearer {api_key}"
    for name, value in headers.items():
        if name.lower() in OURS or not TOKEN.fullmatch(name):
            raise BadRequest(f"header {name!r} may not be set for an engine")
        lines[name.lower()] = value
    for name, value in lines.items():
        if not FIELD_VALUE.fullmatch(value):
            raise BadRequest(f"the value of header {name!r} holds a character that no header may hold")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")


def request_head(method: str, path: str, common: bytes) -> bytes:
    """All of a request but its content's length and content. `path` comes percent-encoded."""
    if not path.startswith("/") or not PATH.fullmatch(path):
        raise BadRequest(f"path {path!r} must start with / and be percent-encoded ASCII")
    content = b"content-type: application/json\r\ncontent-length: " if method == "POST" else b""
    return f"{method} {path} HTTP/1.1\r\n".encode("ascii") + common + content
