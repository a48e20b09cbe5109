"""Lifecycle events on their way to whoever listens. Telling never blocks; who is slow loses the oldest, and is told.

`EVENTS` is the list of all names, with Jan's name of each; `docs/reference/events.md` is made from it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import anyio
import msgspec

from drivetrain.types import Notice

KEPT = 256  # notices that are replayed to a listener who comes back
BUFFER = 256  # notices that a listener may be behind
KEEP_ALIVE_S = 15.0  # silence after which proxies begin to close connections
KEEP_ALIVE = b": keep-alive\n\n"  # a comment: every SSE client ignores it

Naming = Literal["drivetrain", "jan"]


class EventKind(NamedTuple):
    meaning: str
    jan: str | None = None  # Jan's and cortex's name of the same event


EVENTS = {
    "model.loading": EventKind("A model is being brought into memory; told again as it proceeds.", "OnModelInit"),
    "model.ready": EventKind("It takes requests.", "OnModelReady"),
    "model.failed": EventKind("It could not be loaded, or its worker died; `error` tells why.", "OnModelFail"),
    "model.unloading": EventKind("It is leaving memory, once its running requests are done.", "OnModelStop"),
    "model.unloaded": EventKind("It has left memory.", "OnModelStopped"),
    "models.updated": EventKind("The library changed: a model was added, changed or deleted.", "OnModelsUpdate"),
    "engine.up": EventKind("An engine answers.", "OnEngineUpdate"),
    "engine.warming": EventKind("It loads and reads what it needs before it takes requests.", "OnEngineUpdate"),
    "engine.warm": EventKind("It has what it needs, and takes requests.", "OnEngineUpdate"),
    "engine.down": EventKind("An engine does not answer; `error` tells why.", "OnEngineUpdate"),
    "engine.set_aside": EventKind("It keeps failing: one request at a time tries it, after a pause.", "OnEngineUpdate"),
    "engine.taken_back": EventKind("It has answered such a request, and takes up its share again.", "OnEngineUpdate"),
    "engine.joined": EventKind("An instance was discovered.", "OnEngineUpdate"),
    "engine.left": EventKind("An instance is no longer there; its running requests may finish.", "OnEngineUpdate"),
    "engine.drained": EventKind("Somebody took it out: it gets no new requests.", "OnEngineUpdate"),
    "engine.resumed": EventKind("Somebody put it back in.", "OnEngineUpdate"),
    "config.updated": EventKind("A new configuration is in force.", "OnConfigurationUpdate"),
    "config.refused": EventKind("A new configuration was refused, the old one stays; `error` tells why."),
    "rollout.moved": EventKind("A rollout or an experiment of the model began, moved on or ended."),
    "download.started": EventKind("A model is being downloaded.", "DownloadStarted"),
    "download.progress": EventKind("`completed` of `total` bytes are there.", "DownloadUpdated"),
    "download.done": EventKind("The download is complete and verified.", "DownloadSuccess"),
    "download.failed": EventKind("It broke off; `error` tells why. A new attempt resumes it.", "DownloadError"),
    "download.stopped": EventKind("Somebody stopped it. A new attempt resumes it.", "DownloadStopped"),
    "lagged": EventKind("You were too slow, or away too long: notices before this one are missing."),
}


class Entry(NamedTuple):
    """A notice and its place in the order of all. Ids grow, across restarts too: they are microseconds of Unix time."""

    id: int
    notice: Notice


class Listener:
    """One subscription: an async iterator of entries, for one task."""

    def __init__(self, buffer: int) -> None:
        self.lagged = False
        self._entries: deque[Entry] = deque(maxlen=buffer)
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()

    def put(self, entry: Entry) -> None:
        """From any thread."""
        with self._lock:
            self.lagged = self.lagged or len(self._entries) == self._entries.maxlen
            self._entries.append(entry)
        self._loop.call_soon_threadsafe(self._arrived.set)

    async def next(self) -> Entry:
        """The oldest entry not seen yet; `lagged` in place of those that were lost."""
        while True:
            with self._lock:
                if self.lagged:
                    self.lagged = False
                    following = self._entries[0] if self._entries else Entry(0, Notice(name="lagged"))
                    return Entry(following.id - 1, Notice(name="lagged", at_s=following.notice.at_s))
                if self._entries:
                    return self._entries.popleft()
                self._arrived.clear()
            await self._arrived.wait()


class Notices:
    """All lifecycle events of this process, the last ones kept."""

    def __init__(self, clock: Callable[[], float], *, kept: int = KEPT, buffer: int = BUFFER) -> None:
        self._clock = clock
        self._buffer = buffer
        self._kept: deque[Entry] = deque(maxlen=kept)
        self._dropped = 0  # id of the newest entry that is kept no more
        self._last = 0
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def publish(self, notice: Notice) -> Entry:
        """Tell every listener. From any thread; never blocks. A notice without a time gets one."""
        now_s = self._clock()
        if not notice.at_s:
            notice = msgspec.structs.replace(notice, at_s=now_s)
        with self._lock:
            self._last = max(self._last + 1, int(now_s * 1e6))
            entry = Entry(self._last, notice)
            if len(self._kept) == self._kept.maxlen:
                self._dropped = self._kept[0].id
            self._kept.append(entry)
            for listener in self._listeners:
                listener.put(entry)
        return entry

    @contextmanager
    def subscribe(self, last_id: int | None = None) -> Iterator[Listener]:
        """Listen from now on, or from after the entry `last_id`, as far back as entries are kept."""
        listener = Listener(self._buffer)
        with self._lock:
            if last_id is not None:
                listener.lagged = last_id < self._dropped
                for entry in self._kept:
                    if entry.id > last_id:
                        listener.put(entry)
            self._listeners.append(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.remove(listener)

    async def stream(
        self, last_id: int | None = None, *, naming: Naming = "drivetrain", keep_alive_s: float = KEEP_ALIVE_S
    ) -> AsyncGenerator[bytes, None]:
        """The body of `GET /v1/events`: a comment at once, so that headers go out, then frames, and a comment after
        each silence of `keep_alive_s`. Ends when it is closed."""
        with self.subscribe(last_id) as listener:
            yield KEEP_ALIVE
            while True:
                frame = KEEP_ALIVE
                with anyio.move_on_after(keep_alive_s):
                    frame = encode(await listener.next(), naming)
                if frame:
                    yield frame


def alias(notice: Notice) -> str | None:
    """Jan's name of this event. Progress of a load has none: Jan says `OnModelInit` once."""
    if notice.name == "model.loading" and notice.fraction is not None:
        return None
    kind = EVENTS.get(notice.name)
    return kind.jan if kind else None


def encode(entry: Entry, naming: Naming = "drivetrain") -> bytes:
    """One SSE frame; nothing for an event that has no name in this naming."""
    notice = entry.notice
    jan = alias(notice)
    name = notice.name if naming == "drivetrain" else jan
    if name is None:
        return b""
    fields = {key: value for key, value in msgspec.structs.asdict(notice).items() if value is not None}
    data = msgspec.json.encode(fields | ({"alias": jan} if jan else {}))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (entry.id, name.encode(), data)


def table() -> str:
    """`EVENTS` in Markdown, as the reference shows it."""
    rows = [f"| `{name}` | {f'`{kind.jan}`' if kind.jan else ''} | {kind.meaning} |" for name, kind in EVENTS.items()]
    return "\n".join(["| Event | Jan's name | Meaning |", "|---|---|---|", *rows, ""])


def last_event_id(header: str | None) -> int | None:
    """The `Last-Event-ID` of a client that comes back; one that is not ours counts as none."""
    return int(header) if header and header.isascii() and header.isdigit() else None
