"""The owner of the models on disk: which there are, and every way to add, change or remove one."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from time import time
from typing import Any

import anyio.to_thread
import msgspec

from drivetrain import web
from drivetrain.config.schema import Downloads
from drivetrain.dialects.ollama import names
from drivetrain.dialects.ollama.management import CreateRequest
from drivetrain.errors import Conflict, ModelNotFound
from drivetrain.library import create, details, files, ids, imports, push, record, settings, shelf, sources
from drivetrain.library.blobs import Blobs
from drivetrain.library.catalog import Catalog, Entry
from drivetrain.library.download import PART_BYTES
from drivetrain.library.flight import Flight
from drivetrain.library.foresight import Outlook
from drivetrain.library.pulls import Pulls, Unfinished
from drivetrain.library.record import Members
from drivetrain.library.registry import Repository
from drivetrain.library.settings import Layer, Setting
from drivetrain.library.shelf import Delivery
from drivetrain.library.status import Status
from drivetrain.library.transfer import Transfer
from drivetrain.types import ModelSpec, Notice

Notify = Callable[[Notice], None]


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that should hold a model and does not."""

    id: str
    folder: Path
    reason: str


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model lies."""

    id: str
    folder: Path
    weights: tuple[Path, ...]  # all parts


class Library:
    """The models under a home. Safe to use from several processes; within one, from one event loop."""

    def __init__(
        self,
        home: Path,
        downloads: Downloads,
        notify: Notify,
        *,
        part_bytes: int = PART_BYTES,
        outlook: Outlook | None = None,
    ) -> None:
        """`outlook` is asked for a line about a model before it is downloaded."""
        self.home = home
        self._downloads, self._notify, self._part_bytes, self._outlook = downloads, notify, part_bytes, outlook
        self._models = home / "models"
        self._blobs = Blobs(home / "blobs")
        self._pulls = Pulls(home / "state" / "pulls", self._blobs.folder)
        self._catalog = Catalog(home)
        self._flights: dict[tuple[str, sources.Source], Flight] = {}

    # --- what there is ------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> ModelSpec:
        """The model that `name` spells: as its id stands, without case, without the default tag. Costs microseconds.

        Raises `ModelNotFound`, or `BadRequest` with the reason if the model is broken.
        """
        try:
            return self._catalog.lookup(name)
        except ModelNotFound as error:
            unfinished = self._pulls.find(name)
            if unfinished is None:
                raise
            raise ModelNotFound(
                f"model {name!r} not found: its download is incomplete ({unfinished.told}); "
                f"continue it with: drivetrain pull {unfinished.source}",
                param="model",
            ) from error

    def list(self) -> Sequence[ModelSpec]:
        """Every model that can be used, newest first."""
        return [entry.spec for entry in self._catalog.entries() if entry.spec is not None]

    def broken(self) -> Sequence[Broken]:
        found = (entry for entry in self._catalog.entries() if entry.spec is None)
        return [Broken(id=entry.id, folder=entry.folder, reason=entry.broken) for entry in found]

    def unfinished(self) -> Sequence[Unfinished]:
        """Models whose download was broken off, or is under way."""
        return list(self._pulls.all())

    def place(self, name: str) -> Place:
        entry = self._catalog.entry(name)
        return Place(id=entry.id, folder=entry.folder, weights=entry.files)

    def members(self, name: str) -> Members:
        """What the model's model.json says, every member."""
        return record.read(self._catalog.entry(name).folder)

    def effective(self, name: str, layers: Sequence[Layer] = ()) -> Mapping[str, Setting]:
        """Each setting and parameter by its dotted name: its value and who said so. `layers` lie above the files."""
        return settings.effective((*self._catalog.entry(name).layers, *layers))

    # --- changes ------------------------------------------------------------------------------------------------------

    async def add(self, path: Path, name: str, link: bool = False) -> ModelSpec:
        """Import a GGUF file, or a folder with one; `link` leaves it where it is and links to it.

        Raises `BadRequest` for other formats, `Conflict` if the name has other weights already.
        """
        ids.check(name)
        brought = await imports.bring(path, name, self._blobs, link=link, created_s=time())
        entry = self._existing(name)
        if entry is not None and entry.files:
            if _same_weights(entry, brought):
                return self.lookup(name)
            raise Conflict(f"model {name!r} is there already, with other weights; delete it or choose another name")
        await self._install(name, brought, replace=False)
        return self.lookup(name)

    async def define(self, name: str, members: Members) -> ModelSpec:
        """A model without weights: one of another engine. Raises `Conflict` if the name is taken."""
        if self._existing(name) is not None:
            raise Conflict(f"model {name!r} is there already; change it instead")
        made = {"id": ids.check(name), "object": "model", "created": int(time()), **members}
        await self._install(name, Delivery(files={}, members={**made, "id": name}), replace=True)
        return self.lookup(name)

    async def update(self, name: str, patch: Mapping[str, Any]) -> ModelSpec:
        """Merge a patch (RFC 7396) into the model.json. Raises `BadRequest` for what cannot be changed."""
        entry = self._catalog.entry(name)
        await self._locked(lambda: shelf.rewrite(entry.folder, patch))
        self._changed(entry.id)
        return self.lookup(entry.id)

    async def switch(self, name: str, file: str, *, drop: bool) -> ModelSpec:
        """Have a model use another file of its folder as weights: its container, or the GGUF of that.

        `drop` deletes those that it used, if they lie in its folder.
        """
        entry = self._catalog.entry(name)
        used = [path.name for path in entry.files if path.parent == entry.folder and path.name != file]
        dropped = used if drop else ()
        await self._locked(lambda: shelf.switch(self._models, entry.folder, file, dropped=dropped, blobs=self._blobs))
        self._changed(entry.id)
        return self.lookup(entry.id)

    async def copy(self, source: str, destination: str) -> None:
        """The same model under another name, at no cost in space."""
        entry, there = self._catalog.entry(source), self._existing(ids.check(destination))
        if there is not None and there.folder == entry.folder:
            return
        folder = there.folder if there else shelf.folder_for(self._models, destination)
        await self._locked(lambda: shelf.duplicate(self._models, entry.folder, folder, destination))
        self._changed(destination)

    async def delete(self, name: str) -> None:
        """Remove a model, or what has arrived of one, and whatever content no other model uses."""
        entry = self._existing(name)
        if entry is None and self._pulls.find(name) is None:
            raise ModelNotFound(f"model {name[:200]!r} not found", param="model")
        self._pulls.discard(name)
        if entry is not None:
            await self._locked(lambda: shelf.remove(self._models, entry.folder, self._blobs))
            self._changed(entry.id)

    async def create(self, request: CreateRequest) -> AsyncGenerator[Status, None]:
        """A model from another, which is pulled if need be, or from blobs. An existing one of that name is replaced."""
        create.check(request)
        ids.check(request.model)
        base = None
        if not request.files:
            async with aclosing(self._based_on(request.from_)) as statuses:
                async for status in statuses:
                    yield status
            base = self._catalog.entry(request.from_)
            await details.settle(base.folder, base.files)
        made = await anyio.to_thread.run_sync(lambda: create.delivery(request, base, self._blobs, created_s=time()))
        yield Status(status="parsing GGUF")  # not before all that it takes was found: what is missing has a status
        for status in create.layer_statuses(made, base):
            yield status
        yield Status(status="writing manifest")
        await self._install(request.model, made, replace=True)
        yield Status(status="success")

    async def _based_on(self, name: str) -> AsyncGenerator[Status, None]:
        """Have the base model here."""
        if self._existing(name) is None:
            async with aclosing(self.pull(name)) as statuses:
                async for status in statuses:
                    if status.status != "success":
                        yield status

    # --- blobs --------------------------------------------------------------------------------------------------------

    def has_blob(self, digest: str) -> bool:
        """Raises `BadRequest` for what is no digest."""
        return self._blobs.has(digest)

    async def put_blob(self, digest: str, data: AsyncIterable[bytes]) -> bool:
        """Keep uploaded content. False if it was there. Raises `BadRequest` if it has another digest."""
        return await self._blobs.put(digest, data)

    # --- registries ---------------------------------------------------------------------------------------------------

    async def pull(self, source: str, name: str | None = None, insecure: bool = False) -> AsyncGenerator[Status, None]:
        """Bring a model here. Callers who want the same share one download; it stops when the last of them leaves,
        and what has arrived is kept for the next time."""
        parsed = sources.parse(source, insecure=insecure)
        id = ids.check(name or parsed.id)
        key = (names.key(id), parsed)
        flight = self._flights.get(key)
        if flight is None or flight.over:
            transfer = Transfer(
                id, source, parsed, self._downloads, self._blobs, self._pulls, self._notify, self._outlook
            )
            flight = self._flights[key] = Flight(lambda report: self._pull(transfer, report))
        try:
            async with aclosing(flight.watch()) as statuses:
                async for status in statuses:
                    yield status
        finally:
            if flight.over and self._flights.get(key) is flight:
                del self._flights[key]

    async def _pull(self, transfer: Transfer, report: Callable[[Status], None]) -> None:
        async with transfer.told(report):
            report(Status(status="pulling manifest"))
            brought = await transfer.bring(self._part_bytes)
            transfer.report(Status(status="writing manifest"))
            await self._install(transfer.id, brought, replace=False)
            self._pulls.forget(transfer.id)
        report(Status(status="success"))

    async def push(self, name: str, insecure: bool = False) -> AsyncGenerator[Status, None]:
        """Send a model to the Ollama registry that its name says."""
        entry = self._catalog.entry(name.removeprefix("http://").removeprefix("https://"))
        spec = self.lookup(entry.id)
        target = sources.registry_name(name, insecure=insecure)

        async def work(report: Callable[[Status], None]) -> None:
            async with web.open_client(verify=target.verify, idle_s=120) as client:
                repository = Repository(client, target.base_url or self._downloads.ollama, target.name)
                await push.push(entry, spec, repository, report)
            report(Status(status="success"))

        async with aclosing(Flight(work).watch()) as statuses:
            async for status in statuses:
                yield status

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Hash models that were put there by hand, and clear away what a killed process left. Run it now and then."""
        self._models.mkdir(parents=True, exist_ok=True)
        await self._locked(lambda: shelf.sweep(self._models))
        async with files.held(self._models / ".settle.lock"):
            for entry in self._catalog.entries():
                if entry.files and await details.settle(entry.folder, entry.files):
                    self._changed(entry.id)

    def _existing(self, name: str) -> Entry | None:
        try:
            return self._catalog.entry(name)
        except ModelNotFound:
            return None

    async def _install(self, id: str, brought: Delivery, *, replace: bool) -> None:
        entry = self._existing(id)
        folder = entry.folder if entry else shelf.folder_for(self._models, id)
        await self._locked(lambda: shelf.install(self._models, folder, brought, self._blobs, replace=replace))
        self._changed(id)

    async def _locked(self, change: Callable[[], None]) -> None:
        """Run a change in a thread while no other process makes one."""
        self._models.mkdir(parents=True, exist_ok=True)
        async with files.held(self._models / ".lock"):
            await anyio.to_thread.run_sync(change)

    def _changed(self, id: str) -> None:
        self._catalog.look()
        self._notify(Notice(name="models.updated", model=id, at_s=time()))


def _same_weights(entry: Entry, brought: Delivery) -> bool:
    known = {facts.sha256 for facts in details.load(entry.folder).values()}
    return set(brought.digests.values()) <= known
