"""Where the parts of a model arrive: each becomes a blob, once, whoever else may be fetching it at the same time."""

import errno
import hashlib
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import anyio.to_thread

from drivetrain import web
from drivetrain.library import download, files, foresight
from drivetrain.library.blobs import Blobs
from drivetrain.library.download import Corrupt, Download, Remote
from drivetrain.library.foresight import Outlook
from drivetrain.library.status import Status

_TELL_EVERY_S = 0.1


class Depot:
    """What a source of models works with: it fetches into `blobs` and reports how that goes."""

    def __init__(
        self,
        client: web.Client,
        blobs: Blobs,
        report: Callable[[Status], None],
        *,
        connections: int = 4,
        part_bytes: int = download.PART_BYTES,
        noted: Callable[[Mapping[str, int]], None] = lambda parts: None,
        outlook: Outlook | None = None,
    ) -> None:
        """`noted` hears which files of `blobs` the parts land in, and how long they will be."""
        self._outlook = outlook
        self.client, self.blobs, self.report, self._noted = client, blobs, report, noted
        self._connections, self._part_bytes = connections, part_bytes
        self._landings: dict[str, int] = {}
        self.wanted: dict[str, int] = {}  # bytes of each part that this errand consists of
        self.arrived: dict[str, int] = {}

    def expect(self, parts: Iterable[Remote], what: str) -> None:
        """Announce all parts at once. Raises `StorageFull` if they will not fit."""
        missing = 0
        for part in parts:
            if part.size is not None:
                self.wanted[_key(part)] = part.size
                missing += self._missing(part, part.size)
                self._note(part, part.size)
        self.blobs.folder.mkdir(parents=True, exist_ok=True)
        files.need_room(self.blobs.folder, missing, what)

    async def foresee(self, weights: Sequence[Remote]) -> None:
        """Tell what to expect of a model that is not here yet, if there is something to say."""
        if self._outlook is None or all(part.digest and self.blobs.has(part.digest) for part in weights):
            return
        if line := await foresight.told(self._outlook, self.client, weights):
            self.report(Status(status=line))

    def _missing(self, part: Remote, size: int) -> int:
        if part.digest and self.blobs.has(part.digest):
            return 0
        state = download.load_state(self._landing(part))
        return size - (state.arrived if state else 0)

    def _note(self, part: Remote, size: int) -> None:
        name = self._landing(part).name
        if self._landings.get(name) != size:
            self._landings[name] = size
            self._noted(self._landings)

    def _landing(self, part: Remote) -> Path:
        """Where the part lies while it is unfinished, or complete and not yet verified."""
        name = part.digest.replace(":", "-") if part.digest else f"url-{_key(part).removeprefix('sha256:')}"
        return self.blobs.folder / f".{name}"

    async def fetch(self, part: Remote) -> str:
        """Bring the part and return its digest, `sha256:…`."""
        self.blobs.folder.mkdir(parents=True, exist_ok=True)
        landing, tell = self._landing(part), self._teller(_key(part), part)
        if self._there(part, tell):
            return part.digest or ""
        async with files.held(landing.with_name(f"{landing.name}.lock"), lambda: _tell_of_another(landing, tell)):
            if self._there(part, tell):  # somebody else brought it meanwhile
                return part.digest or ""
            if not landing.is_file():
                await Download(
                    self.client, part, landing, connections=self._connections, told=tell, part_bytes=self._part_bytes
                ).run()
            return await self._verified(part, landing)

    def _there(self, part: Remote, tell: Callable[[int, int | None], None]) -> bool:
        if part.digest is None or not self.blobs.has(part.digest):
            return False
        size = self.blobs.path(part.digest).stat().st_size
        tell(size, size)
        return True

    async def _verified(self, part: Remote, landing: Path) -> str:
        self.report(Status(status="verifying sha256 digest"))
        digest = f"sha256:{await files.sha256(landing)}"
        if part.digest not in (None, digest):
            files.remove(landing)
            raise Corrupt(f"digest mismatch, file must be downloaded again: want {part.digest}, got {digest}")
        self.blobs.adopt(landing, digest)
        return digest

    def _teller(self, key: str, part: Remote | None = None) -> Callable[[int, int | None], None]:
        """Reports progress ten times a second, at each hundredth, and at the end."""
        last_s, last_bytes = float("-inf"), 0

        def tell(completed: int, total: int | None) -> None:
            nonlocal last_s, last_bytes
            self.arrived[key] = max(completed, self.arrived.get(key, 0))
            if total is not None:
                self.wanted[key] = total
                if part is not None:
                    self._note(part, total)
            hundredth = total is not None and completed - last_bytes >= total // 100
            if completed == total or hundredth or monotonic() - last_s > _TELL_EVERY_S:
                last_s, last_bytes = monotonic(), completed
                self.report(Status(status=f"pulling {key[7:19]}", digest=key, total=total, completed=self.arrived[key]))

        return tell

    async def adopt_local(self, path: Path, digest: str | None) -> str:
        """Make a file of this machine a blob, by a link where the file system can. It is hashed either way."""
        draft = self.blobs.draft()
        size = files.size_of(path)
        try:
            if digest is not None and _linked(path, draft):
                found = await files.sha256(draft)
            else:
                found = await files.copy_hashed(path, draft)
            if digest not in (None, f"sha256:{found}"):
                raise Corrupt(f"{path.name} on this machine is damaged: want {digest}, got sha256:{found}")
            self._teller(f"sha256:{found}")(size, size)
            if not self.blobs.has(f"sha256:{found}"):
                self.blobs.adopt(draft, f"sha256:{found}")
        finally:
            draft.unlink(missing_ok=True)
        return f"sha256:{found}"

    async def unpack(self, archive: Path, suffix: str) -> tuple[str, str]:
        """The one file of a zip archive whose name ends in `suffix`: its bare name, and its digest as a blob."""
        draft = self.blobs.draft()
        try:
            with zipfile.ZipFile(archive) as opened:
                inside = [info for info in opened.infolist() if info.filename.endswith(suffix)]
                if len(inside) != 1:
                    raise Corrupt(f"{archive.name}: it holds {len(inside)} files named *{suffix}, not one")
                files.need_room(self.blobs.folder, inside[0].file_size, f"unpacking {inside[0].filename}")
                with opened.open(inside[0]) as file:
                    digest = f"sha256:{await files.write_hashed(file, draft)}"
        except zipfile.BadZipFile as error:
            raise Corrupt(f"{archive.name}: {error}") from error
        else:
            await anyio.to_thread.run_sync(self.blobs.adopt, draft, digest)
            return os.path.basename(inside[0].filename), digest
        finally:
            draft.unlink(missing_ok=True)

    async def text(self, part: Remote, limit: int) -> str:
        """A small part, in memory, verified."""
        with web.translated(part.url):
            async with self.client.stream("GET", part.url, headers=dict(part.headers)) as response:
                if response.status_code != 200:
                    raise web.Unreachable(f"{part.url}: it answers with status {response.status_code}")
                data = await web.read_limited(response, limit)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if part.digest not in (None, digest):
            raise Corrupt(f"digest mismatch, file must be downloaded again: want {part.digest}, got {digest}")
        return data.decode("utf-8", "replace")


def _linked(path: Path, draft: Path) -> bool:
    """Only for files that nobody will write to, such as an installed package's."""
    try:
        os.link(path, draft)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            raise
        return False
    return True


def _key(part: Remote) -> str:
    return part.digest or f"sha256:{hashlib.sha256(part.url.encode()).hexdigest()}"


def _tell_of_another(landing: Path, tell: Callable[[int, int | None], None]) -> None:
    """Another process downloads the same: show how far it is."""
    state = download.load_state(landing)
    if state is not None:
        tell(state.arrived, state.total)
