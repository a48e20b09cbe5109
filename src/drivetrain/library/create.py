"""A model made from another, or from uploaded files: new words around the same weights."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.dialects.ollama.management import CreateRequest
from drivetrain.errors import BadRequest, Unsupported
from drivetrain.library import details, record, shelf, weights
from drivetrain.library.blobs import Blobs
from drivetrain.library.catalog import Entry
from drivetrain.library.record import Members
from drivetrain.library.shelf import Delivery
from drivetrain.library.status import Status

_TEXTS = ("template", "system", "license", "parameters", "messages")
_KEPT_WORDS = ("renderer", "parser", "requires")


def check(request: CreateRequest) -> None:
    """Raises `Unsupported` for what cannot be made here, `BadRequest` for what makes no sense."""
    if request.quantize:
        raise Unsupported(
            f"cannot quantize to {request.quantize!r} here: convert the GGUF file with llama.cpp's llama-quantize "
            "and create the model from the result",
            param="quantize",
        )
    if request.draft_files or request.draft_quantize:
        raise Unsupported("draft models are not supported in create", param="draft_files")
    if request.remote_host:
        raise Unsupported(
            "a model of another server needs an engine with its URL in drivetrain.yaml", param="remote_host"
        )
    if not (request.from_ or request.files):
        raise BadRequest("neither 'from' or 'files' was specified", param="from")


def delivery(request: CreateRequest, base: Entry | None, blobs: Blobs, *, created_s: float) -> Delivery:
    """What to put in. Blocks: may link files of `base` into the blobs. Raises `NotFound` for a blob that is missing."""
    files = _uploaded(request, blobs) if request.files else _inherited(base, blobs)
    hashes = _hashes(base) if base else {}
    adapters: dict[str, str | Path] = {
        f"adapter-{place}.gguf": f"sha256:{digest}" for place, digest in enumerate(request.adapters.values())
    }
    for digest in request.adapters.values():
        blobs.require(f"sha256:{digest}")
    if adapters:
        files = {name: source for name, source in files.items() if not name.startswith("adapter-")} | adapters
    before = record.read(base.folder) if base and not request.files else {}
    members = _members(request, before, files, created_s)
    if adapters:
        members["adapters"] = list(adapters)
    return Delivery(files=files, members=members, hashes={name: hashes[name] for name in files if name in hashes})


def _uploaded(request: CreateRequest, blobs: Blobs) -> dict[str, str | Path]:
    found: dict[str, str | Path] = {}
    for name, digest in request.files.items():
        bare = Path(name).name
        if Path(bare).suffix.lower() != ".gguf" and _begins_with(blobs.require(f"sha256:{digest}"), b"GGUF"):
            bare = f"{bare}.gguf"  # clients may call it anything
        weights.refuse(Path(bare))
        blobs.require(f"sha256:{digest}")
        found[bare] = f"sha256:{digest}"
    if not weights.leading(list(found)):
        raise BadRequest("no file of weights among 'files'", param="files")
    return dict(sorted(found.items(), key=lambda item: (weights.is_projector(item[0]), item[0])))


def _begins_with(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _inherited(base: Entry | None, blobs: Blobs) -> dict[str, str | Path]:
    if base is None or base.spec is None:
        raise BadRequest(f"the base model cannot be used: {base.broken if base else 'there is none'}", param="from")
    spec, hashes = base.spec, _hashes(base)
    paths = [*base.files, *([Path(spec.projector)] if spec.projector else []), *map(Path, spec.adapters)]
    return {path.name: _source(path, hashes.get(path.name, ""), blobs) for path in paths}


def _source(path: Path, sha256: str, blobs: Blobs) -> str | Path:
    """The blob that a file is; one that only links to a file elsewhere stays a link to it."""
    digest = f"sha256:{sha256}"
    if sha256 and blobs.has(digest):
        return digest
    return path.resolve()


def _hashes(base: Entry) -> Mapping[str, str]:
    return {name: facts.sha256 for name, facts in details.load(base.folder).items()}


def _members(request: CreateRequest, before: Members, files: Mapping[str, Any], created_s: float) -> Members:
    fresh: Members = {"object": "model"}
    if files:
        fresh = shelf.members_for(request.model, list(files), created_s=created_s)
    members = {**before, **fresh, "id": request.model, "name": request.model}
    members["settings"] = {**before.get("settings", {}), **fresh.get("settings", {})}
    said = {
        "template": request.template,
        "system": request.system,
        "license": list(request.licenses),
        "messages": [{"role": message.role, "content": message.text} for message in request.messages],
        **{name: getattr(request, name) for name in _KEPT_WORDS},
    }
    members |= {name: value for name, value in said.items() if value}
    if request.parameters:
        members["parameters"] = {**before.get("parameters", {}), **request.parameters}
    return members


def layer_statuses(made: Delivery, base: Entry | None) -> Iterator[Status]:
    """Ollama's words for which parts are new."""
    for source in made.files.values():
        if isinstance(source, str):
            yield Status(status=f"using existing layer {source}")
    before = record.read(base.folder) if base else {}
    for name in _TEXTS:
        value = made.members.get(name)
        if value:
            digest = hashlib.sha256(msgspec.json.encode(value)).hexdigest()
            word = "using existing" if before.get(name) == value else "creating new"
            yield Status(status=f"{word} layer sha256:{digest}")
