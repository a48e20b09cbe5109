"""Images that a request names by address: refused, or fetched by us under strict rules and passed on as `data:`.

An engine must never be sent to an address that a caller made up: it stands inside the network. What
`server.media_hosts` admits is fetched here instead, from public addresses only. A name is resolved once and the
connection goes to the address that was checked, so that an answer of the name server that changes between the two
changes nothing; each redirect is a new address with the same rules.
"""

import asyncio
import base64
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from drivetrain import web
from drivetrain.config.schema import Server as ServerConfig
from drivetrain.errors import BadRequest
from drivetrain.types import EmbedRequest, Image, Message, Request

MAX_BYTES = 8 * 2**20  # of one image
MAX_IMAGES = 16  # of one request, that have to be fetched
MAX_REDIRECTS = 3
WHOLE_S = 20.0  # for all images of a request
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
)
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215
DATA = "data:"
INSTEAD = "send the image itself, as data:image/png;base64,…"
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]  # host, port → addresses
Fetch = Callable[[str, str, int], Awaitable[web.Fetched]]  # URL, address to connect to, most bytes
_members = msgspec.json.Decoder().decode


class Media:
    """Looks at the images of requests. `configure` it anew when the configuration changes."""

    def __init__(self, config: ServerConfig, resolve: Resolve | None = None, fetch: Fetch | None = None) -> None:
        self._resolve = resolve or resolved
        self._fetch = fetch or web.fetch_pinned
        self.configure(config)

    def configure(self, config: ServerConfig) -> None:
        self._hosts = config.media_hosts

    async def inlined(self, request: Request) -> Request:
        """The request with every image in it. Raises `BadRequest` for an address that is not fetched."""
        for message in request.messages:
            for part in message.content:
                if type(part) is Image and not part.url.startswith(DATA):
                    return await self._fetched(request)
        return request

    async def _fetched(self, request: Request) -> Request:
        addresses = _addresses(request.messages)
        for url in addresses:
            self._check_host(url)
        if len(addresses) > MAX_IMAGES:
            raise _refused(f"{len(addresses)} images are named by address; at most {MAX_IMAGES} are fetched")
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(WHOLE_S):
                for url in addresses:
                    found[url] = await self._image(url)
        except TimeoutError:
            raise _refused(f"the images did not come within {WHOLE_S:g} s") from None
        return _with(request, found)

    async def _image(self, url: str) -> str:
        address = url
        for _ in range(MAX_REDIRECTS + 1):
            host, port = self._check_host(address)
            pinned = public(await self._resolve(host, port), host)
            answer = await self._ask(address, pinned)
            if answer.status not in REDIRECTS:
                return _as_data(answer, url)
            address = urljoin(address, answer.location)
        raise _refused(f"{_shown(url)} leads from one address to another too often")

    async def _ask(self, url: str, pinned: str) -> web.Fetched:
        try:
            return await self._fetch(url, pinned, MAX_BYTES)
        except web.Unreachable as error:
            raise _refused(f"{_shown(url)} cannot be fetched: {error.message}") from error

    def _check_host(self, url: str) -> tuple[str, int]:
        """Host and port. Raises `BadRequest` for what is not to be asked."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise _refused(f"{_shown(url)} is no address: {error}") from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise _refused(f"{_shown(url)} is not fetched")
        if not any(_means(pattern, host) for pattern in self._hosts):
            raise _refused(f"{_shown(url)} is not fetched: its host is not in server.media_hosts")
        return host, port or (443 if parts.scheme == "https" else 80)


def check_embedding(request: EmbedRequest) -> None:
    """Some engines take a conversation here too, images and all: it would pass us by. Raises `BadRequest`."""
    if request.source is not None and "messages" in request.source.fields:
        raise BadRequest("'messages' cannot be embedded here; give the texts as 'input'", param="messages")


async def resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host by the system's resolver. Raises `BadRequest` if it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _refused(f"host {host[:200]!r} is not found: {error}") from error
    return [str(address[0]) for *_, address in found]


def public(addresses: Sequence[str], host: str) -> str:
    """One of the addresses to connect to. Raises `BadRequest` if one of them is not on the public internet."""
    if not addresses:
        raise _refused(f"host {host[:200]!r} has no address")
    for address in addresses:
        if not is_public(address):
            raise _refused(f"host {host[:200]!r} is not on the public internet")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address is one that anybody could reach: not this machine's, its network's or a provider's own."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or _translated(ip)
        if inner is not None:
            return is_public(str(inner))
        if ip in LOCAL_NAT64:
            return False
    return ip.is_global and not ip.is_multicast


def _translated(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address behind one of NAT64 or of the old compatible kind (RFC 4291 §2.5.5.1)."""
    if ip in NAT64 or (ip.packed[:12] == bytes(12) and int(ip) > 1):
        return ipaddress.IPv4Address(ip.packed[12:])
    return None


def _means(pattern: str, host: str) -> bool:
    """`*` stands for one or more labels: `*.example.com` is not `example.com`."""
    return re.fullmatch(re.escape(pattern.lower()).replace(r"\*", ".+"), host.lower().rstrip(".")) is not None


def _addresses(messages: Sequence[Message]) -> Sequence[str]:
    """Each image that is not in the request itself, once."""
    images = (part for message in messages for part in message.content if isinstance(part, Image))
    return list(dict.fromkeys(image.url for image in images if not image.url.startswith(DATA)))


def _as_data(answer: web.Fetched, url: str) -> str:
    if answer.status != 200:
        raise _refused(f"{_shown(url)} answered {answer.status}")
    kind = "webp" if answer.body[:4] == b"RIFF" and answer.body[8:12] == b"WEBP" else None
    kind = kind or next((name for magic, name in MAGIC if answer.body.startswith(magic)), None)
    if kind is None:
        raise _refused(f"{_shown(url)} is no PNG, JPEG, WebP, GIF or BMP image")
    return f"data:image/{kind};base64,{base64.b64encode(answer.body).decode()}"


def _with(request: Request, found: Mapping[str, str]) -> Request:
    """The request with what was fetched in the place of addresses, in the caller's own words too."""
    changes: dict[str, Any] = {"messages": tuple(_message_with(message, found) for message in request.messages)}
    source = request.source
    if source is not None and "messages" in source.fields:
        said = [_said_with(message, found) for message in _members(source.fields["messages"])]
        fields = {**source.fields, "messages": msgspec.Raw(msgspec.json.encode(said))}
        changes["source"] = replace(source, fields=fields)
    return replace(request, **changes)


def _message_with(message: Message, found: Mapping[str, str]) -> Message:
    content = tuple(
        replace(part, url=found.get(part.url, part.url)) if isinstance(part, Image) else part
        for part in message.content
    )
    return replace(message, content=content)


def _said_with(message: Any, found: Mapping[str, str]) -> Any:
    """The same in a message as the caller wrote it."""
    if not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_part_with(part, found) for part in message["content"]]}


def _part_with(part: Any, found: Mapping[str, str]) -> Any:
    match part:
        case {"type": "image_url", "image_url": str(url)}:
            return {**part, "image_url": found.get(url, url)}
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            return {**part, "image_url": {**more, "url": found.get(url, url)}}
    return part


def _shown(url: str) -> str:
    """An address as messages show it: without what may be secret in it."""
    return repr(url.partition("?")[0].partition("#")[0][:200])


def _refused(why: str) -> BadRequest:
    return BadRequest(f"{why}; {INSTEAD}", param="messages")
