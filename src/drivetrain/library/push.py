"""A model of ours to an Ollama registry: its layers, those that are not there yet, then its manifest."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import random
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec

from drivetrain import web
from drivetrain.errors import Forbidden, Unsupported
from drivetrain.library import details, files
from drivetrain.library.catalog import Entry
from drivetrain.library.registry import CONFIG_TYPE, MANIFEST_TYPE, MEDIA, Layer, Manifest, Repository
from drivetrain.library.status import Status
from drivetrain.types import Model, ModelSpec

_CHUNK_BYTES = 64 * 2**20
_RETRIES = 5
Report = Callable[[Status], None]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer's bytes are: a file, or a text in memory."""

    layer: Layer
    content: Path | bytes


async def push(entry: Entry, spec: ModelSpec, repository: Repository, report: Report) -> None:
    """Raises `Forbidden` if the registry does not take it, `web.Unreachable` if it breaks off."""
    report(Status(status="retrieving manifest"))
    pieces = await _pieces(entry, spec)
    for piece in pieces:
        await _put_layer(repository, piece, report)
    report(Status(status="pushing manifest"))
    manifest = Manifest(config=pieces[-1].layer, layers=tuple(piece.layer for piece in pieces[:-1]))
    response = await repository.ask(
        "PUT",
        f"/manifests/{repository.name.tag}",
        content=msgspec.json.encode(manifest),
        headers={"content-type": MANIFEST_TYPE},
    )
    _accepted(response, repository, 200, 201)


async def _pieces(entry: Entry, spec: ModelSpec) -> list[Piece]:
    """All layers, the configuration last."""
    if spec.model.format == "jns":
        raise Unsupported(
            f"model {spec.id!r} is packed, and registries know only GGUF; undo it with: drivetrain unpack {spec.id}"
        )
    found = [await _file(path, "model") for path in entry.files]
    if spec.projector:
        found.append(await _file(Path(spec.projector), "projector"))
    found += [await _file(Path(path), "adapter") for path in spec.adapters]
    found += [_text(kind, text.encode()) for kind, text in _texts(entry)]
    digests = [piece.layer.digest for piece in found]
    return [*found, _bytes(msgspec.json.encode(_config(spec.model, digests)), CONFIG_TYPE)]


def _texts(entry: Entry) -> list[tuple[str, str]]:
    record = entry.record
    licenses = (record.license,) if isinstance(record.license, str) else record.license or ()
    found = [("template", record.template or ""), ("system", record.system or "")]
    found += [("license", text) for text in licenses]
    if record.request_time:
        found.append(("params", msgspec.json.encode(record.request_time).decode()))
    if record.messages:
        found.append(("messages", msgspec.json.encode(record.messages).decode()))
    return [(kind, text) for kind, text in found if text]


def _config(model: Model, digests: list[str]) -> dict[str, Any]:
    return {
        "model_format": model.format,
        "model_family": model.family,
        "model_families": [model.family],
        "model_type": model.parameter_size,
        "file_type": model.quantization,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": digests},
    }


async def _file(path: Path, kind: str) -> Piece:
    known = details.load(path.parent).get(path.name)
    size = files.size_of(path)
    digest = known.sha256 if known and details.current(known, path) and known.sha256 else await files.sha256(path)
    layer = Layer(media_type=f"{MEDIA}{kind}", digest=f"sha256:{digest}", size=size)
    return Piece(layer=layer, content=path)


def _text(kind: str, data: bytes) -> Piece:
    return _bytes(data, f"{MEDIA}{kind}")


def _bytes(data: bytes, media_type: str) -> Piece:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Piece(layer=Layer(media_type=media_type, digest=digest, size=len(data)), content=data)


async def _put_layer(repository: Repository, piece: Piece, report: Report) -> None:
    layer = piece.layer

    def tell(completed: int) -> None:
        status = f"pushing {layer.digest[7:19]}"
        report(Status(status=status, digest=layer.digest, total=layer.size, completed=completed))

    response = await repository.ask("HEAD", f"/blobs/{layer.digest}")
    if response.status_code != 200:
        tell(0)
        response = await repository.ask("POST", "/blobs/uploads/", params={"digest": layer.digest}, content=b"")
        _accepted(response, repository, 201, 202)
        if response.status_code == 202:
            await _upload(repository, piece, _location(response, repository.root), tell)
    tell(layer.size)


async def _upload(repository: Repository, piece: Piece, location: str, tell: Callable[[int], None]) -> None:
    size = piece.layer.size
    for start in range(0, size, _CHUNK_BYTES):
        end = min(start + _CHUNK_BYTES, size)
        response = await _send(repository, piece, location, start, end, tell)
        location = _location(response, location)
    response = await repository.ask("PUT", _with_query(location, f"digest={piece.layer.digest}"), content=b"")
    _accepted(response, repository, 201, 204)


async def _send(
    repository: Repository, piece: Piece, location: str, start: int, end: int, tell: Callable[[int], None]
) -> web.Response:
    """One chunk, again if the connection breaks."""
    headers = {
        "content-range": f"{start}-{end - 1}",
        "content-length": str(end - start),
        "content-type": "application/octet-stream",
    }
    for attempt in range(_RETRIES + 1):
        try:
            with web.translated(repository.host):
                response = await repository.client.patch(
                    location, headers={**repository.headers, **headers}, content=_range(piece, start, end, tell)
                )
            if response.status_code < 500 or attempt == _RETRIES:
                _accepted(response, repository, 202, 201)
                return response
        except web.Unreachable:
            if attempt == _RETRIES:
                raise
        await anyio.sleep(0.2 * 2**attempt * (0.5 + random() / 2))
    raise AssertionError  # the last attempt returns or raises


async def _range(piece: Piece, start: int, end: int, tell: Callable[[int], None]) -> AsyncIterator[bytes]:
    if isinstance(piece.content, bytes):
        yield piece.content[start:end]
        return
    with open(piece.content, "rb") as file:  # noqa: ASYNC230 - opening does not wait
        file.seek(start)
        while start < end:
            data = await anyio.to_thread.run_sync(file.read, min(files.CHUNK_BYTES, end - start))
            if not data:
                return
            yield data
            start += len(data)
            tell(start)


def _location(response: web.Response, base: str) -> str:
    told = response.headers.get("docker-upload-location") or response.headers.get("location", "")
    return urljoin(base, told) if told else base


def _with_query(url: str, query: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=f"{parts.query}&{query}" if parts.query else query))


def _accepted(response: web.Response, repository: Repository, *statuses: int) -> None:
    if response.status_code in statuses:
        return
    if response.status_code in (401, 403):
        raise Forbidden(f"{repository.host} denies pushing {repository.name.shown}: you are not signed in there")
    raise web.Unreachable(f"{repository.host} answers with status {response.status_code}: {response.text[:200]}")
