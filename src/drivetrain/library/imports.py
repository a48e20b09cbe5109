"""A model from this machine: a GGUF file with its further parts, a container, or a folder that holds one."""

from pathlib import Path

import anyio.to_thread

from drivetrain import gguf
from drivetrain.errors import BadRequest, NotFound
from drivetrain.library import files, record, shelf, weights
from drivetrain.library.blobs import Blobs
from drivetrain.library.shelf import Delivery

_CARRIED = ("description", "owned_by", "engine", "parameters", "metadata", "template", "system", "messages", "license")


async def bring(path: Path, id: str, blobs: Blobs, *, link: bool, created_s: float) -> Delivery:
    """Copy the files into the blobs, or, with `link`, only look at them. Raises `BadRequest` for what is no GGUF."""
    found, before = _look(path)
    sources: dict[str, str | Path] = {}
    hashes: dict[str, str] = {}
    blobs.folder.mkdir(parents=True, exist_ok=True)
    if not link:
        files.need_room(blobs.folder, sum(file.stat().st_size for file in found), f"a copy of {path.name}")
    for file in found:
        await anyio.to_thread.run_sync(gguf.read, file)
        if link:
            sources[file.name], hashes[file.name] = file.resolve(), await files.sha256(file)
        else:
            sources[file.name] = await _copied(file, blobs)
    members = shelf.members_for(id, list(sources), created_s=created_s)
    members |= {"sources": [{"filename": file.name, "url": file.resolve().as_uri()} for file in found]}
    settings = {**before.get("settings", {}), **members["settings"]}
    return Delivery(files=sources, members={**before, **members, "settings": settings}, hashes=hashes)


async def _copied(file: Path, blobs: Blobs) -> str:
    draft = blobs.draft()
    try:
        digest = f"sha256:{await files.copy_hashed(file, draft)}"
        if not blobs.has(digest):
            blobs.adopt(draft, digest)
    finally:
        draft.unlink(missing_ok=True)
    return digest


def _look(path: Path) -> tuple[list[Path], record.Members]:
    """The files of the model, weights first, and what a model.json beside them says."""
    if path.is_dir():
        return _in_folder(path), _carried(path)
    if not path.exists():
        raise NotFound(f"{path} does not exist", param="path")
    weights.refuse(path)
    return list(gguf.parts(path)), {}


def _in_folder(folder: Path) -> list[Path]:
    listed = sorted(path.name for path in folder.iterdir() if path.is_file())
    names = [name for name in listed if name.lower().endswith(weights.SUFFIXES)]
    if not names:
        for name in listed:
            if Path(name).suffix.lower() in weights.REFUSED:
                weights.refuse(folder / name)
        raise BadRequest(f"{folder} holds no *.gguf or *.jns file", param="path")
    found = weights.find(folder, record.check(record.read(folder)), tuple(names))
    if found.weights is None:
        raise BadRequest(f"{folder} holds no weights", param="path")
    return [*gguf.parts(found.weights), *([found.projector] if found.projector else [])]


def _carried(folder: Path) -> record.Members:
    before = record.read(folder)
    return {name: before[name] for name in (*_CARRIED, "settings") if name in before}
