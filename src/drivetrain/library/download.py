"""One file from elsewhere: in parts at once, resumed where it was cut. What has arrived is never fetched twice.

Beside the unfinished file `NAME.partial` stands `NAME.partial.json`: which ranges have arrived, and the server's mark
of the version. Both survive a crash; the file gets its final name only when it is complete and its hash is right.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import random
from time import monotonic
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from drivetrain import web
from drivetrain.errors import Forbidden, NotFound, ServerError, StorageFull
from drivetrain.library import files

PART_BYTES = 64 * 2**20
RETRIES = 8  # in a row without a byte of progress
_SAVE_EVERY_S = 1.0
_WRITE_BYTES = 2**20
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
Headers = Mapping[str, str]


class Corrupt(ServerError):
    """What arrived from a registry or hub is not what was announced."""

    status = 424
    code = "digest_mismatch"


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A file elsewhere. `renew` makes fresh headers when the server no longer takes the old ones."""

    url: str
    digest: str | None = None  # "sha256:…"
    size: int | None = None
    headers: Headers = {}
    renew: Callable[[], Awaitable[Headers]] | None = None


class Span(msgspec.Struct):
    """A range of the file: [start, end), of which [start, at) has arrived."""

    start: int
    at: int
    end: int


class State(msgspec.Struct, kw_only=True):
    """What is known of an unfinished file."""

    url: str
    total: int | None = None
    version: str = ""  # a strong ETag or a time of change, for If-Range
    spans: list[Span] = []

    @property
    def arrived(self) -> int:
        return sum(span.at - span.start for span in self.spans)

    @property
    def reaches(self) -> int:
        """The length that the unfinished file must have at least."""
        return max((span.at for span in self.spans if span.at > span.start), default=0)


class _Cut(Exception):
    """The connection broke, or the server is busy: trying again may help."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class _Changed(Exception):
    """The file is another one than the one we have part of."""


class Download:
    """Brings one `Remote` to `path`. `told` hears of progress: bytes that have arrived, and of how many."""

    def __init__(
        self,
        client: web.Client,
        remote: Remote,
        path: Path,
        *,
        connections: int,
        told: Callable[[int, int | None], None],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client, self._remote, self._path, self._told = client, remote, path, told
        self._connections, self._part_bytes = connections, part_bytes
        self._host = urlsplit(remote.url).netloc or remote.url
        self._headers, self._renewed = remote.headers, False
        self._state = State(url=remote.url)
        self._pending: list[Span] = []  # that nobody has taken yet
        self._buffered = self._shown = 0
        self._saved_s = 0.0
        self._file = -1

    async def run(self) -> None:
        """Returns when the whole file is at `path`, as long as announced; its hash is the caller's business.

        Raises `StorageFull`, `NotFound`, `Forbidden` or `web.Unreachable`; what has arrived is kept.
        """
        self._file = os.open(partial_path(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._state = self._load()
            self._tell()
            await self._persistently_one_version()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._save)
            os.close(self._file)
        os.replace(partial_path(self._path), self._path)
        state_path(self._path).unlink(missing_ok=True)

    async def _persistently_one_version(self) -> None:
        for _ in range(3):
            try:
                return await self._fetch_all()
            except _Changed:
                self._state = State(url=self._remote.url)
                os.ftruncate(self._file, 0)
        raise Corrupt(f"{self._host}: the file changes while it is downloaded")

    # --- state --------------------------------------------------------------------------------------------------------

    def _load(self) -> State:
        state = load_state(self._path)
        if state is None or os.fstat(self._file).st_size < state.reaches:
            return State(url=self._remote.url)
        # A digest is the content's name, wherever it comes from; else address and version have to be the same.
        same = self._remote.digest is not None or (state.url == self._remote.url and state.version)
        fits = self._remote.size is None or self._remote.size == state.total
        return state if same and fits else State(url=self._remote.url)

    def _save(self) -> None:
        """Blocks. What the state claims is on the disk before the state is."""
        try:
            self._save_state()
        except StorageFull:
            self._give_way()
            self._save_state()

    def _save_state(self) -> None:
        claimed = msgspec.json.encode(self._state)
        with files.room_in(self._path.parent):
            os.fsync(self._file)
            draft = state_path(self._path).with_suffix(".tmp")
            draft.write_bytes(claimed)
            draft.replace(state_path(self._path))

    def _give_way(self) -> None:
        """On a full disk, drop the last of what has arrived so that the state of the rest can be kept."""
        begun = [span for span in self._state.spans if span.at > span.start]
        if begun:
            begun[-1].at = max(begun[-1].start, begun[-1].at - _WRITE_BYTES // 4)
            os.ftruncate(self._file, begun[-1].at)

    async def _save_now_and_then(self) -> None:
        if monotonic() - self._saved_s > _SAVE_EVERY_S:
            self._saved_s = monotonic()
            await anyio.to_thread.run_sync(self._save)

    def _tell(self) -> None:
        """Progress never goes back, even if content has to be fetched again."""
        self._shown = max(self._shown, self._state.arrived + self._buffered)
        self._told(self._shown, self._state.total if self._state.total is not None else self._remote.size)

    # --- fetching -----------------------------------------------------------------------------------------------------

    async def _fetch_all(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                if self._state.total is None:
                    await self._persistently(partial(self._begin, group))
                else:
                    self._need_room(self._state.total - self._state.arrived)
                    self._share_out(group)
                await self._work()
        except ExceptionGroup as several:  # plainly: Python 3.11.2 wraps again what `except*` raises
            raise _first(several) from None

    def _share_out(self, group: TaskGroup) -> None:
        """Start the other workers. The caller is one too."""
        self._pending = [span for span in self._state.spans if span.at < span.end]
        for _ in range(min(self._connections, len(self._pending)) - 1):
            group.start_soon(self._work)

    async def _work(self) -> None:
        while self._pending:
            await self._finish(self._pending.pop(0))

    async def _finish(self, span: Span) -> None:
        async def attempt() -> None:
            await self._fetch(span)

        while span.at < span.end:
            await self._persistently(attempt)

    async def _persistently(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Run `attempt` until it succeeds; give up after `RETRIES` failures in a row that brought nothing."""
        failures = 0
        while True:
            before = self._state.arrived
            try:
                return await attempt()
            except (_Cut, web.Unreachable) as error:
                failures = 0 if self._state.arrived > before else failures + 1
                if failures > RETRIES:
                    raise web.Unreachable(
                        f"{self._host}: the download breaks off again and again ({error}); what has arrived is kept"
                    ) from error
                await anyio.sleep(error.retry_after_s or _pause_s(failures))

    async def _begin(self, group: TaskGroup) -> None:
        """The first request: how long is the file, are there ranges? A part of it comes with the answer."""
        if self._state.total is not None:  # an earlier attempt found out, and broke off later
            return self._pending.insert(0, self._state.spans[0])
        size = self._remote.size if self._remote.size is not None else self._part_bytes
        async with self._opened(Span(0, 0, min(size, self._part_bytes))) as response:
            total = _total(response)
            if total is None or (self._remote.size is not None and total != self._remote.size):
                raise Corrupt(f"{self._host}: the file has {total} bytes, {self._remote.size} were announced")
            self._need_room(total)
            step = self._part_bytes if response.status_code == 206 else max(total, 1)
            spans = [Span(start, start, min(start + step, total)) for start in range(0, total, step)]
            self._state = State(url=self._remote.url, total=total, version=_version(response), spans=spans)
            await self._save_now_and_then()
            self._share_out(group)
            if spans:
                await self._receive(response, self._pending.pop(0))

    def _need_room(self, need_bytes: int) -> None:
        files.need_room(self._path.parent, need_bytes, f"the download of {self._remote.url.rsplit('/', 1)[-1]}")

    async def _fetch(self, span: Span) -> None:
        async with self._opened(span) as response:
            if response.status_code == 200 and len(self._state.spans) > 1:
                raise _Changed  # our If-Range did not match: ranges it knows
            if _total(response) != self._state.total:
                raise _Changed
            if response.status_code == 200:
                span.at = span.start  # a server that knows no ranges: from the start again
            await self._receive(response, span)

    @asynccontextmanager
    async def _opened(self, span: Span) -> AsyncIterator[web.Response]:
        headers = {**self._headers, "accept-encoding": "identity", "range": f"bytes={span.at}-{span.end - 1}"}
        if self._state.version and self._remote.digest is None:
            headers["if-range"] = self._state.version
        with web.translated(self._host):
            async with self._client.stream("GET", self._remote.url, headers=headers) as response:
                if response.status_code not in (200, 206):
                    await self._refused(response)
                if response.status_code == 206 and _first_byte(response) != span.at:
                    raise web.Unreachable(f"{self._host}: it sends another range than was asked for")
                yield response

    async def _refused(self, response: web.Response) -> None:
        """Raises for an answer that is not the file."""
        status = response.status_code
        if status in _PASSING:
            raise _Cut(f"status {status}", _retry_after_s(response))
        if status == 401 and self._remote.renew and not self._renewed:
            self._renewed, self._headers = True, await self._remote.renew()
            raise _Cut("new credentials")
        if status in (401, 403):
            raise Forbidden(f"{self._host}: it refuses the download (status {status}); credentials may be missing")
        if status in (404, 410):
            raise NotFound(f"{self._host}: there is no file {response.url.path}")
        if status == 416 and self._state.spans:
            raise _Changed
        raise web.Unreachable(f"{self._host}: it answers with status {status}")

    async def _receive(self, response: web.Response, span: Span) -> None:
        self._renewed = False
        pending = bytearray()
        try:
            async for data in response.aiter_raw():
                pending += data
                self._buffered += len(data)
                self._tell()
                if len(pending) >= _WRITE_BYTES:
                    await anyio.to_thread.run_sync(self._write, span, pending)
                    await self._save_now_and_then()
        finally:
            self._write(span, pending)  # at most a megabyte, kept even when we are cancelled
        if span.at < span.end:
            raise _Cut("it closed the connection early")

    def _write(self, span: Span, pending: bytearray) -> None:
        self._buffered -= len(pending)
        with files.room_in(self._path.parent), memoryview(pending) as data:
            sent, size = 0, min(len(data), span.end - span.at)
            try:
                while sent < size:
                    sent += os.pwrite(self._file, data[sent:size], span.at + sent)
            finally:
                span.at += sent
        pending.clear()


def _pause_s(failures: int) -> float:
    """Hardly any after progress; then longer and longer, spread out."""
    return min(0.02 * 4.0**failures, 15.0) * (0.5 + random() / 2)


def partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def state_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial.json")


def load_state(path: Path) -> State | None:
    """What is known of the unfinished file of `path`, if anything."""
    try:
        return msgspec.json.decode(state_path(path).read_bytes(), type=State)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def discard(path: Path) -> None:
    partial_path(path).unlink(missing_ok=True)
    state_path(path).unlink(missing_ok=True)


def _total(response: web.Response) -> int | None:
    if response.status_code == 206:
        text = response.headers.get("content-range", "").rpartition("/")[2]
    else:
        text = response.headers.get("content-length", "") if "content-encoding" not in response.headers else ""
    return int(text) if text.isdecimal() else None


def _first_byte(response: web.Response) -> int | None:
    text = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0].strip()
    return int(text) if text.isdecimal() else None


def _version(response: web.Response) -> str:
    """What If-Range takes: a strong ETag, else the time of change (RFC 9110 §13.1.5)."""
    etag = str(response.headers.get("etag", ""))
    if etag and not etag.startswith("W/"):
        return etag
    return str(response.headers.get("last-modified", ""))


def _retry_after_s(response: web.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 60.0) if text.isdecimal() else 0.0


def _first(group: ExceptionGroup) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
