"""Where models are to be, whether somebody asks for them or not: pinned, loaded at the start, warmed before traffic.

Each engine is attended to when it comes, new or again, and when the configuration wants something else of it. What it
needs before it takes requests comes first; until then it shows as not ready. From then on, pinned models are looked
after.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from drivetrain.background import lasting
from drivetrain.config.schema import Config, Policy
from drivetrain.errors import DrivetrainError, Forbidden
from drivetrain.gateway.catalog import Catalog, Entry, Library
from drivetrain.gateway.discovery import family
from drivetrain.gateway.meter import Call, Meter, Outcome, Place
from drivetrain.gateway.pool import Member, Pool
from drivetrain.gateway.prepare import prepare
from drivetrain.gateway.wishes import FOR_EVER_S, Wish, place, wishes
from drivetrain.governance import Attempt
from drivetrain.policies.access import plain
from drivetrain.policies.prices import Table
from drivetrain.router import Candidate
from drivetrain.types import EmbedRequest, Message, Notice, Request, Sampling, Text, Usage
from drivetrain.ulid import ulid

LOOK_S = 0.25  # between two looks at who has come
KEEP_S = 5.0  # between two looks at whether pinned models are still there
DIALECT = "drivetrain.warm"  # of warm-up requests in the ledger
WHY = "warm-up"
HELLO = "Hi"  # after a system prompt: many templates want to hear a user

log = logging.getLogger("drivetrain.gateway")


class Record(Protocol):
    def attempt(self, attempt: Attempt) -> None: ...
    def notify(self, notice: Notice) -> None: ...


class Residence:
    """`run` it as long as there are engines. What a configuration wants is worked out every second: models of the
    library, and those that engines list, come and go."""

    def __init__(
        self,
        pool: Pool,
        library: Library,
        record: Record,
        prices: Callable[[], Table],
        sides: Callable[[Entry], Iterator[Entry]],
        version: Callable[[Candidate], str],
    ) -> None:
        """`sides` gives an entry as each arm of its rollout makes it: what is new is warm before callers reach it.
        `version`: of the model behind a candidate."""
        self._pool = pool
        self._library = library
        self._record = record
        self._prices = prices
        self._sides = sides
        self._version = version
        self._config = Config()
        self._catalog: Catalog | None = None
        self._wishes: Sequence[Wish] = ()
        self.pins: frozenset[tuple[str, str]] = frozenset()  # engine and model of what is to stay
        self._attended: dict[str, tuple[int, Sequence[Wish]]] = {}  # by engine: its round, and what it got
        self._checked_s: dict[str, float] = {}  # by engine: when it was last looked at for pinned models
        self._busy: set[str] = set()
        self._told: dict[tuple[str, str], str] = {}  # what last went wrong, said once
        self.embedded = True  # this process owns the embedded engine
        pool.warms = self._warms

    def configure(self, config: Config, catalog: Catalog) -> None:
        """Until they have been warmed, engines that nobody has seen yet take no requests."""
        self._config, self._catalog = config, catalog
        self._refresh()
        for member in self._pool.members.values():
            member.health = member.warmth.expect(member.health, needed=self._warms(member))

    # --- what is wanted -----------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        catalog, section = self._catalog, self._config.residency
        if catalog is None:
            return
        routed = [side for entry in self._known(self._config.models) for side in self._sides(entry)]
        pinned, preloaded = list(self._known(section.pin)), list(self._known(section.preload))
        self._wishes = wishes(routed, pinned=pinned, preloaded=preloaded)
        places = (place(wish.target) for wish in self._wishes if wish.pinned)
        self.pins = frozenset((family(engine), model) for engine, model in places)

    def _known(self, names: Sequence[str] | Mapping[str, Any]) -> Iterator[Entry]:
        """Those that there are: a model of the library may come, as one that an engine lists."""
        for name in names:
            try:
                if self._catalog is not None:
                    yield self._catalog.resolve(name)
            except DrivetrainError:
                continue

    def _of(self, member: Member) -> Sequence[Wish]:
        if member.embedded and not self.embedded:
            return ()
        names = (member.name, family(member.name))
        return tuple(wish for wish in self._wishes if wish.target.engine in names)

    def _warms(self, member: Member) -> bool:
        return bool(self._wishes) and any(wish.first for wish in self._of(member))

    def pinned(self, model: str) -> bool:
        """Whether the embedded engine is to keep this model of the library."""
        return bool(self.pins) and any(
            member.embedded and (member.name, plain(model)) in self.pins for member in self._pool.members.values()
        )

    def kept(self, request: Request | EmbedRequest, policy: Policy, candidate: Candidate) -> Mapping[str, Any]:
        """What is to be changed of a request so that the engine keeps its model as long as it is to."""
        keep_s = self.keep_alive_s(policy, candidate.engine, candidate.model, request.keep_alive_s)
        if keep_s == request.keep_alive_s:
            return {}
        return {"keep_alive_s": keep_s, "source": request.source and request.source.without(("keep_alive",))}

    def keep_alive_s(self, policy: Policy, engine: str, model: str, asked_s: float | None) -> float | None:
        """How long the engine is to keep its model after a request that asked for `asked_s`. None: as is its habit."""
        if self.pins and (family(engine), plain(model)) in self.pins:
            return FOR_EVER_S
        return policy.keep_alive_s if asked_s is None else asked_s

    def check_free(self, entry: Entry) -> None:
        """Raises `Forbidden` for a model that is to stay in memory."""
        if any((family(target.engine), plain(target.model)) in self.pins for target in entry.targets):
            raise Forbidden(
                f"model {entry.name!r} is pinned: it stays in memory until it is taken out of `residency.pin`",
                param="model",
            )

    # --- at work ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        refreshed_s = 0.0
        async with asyncio.TaskGroup() as group:
            while True:
                if time.monotonic() - refreshed_s > 1.0:
                    refreshed_s = time.monotonic()
                    self._refresh()
                for member in tuple(self._pool.members.values()) if self._wishes else ():
                    if self._due(member, self._of(member)):
                        self._busy.add(member.name)
                        group.create_task(self._see_to(member))
                await asyncio.sleep(LOOK_S)

    def _due(self, member: Member, mine: Sequence[Wish]) -> bool:
        if not mine or not member.warmth.round or not member.health.live or member.name in self._busy:
            return False
        if self._attended.get(member.name) != (member.warmth.round, mine):
            return True
        pinned = any(wish.pinned for wish in mine)
        return pinned and time.monotonic() - self._checked_s.get(member.name, 0.0) > KEEP_S

    async def _see_to(self, member: Member) -> None:
        try:
            await lasting(f"the models that engine {member.name!r} is to have", partial(self._attend, member))
        finally:
            self._busy.discard(member.name)

    async def _attend(self, member: Member) -> None:
        """It may have gone meanwhile, or something else may be wanted of it."""
        round, mine = member.warmth.round, self._of(member)
        if self._pool.members.get(member.name) is not member:
            return
        before, granted = self._attended.get(member.name, (0, ()))
        if (before, granted) != (round, mine):
            fresh = [wish for wish in mine if before != round or wish not in granted]
            await self._settle(member, fresh, round)
            self._attended[member.name] = (round, mine)
        else:
            await self._keep(member, mine)
        self._checked_s[member.name] = time.monotonic()

    async def _settle(self, member: Member, fresh: Sequence[Wish], round: int) -> None:
        """What comes before requests, then the rest."""
        before = [wish for wish in fresh if wish.first]
        if before:
            self._tell("engine.warming", member)
            for wish in before:
                await self._grant(member, wish)
            member.warmth.warmed(round)
            await self._pool.probe(member)
            self._tell("engine.warm", member)
        for wish in fresh:
            if not wish.first:
                await self._grant(member, wish)

    async def _grant(self, member: Member, wish: Wish) -> None:
        """An engine that cannot is no worse for it: it takes requests, and whoever asks for the model hears why."""
        warm = wish.policy.warm
        try:
            async with asyncio.timeout(warm.within_s):
                if warm.load or wish.pinned or wish.preloaded:
                    await self._load(member, wish)
                for prompt in wish.prompts:
                    await self._read(member, wish, prompt)
        except TimeoutError:
            self._complain(member, wish, f"it was not done within {warm.within_s:g} s")
        except DrivetrainError as error:
            self._complain(member, wish, error.message)
        else:
            self._told.pop((member.name, wish.target.model), None)

    async def _keep(self, member: Member, mine: Sequence[Wish]) -> None:
        """Bring back pinned models that have gone: a worker died, or somebody else has sent them away."""
        try:
            there = {plain(one.model.id) for one in await member.engine.loaded()}
        except DrivetrainError:
            return  # the next probe tells
        for wish in mine:
            if wish.pinned and plain(wish.target.model) not in there:
                await self._grant(member, wish)

    async def _load(self, member: Member, wish: Wish) -> None:
        await member.engine.load(wish.target.model, keep_alive_s=wish.keep_alive_s, options=wish.settings)

    async def _read(self, member: Member, wish: Wish, prompt: str) -> None:
        """Have the engine read a system prompt, for one token of an answer. It is on record as any other attempt."""
        request = self._request(member, wish, prompt)
        target = wish.target
        candidate = Candidate(engine=member.name, model=target.model, why=WHY, version=target.version)
        price = self._prices().find(member.name, target.model, wish.name, time.time())
        meter = Meter(candidate, 1, price=price)
        try:
            async with aclosing(member.engine.generate(request)) as batches:
                async for events in batches:
                    meter.see(events)
        except DrivetrainError as error:
            meter.reported, meter.free = Usage(), True
            self._book(member, wish, request, meter, "error", error.status, error.code)
            raise
        self._book(member, wish, request, meter, "ok", 200, WHY)

    def _request(self, member: Member, wish: Wish, prompt: str) -> Request:
        system = (Message(role="system", content=(Text(text=prompt),)),) if prompt else ()
        request = Request(
            model=wish.target.model,
            messages=(*system, Message(role="user", content=(Text(text=HELLO),))),
            sampling=Sampling(max_tokens=1),
            stream=True,
            keep_alive_s=wish.keep_alive_s,
            options=wish.settings,
        )
        spec = self._library.lookup(wish.target.model) if member.embedded else None
        return prepare(request, model=wish.target.model, spec=spec, layers={}, native=True)

    def _book(
        self, member: Member, wish: Wish, request: Request, meter: Meter, outcome: Outcome, status: int, why: str
    ) -> None:
        call = Call(id=f"req_{ulid()}", dialect=DIALECT, received_s=meter.started_s)
        at = Place(member.config.region or "", version=self._version(meter.candidate))
        row = meter.row(request, call, model=wish.name, outcome=outcome, status=status, why=why, place=at)
        self._record.attempt(row)

    def _complain(self, member: Member, wish: Wish, why: str) -> None:
        if self._told.get((member.name, wish.target.model)) != why:
            self._told[member.name, wish.target.model] = why
            log.warning("model %r could not be made ready at engine %r: %s", wish.target.model, member.name, why)

    def _tell(self, name: str, member: Member) -> None:
        self._record.notify(Notice(name=name, engine=member.name, at_s=time.time()))
