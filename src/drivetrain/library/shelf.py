"""Changes to the folders of models: put in, copy, rewrite, take out. Each is done whole or not at all.

All functions block and expect the library's lock to be held; call them from a thread.
"""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from drivetrain import gguf, parameters
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

    Raises `BadRequest` if the files are no model, or bring parameters that no request could use; then nothing has
    changed.
    """
    parameters.check(record.check(delivery.members).request_time)
    stage = models / f".stage-{uuid4().hex}"
    stage.mkdir(parents=True)
    try:
        facts = _lay_out(stage, delivery, blobs)
        before = _members_before(folder)
        if not replace:
            facts |= _kept_containers(folder, stage, delivery)
        members = delivery.members if replace or not before else _updated(before, delivery.members, facts.keys())
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


def _kept_containers(folder: Path, stage: Path, delivery: Delivery) -> Mapping[str, details.FileFacts]:
    """What was packed from the very weights that are brought again stays as good as they are."""
    brought = [digest for name, digest in delivery.digests.items() if weights.is_weights(name)]
    kept = {name: facts for name, facts in details.load(folder).items() if _made_of(facts, brought)}
    kept = {name: facts for name, facts in kept.items() if (folder / name).is_file()}
    for name in kept:
        _link_alike(folder / name, stage / name)
    return kept


def _made_of(facts: details.FileFacts, digests: Sequence[str]) -> bool:
    return bool(facts.made_of) and facts.made_of == details.combined(digests)


def _updated(before: Members, members: Members, names: Collection[str]) -> Members:
    """`names` are the files that the model is going to have."""
    renewed = {name: members[name] for name in _RENEWED if name in members}
    settings = {**before.get("settings", {})}
    path = members.get("settings", {}).get("llama_model_path")
    used = str(settings.get("llama_model_path", ""))
    if weights.is_container(used) and used in names:
        path = used
    return {**members, **before, **renewed, "settings": settings | ({"llama_model_path": path} if path else {})}


def _check(stage: Path, members: Members) -> None:
    listed = tuple(sorted(path.name for path in stage.iterdir() if path.suffix in weights.SUFFIXES))
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
            if path.suffix in weights.SUFFIXES:
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


def switch(models: Path, folder: Path, name: str, *, dropped: Sequence[str], blobs: Blobs) -> None:
    """Have a model use another file in its folder as weights, and drop some of its files."""
    facts, members = dict(details.load(folder)), record.read(folder)
    before = str(members.get("settings", {}).get("llama_model_path", ""))
    if not details.current(facts.get(name), folder / name):
        made_of = _digest(folder, before, facts) if weights.is_container(name) else ""
        facts[name] = details.facts_of(folder / name, "", details.examine(folder / name), made_of)
    gone = [facts.pop(one).sha256 for one in dropped if one in facts]
    details.store(folder, facts)
    said = {**members, "format": "jns" if weights.is_container(name) else "gguf"}
    record.write(folder, {**said, "settings": {**members.get("settings", {}), "llama_model_path": name}})
    for one in dropped:
        (folder / one).unlink(missing_ok=True)
    blobs.prune([f"sha256:{sha256}" for sha256 in gone if sha256], _all_weights(models))


def _digest(folder: Path, name: str, facts: Mapping[str, details.FileFacts]) -> str:
    """Of the weights that begin with the file `name`, all parts; "" where one was not hashed yet."""
    parts = [facts.get(part.name) for part in gguf.parts(folder / name)] if name else []
    digests = [part.sha256 for part in parts if part]
    return details.combined(digests) if len(digests) == len(parts) and all(digests) else ""


def remove(models: Path, folder: Path, blobs: Blobs) -> None:
    """Take a model out, and those of its blobs that no other model uses."""
    hashes = [f"sha256:{facts.sha256}" for facts in details.load(folder).values() if facts.sha256]
    _retire(models, folder)
    blobs.prune(hashes, _all_weights(models))


def _all_weights(models: Path) -> Iterator[Path]:
    for suffix in weights.SUFFIXES:
        yield from models.rglob(f"*{suffix}")


def _retire(models: Path, folder: Path) -> None:
    """Out of sight at once, then gone."""
    grave = models / f".gone-{uuid4().hex}"
    folder.rename(grave)
    _remove(grave)


def sweep(models: Path) -> None:
    """Remove what a process that was killed left half done."""
    for pattern in (".stage-*", ".gone-*"):
        for path in models.glob(pattern):
            with suppress(OSError):
                _remove(path)


def _remove(folder: Path) -> None:
    """A model's folder may be a link to one on another drive, which stays."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def members_for(id: str, names: Sequence[str], *, created_s: float, **more: Any) -> Members:
    """A model.json for freshly brought files, the first of them being the weights."""
    members: Members = {"id": id, "object": "model", "name": id, "created": int(created_s), "format": "gguf"}
    members["settings"] = {"llama_model_path": names[0]}
    members |= {name: value for name, value in more.items() if value not in (None, "", (), [], {})}
    projector = next((name for name in names if weights.is_projector(name)), None)
    return members | ({"projector": projector} if projector else {})


def folder_for(models: Path, id: str) -> Path:
    return models / ids.folder(id)
