"""Changes to the folders of models: put in, copy, rewrite, take out. Each is done whole or not at all.

All functions block and expect the library's lock to be held; call them from a thread.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from drivetrain import gguf
from drivetrain.errors import BadRequest
from drivetrain.library import details, files, ids, record, weights
from drivetrain.library.blobs import Blobs
from drivetrain.library.record import Members

# What a pull of a model that is already there brings up to date; all else in its model.json belongs to the user.
_RENEWED = ("sources", "projector", "adapters", "format")


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is about to be put in: its files by name, each a blob's digest or a path to link to."""

    files: Mapping[str, str | Path]
    members: Members  # of its model.json
    hashes: Mapping[str, str] = {}  # of the files that are paths, by name

    @property
    def digests(self) -> Mapping[str, str]:
        """64 hex digits of each file, by name."""
        blobs = {name: source for name, source in self.files.items() if isinstance(source, str)}
        return {name: digest.removeprefix("sha256:") for name, digest in {**blobs, **self.hashes}.items()}


def install(models: Path, folder: Path, delivery: Delivery, blobs: Blobs, *, replace: bool) -> None:
    """Put a model into `folder`. Where one is already, its model.json stays the user's, unless `replace`.

    Raises `BadRequest` if the files are no model; then nothing has changed.
    """
    stage = models / f".stage-{uuid4().hex}"
    stage.mkdir(parents=True)
    try:
        facts = _lay_out(stage, delivery, blobs)
        before = _members_before(folder)
        members = delivery.members if replace or not before else _updated(before, delivery.members)
        record.write(stage, members)
        details.store(stage, facts)
        _check(stage, members)
        _put(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _lay_out(stage: Path, delivery: Delivery, blobs: Blobs) -> dict[str, details.FileFacts]:
    for name, source in delivery.files.items():
        if isinstance(source, Path):
            (stage / name).symlink_to(source)
        else:
            files.place(blobs.require(source), stage / name)
    leading = weights.leading(list(delivery.files))
    facts: dict[str, details.FileFacts] = {}
    for name in delivery.files:
        told = details.examine(stage / name) if name in leading or weights.is_projector(name) else None
        facts[name] = details.facts_of(stage / name, delivery.digests[name], told)
    return facts


def _members_before(folder: Path) -> Members:
    try:
        return record.read(folder)
    except BadRequest as error:
        raise BadRequest(f"{error.message}; repair or delete it first: it is not overwritten", param="model") from error


def _updated(before: Members, members: Members) -> Members:
    renewed = {name: members[name] for name in _RENEWED if name in members}
    settings = {**before.get("settings", {})}
    path = members.get("settings", {}).get("llama_model_path")
    return {**members, **before, **renewed, "settings": settings | ({"llama_model_path": path} if path else {})}


def _check(stage: Path, members: Members) -> None:
    listed = tuple(sorted(path.name for path in stage.glob("*.gguf")))
    found = weights.find(stage, record.check(members), listed)
    if found.weights:
        gguf.parts(found.weights)


def _put(stage: Path, folder: Path) -> None:
    if not folder.exists():
        stage.rename(folder)
    else:
        old = details.load(folder).keys()
        new = {path.name for path in stage.iterdir()}
        for name in sorted(new, key=lambda name: name == record.FILE):  # model.json last: it names the others
            (stage / name).replace(folder / name)
        for name in old - new:
            (folder / name).unlink(missing_ok=True)
    files.sync_folder(folder.parent)


def duplicate(models: Path, source: Path, folder: Path, id: str) -> None:
    """A copy of a model under another id, at no cost: its files are links to the same content."""
    stage = models / f".stage-{uuid4().hex}"
    stage.mkdir(parents=True)
    try:
        for path in source.iterdir():
            if path.suffix == ".gguf":
                _link_alike(path, stage / path.name)
        members = record.read(source)
        record.write(stage, {**members, "id": id, "name": id} if "name" in members else {**members, "id": id})
        if (source / details.FILE).is_file():
            shutil.copy2(source / details.FILE, stage / details.FILE)
        if folder.exists():
            _retire(models, folder)
        stage.rename(folder)
        files.sync_folder(models)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _link_alike(path: Path, target: Path) -> None:
    if path.is_symlink():
        target.symlink_to(path.resolve())
    else:
        files.place(path, target)


def rewrite(folder: Path, patch: Mapping[str, Any]) -> None:
    """Apply a merge patch to a model's model.json."""
    record.write(folder, record.patched(record.read(folder), patch))


def remove(models: Path, folder: Path, blobs: Blobs) -> None:
    """Take a model out, and those of its blobs that no other model uses."""
    hashes = [f"sha256:{facts.sha256}" for facts in details.load(folder).values() if facts.sha256]
    _retire(models, folder)
    blobs.prune(hashes, models.rglob("*.gguf"))


def _retire(models: Path, folder: Path) -> None:
    """Out of sight at once, then gone."""
    grave = models / f".gone-{uuid4().hex}"
    folder.rename(grave)
    shutil.rmtree(grave)


def sweep(models: Path) -> None:
    """Remove what a process that was killed left half done."""
    for pattern in (".stage-*", ".gone-*"):
        for path in models.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def members_for(id: str, names: Sequence[str], *, created_s: float, **more: Any) -> Members:
    """A model.json for freshly brought files, the first of them being the weights."""
    members: Members = {"id": id, "object": "model", "name": id, "created": int(created_s), "format": "gguf"}
    members["settings"] = {"llama_model_path": names[0]}
    members |= {name: value for name, value in more.items() if value not in (None, "", (), [], {})}
    projector = next((name for name in names if weights.is_projector(name)), None)
    return members | ({"projector": projector} if projector else {})


def folder_for(models: Path, id: str) -> Path:
    return models / ids.folder(id)
