"""The ledger: every attempt becomes one row, exactly once, and no caller waits for it.

`append` copies the row into the journal, where it outlives this process, and into a queue; one thread commits the queue
in batches. While the database is away, rows wait in memory up to a bound, then in the journal alone; they are
written when it is back, or at the next start. The key of a row makes writing it twice harmless.
"""

import logging
import threading
from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from drivetrain.background import sound
from drivetrain.errors import StoreAway
from drivetrain.governance import Attempt
from drivetrain.store.database import Rows, Store
from drivetrain.store.journal import Journal, Segment
from drivetrain.store.kept import Keepsake

Drained = Callable[[Sequence[Attempt], int], None]

GATHER_S = 0.05  # how long a batch gathers rows
RETRY_S = (0.1, 5.0)  # between tries while the database is away: first, and at most
MEMORY_ROWS = 10_000  # that wait for the database in memory; more wait in the journal alone
BATCH_ROWS = 1_000  # in one transaction, so that other processes get their turn
MEMORY_KEEPSAKES = 256  # that wait for the database; more are not kept
BATCH_KEEPSAKES = 32
LINE_BYTES = 4_096  # a longer row has a text that is no name; its texts are cut
TEXT_CHARACTERS = 200

log = logging.getLogger("drivetrain.store")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Attempt).decode


def _ignore(attempts: Sequence[Attempt], backlog: int) -> None:
    pass


class Ledger:
    """Writes attempts to a store. `start` it once, `append` to it, `close` it at the end."""

    def __init__(self, store: Store, state: Path, *, memory_rows: int = MEMORY_ROWS) -> None:
        self.away = False  # the database could not be written when that was last tried
        self.lost = 0  # rows that neither memory nor disk could keep
        self._store = store
        self._memory_rows = memory_rows
        self._journal = Journal(state / "ledger")
        self._refused = state / "ledger" / "refused.jsonl"
        self._lock = threading.Lock()  # queue, journal and numbers change together
        self._queue: deque[Attempt] = deque()  # rows number `_written + 1` and on
        self._keepsakes: deque[Keepsake] = deque()
        self._told = 0  # so many rows of the queue have been drained
        self._appended = 0  # number of the newest row
        self._written = 0  # rows up to this number are in the database
        self._journal_only = False  # rows newer than the queue's wait in the journal alone
        self._replay_to = 0  # rows up to this number are to be written from the journal
        self._orphans: list[Segment] = []
        self._rows: Rows | None = None
        self._awake = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._waiting: list[tuple[int, AbstractEventLoop, anyio.Event]] = []
        self._drained: Drained = _ignore
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    @property
    def backlog(self) -> int:
        """Rows that are not in the database yet."""
        return self._appended - self._written

    def start(self, drained: Drained = _ignore) -> None:
        """Begin to write, first what dead processes left in the journal. `drained` is called on the ledger's thread,
        with rows soon after they came, each once (but one that waits in the journal alone), and the backlog."""
        self._drained = drained
        self._thread.start()

    def append(self, attempt: Attempt) -> None:
        """Keep a row. Never waits, never raises."""
        try:
            line = _encode(attempt)
        except UnicodeEncodeError:  # half of a surrogate pair, as in a file's name that is no text
            line = b""
        if not 0 < len(line) <= LINE_BYTES:
            attempt = _cut(attempt)
            line = _encode(attempt)
        with self._lock:
            number = self._appended + 1
            kept = self._journal.append(line + b"\n", number)
            if not self._journal_only and len(self._queue) < self._memory_rows:
                self._queue.append(attempt)
            elif kept:
                self._journal_only = True
            else:
                self.lost += 1
                return
            self._appended = number
        if not self._awake:
            self._awake = True
            self._wake.set()

    def keep(self, keepsake: Keepsake) -> None:
        """Keep what was said in a request, or how it compared, unless the database is away for long: it is not
        journalled. Never waits, never raises."""
        if len(self._keepsakes) < MEMORY_KEEPSAKES:
            self._keepsakes.append(keepsake)
            self._wake.set()

    async def flush(self, timeout_s: float = 5.0) -> bool:
        """Whether every row appended so far is in the database, or came there in time."""
        done = anyio.Event()
        with self._lock:
            if self._written >= self._appended:
                return True
            self._waiting.append((self._appended, get_running_loop(), done))
        self._hurry.set()
        self._wake.set()
        with anyio.move_on_after(timeout_s):
            await done.wait()
        return done.is_set()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left and stop. What the database does not take stays in the journal for the next start."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        if self._thread.is_alive():
            await anyio.to_thread.run_sync(self._thread.join, timeout_s)

    # --- on the ledger's thread ---------------------------------------------------------------------------------------

    @property
    def _due(self) -> bool:
        return bool(self.backlog or self._keepsakes)

    def _run(self) -> None:
        self._orphans = list(self._journal.orphans())
        retry_s = 0.0
        while True:
            last = self._closing  # read first: a row that was appended before `close` is in this round
            told = sound("the ledger", partial(self._round, retry_s))
            retry_s = told if told is not None else self._broken(retry_s)
            if last and (retry_s or not self._due):
                break
            self._wait(retry_s)
        self._stop()

    def _round(self, retry_s: float) -> float:
        """As `_try_to_write`."""
        self._journal.prepare()
        self._tell()
        return self._try_to_write(retry_s)

    def _broken(self, retry_s: float) -> float:
        """As `_later`, after an error that nobody foresaw; whoever is told may be what broke."""
        later_s = self._later(retry_s)
        sound("the ledger", partial(self._drained, (), self.backlog))
        return later_s

    def _later(self, retry_s: float) -> float:
        """When to try again: on a connection of its own, for what has become of this one nobody knows."""
        self.away = True
        self._disconnect()
        return min(retry_s * 2, RETRY_S[1]) or RETRY_S[0]

    def _wait(self, retry_s: float) -> None:
        """Sleep until there is a row, and a moment more for those that come with it; or until the next try is due."""
        if not retry_s and not self._due:
            self._awake = False
            if not self._due and not self._closing:  # looked at after the flag: an append in between has seen it
                self._wake.wait()
            self._wake.clear()
            self._awake = True
        self._hurry.wait(retry_s or GATHER_S)
        self._hurry.clear()

    def _tell(self) -> None:
        with self._lock:
            rows = list(islice(self._queue, self._told, None))
            self._told = len(self._queue)
        self._drained(rows, self.backlog)

    def _try_to_write(self, retry_s: float) -> float:
        """Seconds until the next try; 0 if all went well."""
        try:
            self._write_all()
        except (StoreAway, OSError) as error:
            later_s = self._later(retry_s)
            if not retry_s:
                log.warning("the ledger cannot be written, %d rows are kept: %s", self.backlog, error)
            self._drained((), self.backlog)
            return later_s
        self.away = False
        if retry_s:
            log.warning("the ledger is written again")
        self._drained((), self.backlog)
        return 0.0

    def _write_all(self) -> None:
        """In the order of their numbers: what others left, what waits in memory, what waits in the journal alone."""
        while self._orphans:
            rows = self._replay(self._orphans[-1])
            self._orphans.pop().delete()
            if rows:
                log.info("the ledger took %d rows from the journal of a process that died", rows)
        if self._replay_to:
            self._write_journal()
        while self._told:
            with self._lock:
                batch = list(islice(self._queue, min(self._told, BATCH_ROWS)))
            self._insert(batch)
            self._reached(self._written + len(batch), popped=len(batch))
        with self._lock:
            if self._journal_only and not self._queue:
                self._journal.rotate()
                self._replay_to = self._appended
                self._journal_only = False
        if self._replay_to:
            self._write_journal()
        self._write_keepsakes()

    def _write_keepsakes(self) -> None:
        while batch := list(islice(self._keepsakes, BATCH_KEEPSAKES)):
            for one, reason in self._way_in().keep(batch):
                log.error("what was said in %s does not fit the store, and is not kept: %s", one.request_id, reason)
            for _ in batch:
                self._keepsakes.popleft()

    def _write_journal(self) -> None:
        for segment in self._journal.full():
            self._replay(segment)
        reached, self._replay_to = self._replay_to, 0
        self._reached(reached)

    def _replay(self, segment: Segment) -> int:
        rows = []
        for line in segment.lines():
            try:
                rows.append(_decode(line))
            except msgspec.MsgspecError as error:
                self._refuse(line, str(error))
        for start in range(0, len(rows), BATCH_ROWS):
            self._insert(rows[start : start + BATCH_ROWS])
        return len(rows)

    def _reached(self, number: int, *, popped: int = 0) -> None:
        """Rows up to `number` are in the database, the first `popped` of the queue among them."""
        with self._lock:
            for _ in range(popped):
                self._queue.popleft()
            self._told -= popped
            self._written = number
            free = self._journal.forget(number)
            done = [waiting for waiting in self._waiting if waiting[0] <= number]
            self._waiting = [waiting for waiting in self._waiting if waiting[0] > number]
        self._journal.reuse(free)
        for _, loop, event in done:
            with suppress(RuntimeError):  # its loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(event.set)

    def _insert(self, rows: Sequence[Attempt]) -> None:
        """One row that the database refuses must not hold up the others: it goes to a file of its own."""
        for row, reason in self._way_in().insert(rows):
            self._refuse(_encode(row), reason)

    def _way_in(self) -> Rows:
        if self._rows is None:
            self._rows = self._store.rows()
        return self._rows

    def _refuse(self, line: bytes, reason: str) -> None:
        log.error("a row does not fit the ledger, it is kept in %s: %s", self._refused, reason)
        with self._refused.open("ab") as file:
            file.write(line + b"\n")

    def _disconnect(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _stop(self) -> None:
        self._disconnect()
        if self.backlog:
            log.warning("%d rows of the ledger wait in the journal for the next start", self.backlog)
        with self._lock:
            self._journal.close(self._written)
        for orphan in self._orphans:
            orphan.close()


def _cut(attempt: Attempt) -> Attempt:
    """The row with its texts at a sensible length, of characters that can be written."""
    fields = msgspec.structs.asdict(attempt).items()
    texts = {name: value[:TEXT_CHARACTERS] for name, value in fields if isinstance(value, str)}
    writable = {name: text.encode(errors="replace").decode() for name, text in texts.items()}
    return msgspec.structs.replace(attempt, **writable)
