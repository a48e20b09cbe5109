"""The models that the folders hold, kept in memory while the folders do not change.

Looked at again at most once a second, by times and sizes only; what changed is read again, so models that are added
by hand while the server runs appear, and another process's work is seen. A broken model is listed with the reason.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from drivetrain import gguf
from drivetrain.dialects.ollama import names, options
from drivetrain.errors import BadRequest, ModelNotFound
from drivetrain.library import details, ids, record, settings, weights
from drivetrain.library.record import Record
from drivetrain.library.settings import Layer
from drivetrain.types import Capability, Model, ModelSpec

_LOOK_AGAIN_S = 1.0
_MOST_TIME_LOOKING = 0.005  # of all time: with very many models, look less often
_LOOK_AGAIN_FOR_A_MISS_S = 0.05
_DEPTH = 4  # models/org/name/model.json, as people arrange them by hand
_MAX_SPELLINGS = 4096

Mark = tuple[tuple[str, int, int], ...]  # name, time of change and size of each file that matters


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A model's folder. Either `spec` is there, or `broken` tells why not."""

    id: str
    folder: Path
    mark: Mark
    changed_ns: int
    record: Record = Record()
    layers: tuple[Layer, ...] = ()
    files: tuple[Path, ...] = ()  # weights, all parts
    spec: ModelSpec | None = None
    broken: str = ""


class Catalog:
    """Everything under `models/` and `engines/` of a home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._models = home / "models"
        self._looked_s = self._look_again_s = float("-inf")
        self._engines: Mark = ()
        self._entries: dict[Path, Entry] = {}
        self._by_id: dict[str, Entry] = {}
        self._by_key: dict[str, Entry] = {}
        self._specs: dict[str, ModelSpec] = {}  # every spelling that was asked for

    def lookup(self, name: str) -> ModelSpec:
        """The model that `name` spells. Raises `ModelNotFound`, or `BadRequest` with the reason if it is broken."""
        if monotonic() > self._look_again_s:
            self.look()
        spec = self._specs.get(name)
        return spec if spec is not None else self._resolve(name)

    def _resolve(self, name: str) -> ModelSpec:
        entry = self.entry(name)
        if entry.spec is None:
            raise BadRequest(f"model {name!r} cannot be used: {entry.broken}", param="model")
        if len(self._specs) >= _MAX_SPELLINGS:
            self._specs.clear()
        self._specs[name] = entry.spec
        return entry.spec

    def entry(self, name: str) -> Entry:
        """Like `lookup`, but broken ones too."""
        entry = self._find(name)
        if entry is None and monotonic() - self._looked_s > _LOOK_AGAIN_FOR_A_MISS_S:
            self.look()  # another process may just have added it
            entry = self._find(name)
        if entry is None:
            raise ModelNotFound(f"model {name[:200]!r} not found", param="model")
        return entry

    def _find(self, name: str) -> Entry | None:
        return self._by_id.get(name) or self._by_key.get(names.key(name))

    def entries(self) -> Sequence[Entry]:
        """All models, newest first."""
        if monotonic() - self._looked_s > _LOOK_AGAIN_FOR_A_MISS_S:
            self.look()
        return sorted(self._by_id.values(), key=lambda entry: (-entry.changed_ns, entry.id))

    def look(self) -> None:
        """Bring everything up to date with the folders now."""
        begun_s = monotonic()
        engines = _engines_mark(self._home / "engines")
        known = self._entries if engines == self._engines else {}
        found: dict[Path, Entry] = {}
        for folder, listing in _model_folders(self._models):
            mark = _mark(listing)
            entry = known.get(folder)
            found[folder] = entry if entry and entry.mark == mark else self._read(folder, mark, listing)
        changed = found.keys() != self._entries.keys() or any(found[path] is not self._entries[path] for path in found)
        self._engines, self._entries = engines, found
        if changed:
            self._index()
        self._looked_s = monotonic()
        unchanged_cost_s = 0.0 if changed else self._looked_s - begun_s
        self._look_again_s = self._looked_s + max(_LOOK_AGAIN_S, unchanged_cost_s / _MOST_TIME_LOOKING)

    def _index(self) -> None:
        self._specs.clear()
        self._by_id = {}
        # A folder that carries its own id comes first, so that a copy made by hand cannot take its place.
        for entry in sorted(
            self._entries.values(), key=lambda entry: (_own_id(entry.folder, self._models) != entry.id, entry.folder)
        ):
            own = _own_id(entry.folder, self._models)
            if entry.id in self._by_id and own not in self._by_id:
                entry = _renamed(entry, own)
            self._by_id.setdefault(entry.id, entry)
        self._by_key = {}
        for id in sorted(self._by_id):
            self._by_key.setdefault(names.key(id), self._by_id[id])

    def _read(self, folder: Path, mark: Mark, listing: Mapping[str, os.stat_result]) -> Entry:
        own = _own_id(folder, self._models)
        changed_ns = max((listing[name].st_mtime_ns for name in listing if name == record.FILE), default=0) or max(
            (status.st_mtime_ns for status in listing.values()), default=0
        )
        entry = Entry(id=own, folder=folder, mark=mark, changed_ns=changed_ns)
        try:
            read = record.check(record.read(folder))
            id = ids.check(read.id) if read.id else own
            entry = msgspec.structs.replace(entry, id=id, record=read, layers=self._layers(folder, read))
            return _resolved(entry, tuple(sorted(name for name in listing if name.endswith(weights.SUFFIXES))))
        except BadRequest as error:
            return msgspec.structs.replace(entry, broken=error.message)
        except OSError as error:  # a file that went away, or may not be read
            return msgspec.structs.replace(entry, broken=f"{error.filename}: {error.strerror}")

    def _layers(self, folder: Path, read: Record) -> tuple[Layer, ...]:
        path = settings.engine_file(self._home, read.engine_named)
        model = Layer(origin=str(folder / record.FILE), settings=read.load_time, parameters=read.request_time)
        return (settings.engine_layer(path), model) if path else (model,)


def _resolved(entry: Entry, listed: tuple[str, ...]) -> Entry:
    read, found = entry.record, weights.find(entry.folder, entry.record, listed)
    files = gguf.parts(found.weights) if found.weights else ()
    effective = settings.merged(entry.layers)
    spec = ModelSpec(
        id=entry.id,
        engine=read.engine_resolved,
        weights=str(found.weights) if found.weights else None,
        projector=str(found.projector) if found.projector else None,
        adapters=tuple(map(str, found.adapters)),
        remote_model=read.remote_model or (None if found.weights else entry.id),
        settings={**effective.settings, **_of_loading(effective.parameters)},
        parameters=effective.parameters,
        template=read.template,
        system=read.system,
        messages=read.conversation,
        model=_model(entry, files, found.projector),
    )
    return msgspec.structs.replace(entry, files=files, spec=spec)


def _of_loading(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ollama's PARAMETER names options of both kinds: the context's length among those of a request."""
    return {name: value for name, value in parameters.items() if name in options.RUNNER}


def _model(entry: Entry, files: tuple[Path, ...], projector: Path | None) -> Model:
    known = details.load(entry.folder)
    told = _details(files, known)
    return Model(
        id=entry.id,
        engine=entry.record.engine_resolved,
        capabilities=_capabilities(entry.record, told, projector),
        context_length=told.context_length,
        embedding_length=told.embedding_length,
        created_s=entry.changed_ns // 10**9,
        size_bytes=sum(path.stat().st_size for path in (*files, *((projector,) if projector else ()))),
        digest=_digest(entry, files, known),
        format=_format(entry, files),
        family=told.family,
        parameter_size=told.parameter_size,
        quantization=told.quantization,
    )


def _format(entry: Entry, files: tuple[Path, ...]) -> str:
    if not files:
        return entry.record.format or ""
    return "jns" if weights.is_container(files[0].name) else "gguf"


def _details(files: tuple[Path, ...], known: Mapping[str, details.FileFacts]) -> details.Details:
    if not files:
        return details.Details()
    facts = known.get(files[0].name)
    if facts and facts.details and details.current(facts, files[0]):
        return facts.details
    return details.examine(files[0])


def _capabilities(read: Record, told: details.Details, projector: Path | None) -> frozenset[Capability]:
    found = set(told.capabilities) or {"completion"}
    if "completion" in found and read.template:
        found |= details.template_capabilities(read.template)
    if projector:
        found.add("vision")
    return frozenset(found)


def _digest(entry: Entry, files: tuple[Path, ...], known: Mapping[str, details.FileFacts]) -> str:
    """The hash of the weights; for a remote model that of its source, so that it is stable too."""
    if not files:
        return entry.record.digest or details.combined(
            [f"{entry.record.engine_named}/{entry.record.remote_model or entry.id}", ""]
        )
    one = (
        known[path.name].sha256
        if details.current(known.get(path.name), path) and known[path.name].sha256
        else details.stand_in(path)
        for path in files
    )
    return details.combined(list(one))


def _renamed(entry: Entry, id: str) -> Entry:
    spec = entry.spec and msgspec.structs.replace(
        entry.spec, id=id, model=msgspec.structs.replace(entry.spec.model, id=id)
    )
    return msgspec.structs.replace(entry, id=id, spec=spec)


def _own_id(folder: Path, models: Path) -> str:
    """The id that the folder's place gives it."""
    return "/".join(ids.parse(part) for part in folder.relative_to(models).parts)


def _model_folders(top: Path, depth: int = _DEPTH) -> Iterator[tuple[Path, Mapping[str, os.stat_result]]]:
    """Folders with a model.json or files of weights, and those files."""
    for folder in _subfolders(top):
        listing = _listing(folder)
        if any(name != details.FILE for name in listing):
            yield folder, listing
        elif depth > 1:
            yield from _model_folders(folder, depth - 1)


def _subfolders(top: Path) -> list[Path]:
    try:
        with os.scandir(top) as entries:
            found = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []
    return [top / name for name in sorted(found) if _can_be_id(name)]


def _can_be_id(name: str) -> bool:
    try:
        ids.parse(name)
    except BadRequest:
        return False
    return True


def _listing(folder: Path) -> Mapping[str, os.stat_result]:
    found: dict[str, os.stat_result] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in (record.FILE, details.FILE) or entry.name.endswith(weights.SUFFIXES):
                    found[entry.name] = _status(entry)
    except OSError:
        return {}
    return found


def _status(entry: "os.DirEntry[str]") -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link whose target is gone
        return entry.stat(follow_symlinks=False)


def _mark(listing: Mapping[str, os.stat_result]) -> Mark:
    return tuple(sorted((name, status.st_mtime_ns, status.st_size) for name, status in listing.items()))


def _engines_mark(top: Path) -> Mark:
    found: list[tuple[str, int, int]] = []
    for path in sorted([*top.glob("*.json"), *top.glob("*/engine.json")]):
        try:
            status = path.stat()
        except OSError:  # it went away just now
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)
