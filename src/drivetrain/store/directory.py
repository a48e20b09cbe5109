"""Who shows which key, known here before it is asked: a cache of the keys in use, kept up to date with the prices and
the plan of rollouts.

Every process asks twice a second whether the audit has a new line, and reads again what the lines tell of, so that a
revocation holds everywhere within a second. While the database is away, what is known goes on, and what was revoked
stays so; of a key that is not known nothing can be said.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from drivetrain.errors import StoreAway
from drivetrain.governance import Price, Principal, Rule, User
from drivetrain.rollouts.plan import Plan
from drivetrain.store.database import Store
from drivetrain.store.pepper import Pepper
from drivetrain.types import Value

EVERY_S = 0.5  # between two looks at the audit
DEADLINE_S = 2.0  # for a look, and for a key that is not known
CAPACITY = 20_000  # keys that are known at once
AT_START = 5_000  # of the newest keys are read before anybody shows them, so that they do without the database
SLICE = 500  # keys that are put in place before others get a turn
UNKNOWN_S = 2.0  # how long it is remembered that there is no such key
LOOK_UPS = 2  # at once
WARNINGS = 1_000  # keys of another pepper that the log tells of
_PLANNED = frozenset({"rollout", "prompt"})  # kinds of what the plan consists of
_CANNOT_TELL = "the key is not known here, and the store that would know it is away; try again"

T = TypeVar("T")
log = logging.getLogger("drivetrain.store")


class KeyRecord(Value, frozen=True, kw_only=True):
    """A key, as far as the request path needs it."""

    id: str  # of this key; `principal.key_id` is that of the first of its line, if it took another one's place
    public_id: str
    principal: Principal
    hash: str  # see `drivetrain.keys`
    pepper: str  # id of the pepper that it was made with
    not_after_s: float | None = None  # Unix time
    disabled: bool = False  # it was revoked, or its user, project, team or organisation is disabled

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids that have to be in force for it to open anything: its own, and those above."""
        who = self.principal
        return self.id, who.user, who.project, who.team, who.org


class News(Value, frozen=True, kw_only=True):
    """What the lines of the audit tell that are not known yet."""

    head: tuple[int, str]  # number and hash of the newest
    whole: bool = False  # all may have changed: the line that was known is not there, or too far back
    kinds: frozenset[str] = frozenset()  # of what has changed
    ids: frozenset[str] = frozenset()  # of it; limits and budgets by whom they bind
    barred: frozenset[str] = frozenset()  # those that were revoked, disabled or deleted


class Reading(Value, frozen=True, kw_only=True):
    """What was read again."""

    keys: Mapping[str, KeyRecord | None]  # by public id; `None`: gone
    prices: tuple[Price, ...] | None = None  # all of them, if one has changed
    drained: frozenset[str] | None = None  # all of them, if one has changed
    plan: Plan | None = None  # the whole of it, if a rollout or a prompt has changed


class Directory:
    """One for each process. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        pepper: Pepper,
        clock: Callable[[], float] = time.time,
        *,
        capacity: int = CAPACITY,
    ) -> None:
        self.away = False  # the database, when it was last asked
        self.prices: tuple[Price, ...] = ()  # another tuple whenever one has changed
        self.drained: frozenset[str] = frozenset()  # engines that were taken out of service
        self.plan = Plan()  # another one whenever a rollout or a prompt has changed
        self.on_change: Callable[[], None] = lambda: None  # called when something was read again
        self._store = store
        self._pepper = pepper
        self._clock = clock
        self._capacity = capacity
        self._deadline_s = DEADLINE_S
        self._head: tuple[int, str] | None = None  # the newest line of the audit that is known
        self._floor = 0  # what is read at an older revision is out of date
        self._known: OrderedDict[str, tuple[KeyRecord, int]] = OrderedDict()  # with the revision that it was read at
        self._unknown: OrderedDict[str, float] = OrderedDict()  # until when there is no such key
        self._looking = anyio.Lock()
        self._turn = anyio.Semaphore(LOOK_UPS)
        self._askers = anyio.CapacityLimiter(LOOK_UPS)  # of their own: nobody else's threads hold them up
        self._lookers = anyio.CapacityLimiter(1)
        self._warned: set[str] = set()
        self._ready = False  # for questions, but the one for the newest line, which needs nothing

    @property
    def revision(self) -> int:
        """Everything up to this line of the audit is known here."""
        return self._head[0] if self._head else 0

    @property
    def size(self) -> int:
        return len(self._known)

    def rules(self) -> Mapping[str, Rule]:
        """Every limit and budget that binds a key which is known here, by its id."""
        return {rule.id: rule for record, _ in self._known.values() for rule in record.principal.rules}

    def cached(self, public_id: str) -> KeyRecord | None:
        """The key, if it is known here and may be used, but for its time: that is for who shows it. `find` tells
        whether there is one that is not known here."""
        found = self._known.get(public_id)
        if found is None or found[0].disabled:
            return None
        self._known.move_to_end(public_id)
        return found[0]

    async def find(self, public_id: str) -> KeyRecord | None:
        """The key, or `None` if there is none, or it was revoked. Raises `StoreAway` if that cannot be told."""
        if not self._is_told(public_id):
            async with self._turn:
                if not self._is_told(public_id):  # others may have asked for the same
                    await self._look_up(public_id)
        return self.cached(public_id)

    async def user_of(self, subject: str) -> User | None:
        """Whom an identity provider calls `subject`; disabled also where the organisation is. Asked for each time.
        Raises `StoreAway`."""
        return await self._query(partial(self._read_user, subject), self._askers)

    async def refresh(self) -> bool:
        """Look at the audit now, and read again what has changed. Whether the database could be asked."""
        async with self._looking:
            try:
                await self._look()
            except StoreAway as error:
                self._is_away(error.message)
                return False
            self._is_back()
        return True

    async def run(self) -> None:
        """Keep up to date until cancelled."""
        while True:
            await self.refresh()
            await anyio.sleep(EVERY_S)

    # --- what is known ------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        newest = await self._ask(self._store.revision, self._lookers)
        if newest == 0 and self.revision:
            raise StoreAway(f"the store {self._store} was made anew and is empty; put the old one back, or restart")
        if newest == 0:
            self._head = (0, "")  # nothing was ever written: neither keys nor prices
        elif newest != self.revision:
            await self._catch_up(await self._query(partial(self._read_news, self._head), self._lookers))

    async def _catch_up(self, news: News) -> None:
        """Whom the news bars is out at once; then all that they concern is read again, and there may be much of it."""
        self._floor = news.head[0]
        if news.whole or "key" in news.kinds:
            self._unknown.clear()
        if news.whole:
            self._known = OrderedDict((id, (record, 0)) for id, (record, _) in self._known.items())
        known = [record for record, _ in self._known.values()]  # what comes from now on is new enough
        concerned = await self._work(partial(_concerned, known, news))
        for record in concerned:
            if not news.barred.isdisjoint(record.needs):
                self._bar(record.public_id)
        reading = await self._work(partial(self._read_again, news, concerned))
        for number, (public_id, read) in enumerate(reading.keys.items()):
            if number % SLICE == 0:
                await anyio.lowlevel.checkpoint()
            self._keep(public_id, read, news.head[0])
        if reading.prices is not None:
            self.prices = reading.prices
        if reading.drained is not None:
            self.drained = reading.drained
        if reading.plan is not None:
            self.plan = reading.plan
        self._head = news.head
        self.on_change()

    def _bar(self, public_id: str) -> None:
        if found := self._known.get(public_id):
            self._known[public_id] = (msgspec.structs.replace(found[0], disabled=True), found[1])

    async def _look_up(self, public_id: str) -> None:
        """Never what is older than what is known here: it might be a key that has been revoked since."""
        revision, record = -1, None
        while revision < self._floor:
            if self.away:
                raise StoreAway(_CANNOT_TELL, retry_after_s=1.0)
            try:
                revision, record = await self._query(partial(self._read_key, public_id), self._askers)
            except StoreAway as error:  # whose message is not for somebody who has shown no key
                log.warning("a key could not be looked up: %s", error.message)
                raise StoreAway(_CANNOT_TELL, retry_after_s=1.0) from error
        self._keep(public_id, record, revision)

    def _keep(self, public_id: str, record: KeyRecord | None, revision: int) -> None:
        known = self._known.get(public_id)
        if known is not None and known[1] > revision:
            return
        if record is None:
            self._known.pop(public_id, None)
            self._unknown[public_id] = self._clock() + UNKNOWN_S
        else:
            self._known[public_id] = (record, revision)
            self._warn_of_pepper(record)
        for memory in (self._known, self._unknown):
            while len(memory) > self._capacity:
                memory.popitem(last=False)

    def _is_told(self, public_id: str) -> bool:
        """Whether it is known here that there is such a key, or that there is none."""
        until_s = self._unknown.get(public_id)
        return public_id in self._known or (until_s is not None and 0 < until_s - self._clock() <= UNKNOWN_S)

    def _warn_of_pepper(self, record: KeyRecord) -> None:
        if record.pepper != self._pepper.id and record.id not in self._warned and len(self._warned) < WARNINGS:
            self._warned.add(record.id)
            log.error(
                "key %r (%s) was hashed with pepper %s, and here it is %s: it opens nothing; bring back state/pepper or"
                " keys.pepper, or make a new key",
                *(record.principal.name, record.public_id, record.pepper, self._pepper.id),
            )

    def _is_away(self, reason: str) -> None:
        if not self.away:
            log.warning("keys that are known go on, others cannot be looked up: %s", reason)
        self.away = True

    def _is_back(self) -> None:
        if self.away:
            log.warning("keys are looked up again")
        self.away = False

    # --- reading, on a thread -----------------------------------------------------------------------------------------

    async def _query(self, question: Callable[[], T], askers: anyio.CapacityLimiter) -> T:
        """As `_ask`, with what the first question has to import, which is not the database's delay."""
        if not self._ready:
            await anyio.to_thread.run_sync(self._prepare, abandon_on_cancel=True, limiter=askers)
            self._ready = True
        return await self._ask(question, askers)

    def _prepare(self) -> None:
        from drivetrain.store import records  # noqa: F401 - the import is what takes long

        self._store.engine()

    async def _ask(self, question: Callable[[], T], askers: anyio.CapacityLimiter) -> T:
        with anyio.move_on_after(self._deadline_s):
            return await anyio.to_thread.run_sync(question, abandon_on_cancel=True, limiter=askers)
        waited = f"{self._deadline_s:g} s"
        raise StoreAway(f"the store {self._store} has not answered in {waited}; try again", retry_after_s=1.0)

    async def _work(self, work: Callable[[], T]) -> T:
        """May take long; the database has deadlines of its own."""
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._lookers)

    def _read_news(self, head: tuple[int, str] | None) -> News:
        from drivetrain.store import records

        with self._store.reading() as connection:
            return records.news(connection, head)

    def _read_again(self, news: News, concerned: Sequence[KeyRecord]) -> Reading:
        from drivetrain.store import drains, records, rollouts

        with self._store.reading() as connection:
            found = records.by_public_id(connection, [record.public_id for record in concerned])
            new = {} if news.whole else records.by_id(connection, news.ids if "key" in news.kinds else ())
            if self._head is None:
                new = records.usable(connection, min(self._capacity, AT_START), self._clock())
            return Reading(
                keys={**{record.public_id: None for record in concerned}, **found, **new},
                prices=records.all_prices(connection) if news.whole or "price" in news.kinds else None,
                drained=drains.drained(connection) if news.whole or drains.KIND in news.kinds else None,
                plan=rollouts.plan(connection) if news.whole or not _PLANNED.isdisjoint(news.kinds) else None,
            )

    def _read_key(self, public_id: str) -> tuple[int, KeyRecord | None]:
        from drivetrain.store import audit, records

        with self._store.reading() as connection:
            revision, _ = audit.newest(connection)
            return revision, records.by_public_id(connection, [public_id]).get(public_id)

    def _read_user(self, subject: str) -> User | None:
        from drivetrain.store import records

        with self._store.reading() as connection:
            return records.user_of(connection, subject)


def _concerned(known: Sequence[KeyRecord], news: News) -> Sequence[KeyRecord]:
    if news.whole:
        return known
    return [record for record in known if record.principal.key_id in news.ids or not news.ids.isdisjoint(record.needs)]
