"""Models that ship in a Python package: taken from this environment if it is installed, else from the package index.

The index is the one that pip and uv would use: their environment variables and pip's configuration files are honoured.
"""

import base64
import configparser
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from html.parser import HTMLParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import anyio.to_thread
import msgspec

from drivetrain import web
from drivetrain.errors import NotFound
from drivetrain.library.depot import Depot
from drivetrain.library.download import Corrupt, Remote
from drivetrain.library.sources import Package

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.2"
_MAX_PAGE_BYTES = 32 * 2**20


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}
    size: int | None = None


class _Project(msgspec.Struct):
    files: list[_File]


async def bring(package: Package, depot: Depot) -> dict[str, str]:
    """The package's GGUF file as a blob: its name and digest."""
    installed = await anyio.to_thread.run_sync(_installed, package)
    if installed is not None:
        path, digest = installed
        return {path.name: await depot.adopt_local(path, package.digest or digest)}
    wheel = await _wheel(package, depot.client)
    depot.expect([wheel], f"the download of {package.name}")
    archive = depot.blobs.path(await depot.fetch(wheel))
    try:
        name, digest = await depot.unpack(archive, ".gguf")
    finally:
        archive.unlink(missing_ok=True)
    if package.digest not in (None, digest):
        depot.blobs.path(digest).unlink(missing_ok=True)
        raise Corrupt(f"{package.name} {package.version}: its model has the digest {digest}, not {package.digest}")
    return {name: digest}


def _installed(package: Package) -> tuple[Path, str | None] | None:
    try:
        found: Distribution = distribution(package.name)
    except PackageNotFoundError:
        return None
    if found.version != package.version:
        return None
    for file in found.files or ():
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            return path, _recorded(file.hash.value) if file.hash and file.hash.mode == "sha256" else None
    return None


def _recorded(value: str) -> str:
    """A hash as wheels record it (URL-safe base64, no padding)."""
    return f"sha256:{base64.urlsafe_b64decode(value + '=' * (-len(value) % 4)).hex()}"


async def _wheel(package: Package, client: web.Client) -> Remote:
    """Raises `NotFound` if the index has no wheel of this version."""
    page = f"{index_url(os.environ, pip_files()).rstrip('/')}/{_normal(package.name)}/"
    with web.translated("the package index"):
        async with client.stream("GET", page, headers={"accept": _ACCEPT}) as response:
            if response.status_code == 404:
                raise NotFound(f"the package index has no package {package.name!r}")
            if response.status_code != 200:
                raise web.Unreachable(f"the package index answers with status {response.status_code}")
            body = await web.read_limited(response, _MAX_PAGE_BYTES)
            kind, base = response.headers.get("content-type", ""), str(response.url)
    start = f"{_normal(package.name).replace('-', '_')}-{package.version}-"
    for file in _files(kind, body):
        if file.filename.lower().startswith(start) and file.filename.endswith(".whl"):
            return _remote(file, base)
    raise NotFound(f"the package index has no wheel of {package.name} {package.version}")


def _remote(file: _File, base: str) -> Remote:
    url, fragment = urldefrag(urljoin(base, file.url))
    digest = file.hashes.get("sha256") or fragment.partition("sha256=")[2]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise Corrupt(f"the package index tells no SHA-256 of {file.filename}")
    return Remote(url=url, digest=f"sha256:{digest}", size=file.size)


def _files(kind: str, body: bytes) -> list[_File]:
    if "json" not in kind:
        links = _Links()
        links.feed(body.decode("utf-8", "replace"))
        return links.found
    try:
        return msgspec.json.decode(body, type=_Project).files
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise web.Unreachable(f"the package index answers nonsense: {error}") from error


class _Links(HTMLParser):
    """The files on an index's HTML page (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_File] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            self.found.append(_File(filename=urldefrag(href)[0].rsplit("/", 1)[-1], url=href))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- which index ------------------------------------------------------------------------------------------------------


def index_url(environment: Mapping[str, str], files: Iterable[Path]) -> str:
    """The index that pip or uv would ask first."""
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if environment.get(name):
            return _unnamed(environment[name])
    configured = ""
    for path in files:  # the most specific comes last, and wins
        configured = _configured(path) or configured
    return configured or DEFAULT_INDEX


def _unnamed(index: str) -> str:
    """uv lets an index have a name: `NAME=URL`."""
    name, equals, url = index.partition("=")
    return url if equals and "/" not in name else index


def _configured(path: Path) -> str:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    options = ("index-url", "index_url")
    return next(
        (
            parser.get(section, option)
            for section in ("install", "global")
            for option in options
            if parser.has_option(section, option)
        ),
        "",
    )


def pip_files() -> Iterator[Path]:
    """pip's configuration files, the least specific first."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    yield Path.home() / ".pip" / "pip.conf"
    yield Path.home() / "Library" / "Application Support" / "pip" / "pip.conf"
    yield config / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if os.environ.get("PIP_CONFIG_FILE"):
        yield Path(os.environ["PIP_CONFIG_FILE"])
