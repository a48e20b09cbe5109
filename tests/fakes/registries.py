"""Registries on loopback, and the faults of networks: an Ollama registry, a Hugging Face hub, a package index, files.

Every one is a real HTTP server on a free port that a test starts and stops. `Faults` says how it misbehaves; `Site`
tells what it was asked and how many bytes of content it sent.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import anyio

_REASONS = {200: "OK", 201: "Created", 202: "Accepted", 206: "Partial Content", 302: "Found", 401: "Unauthorized"}
_PIECE_BYTES = 16 * 1024


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Faults:
    """How a server misbehaves with bodies longer than `cut_after`."""

    cut_after: int | None = None  # bytes of a body, then the connection is closed
    busy: int = 0  # so many answers 503 first
    ranges: bool = True  # whether it knows ranges
    gate: anyio.Event | None = None  # bodies stop half way until it is set
    halfway: anyio.Event | None = None  # set when a body has come half way


@dataclass
class Site:
    url: str
    faults: Faults
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: int = 0  # of bodies
    connections: int = 0  # answering with a body right now
    most_connections: int = 0

    def count(self, method: str, pattern: str) -> int:
        return sum(1 for asked in self.asked if asked.method == method and re.search(pattern, asked.path))


Handler = Callable[[Asked], Answer]


@asynccontextmanager
async def serving(handler: Handler, faults: Faults | None = None) -> AsyncIterator[Site]:
    """A server that answers with what `handler` returns, for as long as the block runs."""
    site = Site(url="", faults=faults or Faults())
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (asked := await _read(reader)) is not None:
                site.asked.append(asked)
                if not await _write(writer, asked, handler(asked), site):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the caller has gone, or the test is over
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield site
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Asked(method, parts.path, query, headers, body)


async def _write(writer: asyncio.StreamWriter, asked: Asked, answer: Answer, site: Site) -> bool:
    """False if the connection is to be closed."""
    faults = site.faults
    if faults.busy > 0:
        faults.busy -= 1
        answer = Answer(503, {"retry-after": "0"}, b"busy")
    headers = {"content-length": str(len(answer.body)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Other')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if asked.method != "HEAD":
        site.connections += 1
        site.most_connections = max(site.most_connections, site.connections)
        try:
            if not await _body(writer, answer.body, site):
                return False
        finally:
            site.connections -= 1
    await writer.drain()
    return True


async def _body(writer: asyncio.StreamWriter, body: bytes, site: Site) -> bool:
    faults, sent = site.faults, 0
    while sent < len(body):
        if faults.gate is not None and sent >= len(body) // 2:
            if faults.halfway is not None:
                faults.halfway.set()
            await faults.gate.wait()
        piece = body[sent : sent + _PIECE_BYTES]
        if faults.cut_after is not None:
            piece = piece[: faults.cut_after - sent]
        writer.write(piece)
        await writer.drain()
        sent += len(piece)
        site.sent_bytes += len(piece)
        if faults.cut_after is not None and sent >= faults.cut_after and sent < len(body):
            return False
    return True


def file_answer(asked: Asked, content: bytes, faults: Faults, *, etag: str = '"v1"') -> Answer:
    """A file as a good server gives it: ranges, and If-Range for its version."""
    headers = {"etag": etag, "content-type": "application/octet-stream"}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.headers.get("range", ""))
    fresh = asked.headers.get("if-range", etag) == etag
    if not faults.ranges or wanted is None or not fresh:
        return Answer(200, headers, content)
    start = int(wanted[1])
    end = min(int(wanted[2] or len(content) - 1), len(content) - 1)
    if start >= len(content):
        return Answer(416, {"content-range": f"bytes */{len(content)}"})
    return Answer(206, {**headers, "content-range": f"bytes {start}-{end}/{len(content)}"}, content[start : end + 1])


@asynccontextmanager
async def files(content: Mapping[str, bytes], faults: Faults | None = None) -> AsyncIterator[Site]:
    """Plain files by path."""
    faults = faults or Faults()

    def handler(asked: Asked) -> Answer:
        found = content.get(asked.path)
        if found is None:
            return Answer(404, body=b"no such file")
        etag = f'"{hashlib.sha256(found).hexdigest()[:16]}"'
        return file_answer(asked, found, faults, etag=etag)

    async with serving(handler, faults) as site:
        yield site


async def pieces(data: bytes, size: int = 999) -> AsyncIterator[bytes]:
    """A body as it arrives."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# --- an Ollama registry -----------------------------------------------------------------------------------------------


class Registry:
    """Blobs and manifests in memory; pull and push. `token`: what it wants as a bearer, given away at `/token`."""

    def __init__(self, *, token: str | None = None, redirect_to: str = "") -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}  # "library/tiny:latest"
        self.uploads: dict[str, bytes] = {}
        self.token, self.redirect_to = token, redirect_to
        self.faults = Faults()
        self.url = ""

    def publish(self, name: str, layers: Mapping[str, bytes]) -> None:
        """A model of layers by kind: "model", "template", …"""
        listed = [self._layer(f"application/vnd.ollama.image.{kind}", data) for kind, data in layers.items()]
        config = self._layer("application/vnd.docker.container.image.v1+json", b"{}")
        manifest = {"schemaVersion": 2, "config": config, "layers": listed}
        self.manifests[name] = json.dumps(manifest).encode()

    def _layer(self, media_type: str, data: bytes) -> dict[str, object]:
        self.blobs[sha256(data)] = data
        return {"mediaType": media_type, "digest": sha256(data), "size": len(data)}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Site]:
        async with serving(self._answer, self.faults) as site:
            self.url = site.url
            yield site

    def _answer(self, asked: Asked) -> Answer:
        if asked.path == "/token":
            return Answer(200, body=json.dumps({"token": self.token}).encode())
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.url}/token",service="tests",scope="repository:all:pull,push"'
            return Answer(401, {"www-authenticate": challenge})
        match = re.fullmatch(r"/v2/(?P<repo>.+?)/(?P<kind>manifests|blobs)/(?P<rest>.*)", asked.path)
        if match is None:
            return Answer(404)
        if match["kind"] == "manifests":
            return self._manifest(asked, f"{match['repo']}:{match['rest']}")
        if match["rest"].startswith("uploads/"):
            return self._upload(asked, match["rest"])
        return self._blob(asked, match["rest"])

    def _manifest(self, asked: Asked, name: str) -> Answer:
        if asked.method == "PUT":
            wanted = [layer["digest"] for layer in json.loads(asked.body)["layers"]]
            if any(digest not in self.blobs for digest in wanted):
                return Answer(400, body=b"a blob is missing")
            self.manifests[name] = asked.body
            return Answer(201)
        found = self.manifests.get(name)
        return Answer(200, body=found) if found is not None else Answer(404)

    def _blob(self, asked: Asked, digest: str) -> Answer:
        found = self.blobs.get(digest)
        if found is None:
            return Answer(404)
        if self.redirect_to and asked.method == "GET":
            return Answer(302, {"location": f"{self.redirect_to}/{digest}"})
        return file_answer(asked, found, self.faults)

    def _upload(self, asked: Asked, rest: str) -> Answer:
        if asked.method == "POST":
            key = str(len(self.uploads))
            self.uploads[key] = b""
            return Answer(202, {"location": f"{asked.path}{key}?state=0"})
        key = rest.removeprefix("uploads/")
        if asked.method == "PATCH":
            assert int(asked.headers["content-range"].partition("-")[0]) == len(self.uploads[key])
            self.uploads[key] += asked.body
            return Answer(202, {"location": f"{asked.path}?state={len(self.uploads[key])}"})
        data = self.uploads.pop(key)
        if sha256(data) != asked.query["digest"]:
            return Answer(400, body=b"digest mismatch")
        self.blobs[sha256(data)] = data
        return Answer(201)


# --- a Hugging Face hub -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def hub(
    repos: Mapping[str, Mapping[str, bytes]], *, gated: frozenset[str] = frozenset(), faults: Faults | None = None
) -> AsyncIterator[Site]:
    """What huggingface_hub and a download ask for: `/api/models/REPO` and `/REPO/resolve/REVISION/FILE`."""
    faults = faults or Faults()
    commit = "a" * 40

    def handler(asked: Asked) -> Answer:
        repo = "/".join(asked.path.removeprefix("/api/models/").strip("/").split("/")[:2])
        if repo in gated:
            return Answer(403, {"x-error-code": "GatedRepo"}, b"{}")
        if repo not in repos:
            return Answer(404, {"x-error-code": "RepoNotFound"}, b"{}")
        if asked.path.startswith("/api/models/"):
            return _json(_described(repo, repos[repo], commit))
        name = asked.path.partition(f"/resolve/{commit}/")[2]
        return file_answer(asked, repos[repo][name], faults) if name in repos[repo] else Answer(404)

    async with serving(handler, faults) as site:
        yield site


def _described(repo: str, files: Mapping[str, bytes], commit: str) -> object:
    siblings = [
        {
            "rfilename": name,
            "size": len(data),
            "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134},
        }
        for name, data in files.items()
    ]
    return {
        "id": repo,
        "modelId": repo,
        "author": repo.split("/")[0],
        "sha": commit,
        "tags": ["gguf"],
        "siblings": siblings,
    }


def _json(value: object, kind: str = "application/json") -> Answer:
    return Answer(200, {"content-type": kind}, json.dumps(value).encode())


# --- a package index --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def package_index(
    wheels: Mapping[str, bytes], *, html: bool = False, faults: Faults | None = None
) -> AsyncIterator[Site]:
    """The simple API over wheels by file name, as JSON (PEP 691) or HTML (PEP 503)."""
    faults = faults or Faults()

    def handler(asked: Asked) -> Answer:
        if asked.path.startswith("/files/"):
            found = wheels.get(asked.path.removeprefix("/files/"))
            return file_answer(asked, found, faults) if found is not None else Answer(404)
        name = asked.path.strip("/").removeprefix("simple/").replace("-", "_")
        listed = {file: data for file, data in wheels.items() if file.startswith(f"{name}-")}
        if not listed:
            return Answer(404)
        if html:
            links = (
                f'<a href="../../files/{file}#{sha256(data).replace(":", "=")}">{file}</a>'
                for file, data in listed.items()
            )
            return Answer(200, {"content-type": "text/html"}, "\n".join(links).encode())
        files = [
            {
                "filename": file,
                "url": f"/files/{file}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
            }
            for file, data in listed.items()
        ]
        return _json({"name": name, "files": files}, "application/vnd.pypi.simple.v1+json")

    async with serving(handler, faults) as site:
        yield site
