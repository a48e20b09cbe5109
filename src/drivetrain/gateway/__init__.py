"""The one path of a request: resolve → admit → choose → generate → account.

Fails over to the next engine until the first content of an answer has gone to the caller, never after; what is given
whole goes when it has ended. Every attempt leaves one row in the ledger, whatever became of it. What only some policies
and rollouts want is kept apart: `arms`, `special`, `hedge`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from drivetrain.config.schema import Bodies, Config
from drivetrain.engines import Host
from drivetrain.errors import (
    CallerError,
    DrivetrainError,
    EngineError,
    EngineUnavailable,
    Forbidden,
    ModelNotFound,
)
from drivetrain.gateway.admission import Admission
from drivetrain.gateway.arms import Arms
from drivetrain.gateway.attempt import Attempts
from drivetrain.gateway.cache import Answers
from drivetrain.gateway.catalog import Catalog, Entry, Library
from drivetrain.gateway.choose import Chooser
from drivetrain.gateway.drain import Drains
from drivetrain.gateway.explain import Explanation, explanation
from drivetrain.gateway.hedge import Hedges
from drivetrain.gateway.house import House
from drivetrain.gateway.meter import Call, Meter, Trace
from drivetrain.gateway.pool import Member, Pool
from drivetrain.gateway.receipt import Receipt
from drivetrain.gateway.residence import Residence
from drivetrain.gateway.retries import Retries
from drivetrain.gateway.shadow import Shadows
from drivetrain.gateway.special import Owners, Special, wanted
from drivetrain.gateway.terms import Policies
from drivetrain.gateway.visit import Visit
from drivetrain.gateway.way import Leg
from drivetrain.governance import Attempt, Comparison, Principal, Resource, Rule, Said
from drivetrain.policies import access
from drivetrain.policies.prices import Table
from drivetrain.quota import Quota
from drivetrain.rollouts.plan import Plan
from drivetrain.router import Candidate, Decision, Facts
from drivetrain.types import (
    Embeddings,
    EmbedRequest,
    Event,
    Loaded,
    ModelSpec,
    Notice,
    Request,
)

__all__ = ["Call", "Gateway", "Receipt", "Record", "Trace"]


class Record(Protocol):
    """Where the gateway tells what happened."""

    def attempt(self, attempt: Attempt) -> None: ...
    def notify(self, notice: Notice) -> None: ...
    def enter(self) -> None:
        """A request is being answered, until `leave`."""

    def leave(self) -> None: ...
    def enqueue(self) -> None:
        """A request waits for its turn, until `dequeue`."""

    def dequeue(self) -> None: ...
    def refused(self, resource: Resource) -> None:
        """A limit or budget on this refused a request."""

    def compared(self, comparison: Comparison) -> None:
        """A copy of a request was answered, beside the caller's answer."""


class Gateway:
    """Owns the configuration snapshot in force, the pool of engines and the lines of those who wait."""

    keeps = False  # whether some policy keeps what is said

    def __init__(
        self,
        config: Config,
        library: Library,
        host: Host,
        record: Record,
        quota: Quota,
        prices: Callable[[], Table] = Table,
        plan: Callable[[], Plan] = Plan,
    ) -> None:
        """`prices` gives the table in force, `plan` the rollouts and prompts."""
        self._library = library
        self._admission = Admission(quota, record, shared=config.shared.url is not None)
        self._drains = Drains()
        self.pool = pool = Pool(host, record.notify)
        pool.on_change = self._list
        self.retries = Retries()
        self._chooser = Chooser(pool, library, prices)
        self._arms = Arms(plan, lambda targets: self.catalog.placed(targets))
        self.residence = Residence(pool, library, record, prices, self._arms.sides, self._chooser.version)
        self._attempts = Attempts(pool, library, self.residence)
        self._hedges = Hedges(self._attempts)
        self._policies = Policies()
        self._house = House(
            admission=self._admission,
            record=record,
            prices=prices,
            retries=self.retries,
            member=lambda name: pool.members.get(name),
            policies=self._policies,
            version=self._chooser.version,
        )
        self.shadows = Shadows(self._arms, self._route, self._attempts, self._house, record, self._best)
        self._owners = Owners(Answers(), self.shadows, self._chooser.version)
        self.configure(config)

    def configure(self, config: Config) -> Sequence[Member]:
        """Swap in a configuration. Returns the engines that it has no use for, to be retired by the caller.

        Raises `BadRequest` and keeps the old one if an engine cannot be opened.
        """
        gone = self.pool.open(config.engines, config.breaker)
        self.config = config
        self._list()
        self.keeps = any(policy.bodies.keep for policy in config.policies.values())
        self._special = frozenset(name for name, policy in config.policies.items() if wanted(policy))
        self._drains_some = any(policy.on_disconnect == "drain" for policy in config.policies.values())
        return gone

    def _list(self) -> None:
        """Which names there are, by the configuration and the instances in force."""
        self.catalog = Catalog(self.config, self._library, self.pool.members, self.pool.families)
        self._chooser.configure(self.config)
        self.residence.configure(self.config, self.catalog)

    async def cut(self) -> None:
        """End what is still being drained: it is settled and on record when this returns."""
        await self._drains.aclose()

    async def aclose(self) -> None:
        """Cut off what is still being drained, then the engines."""
        await self.cut()
        await self.pool.aclose()

    async def resolve(self, model: str) -> Entry:
        """As `Catalog.resolve`; a name that nobody knows is looked for at the engines once more."""
        try:
            return self.catalog.resolve(model)
        except DrivetrainError:
            await self.pool.refresh()
            return self.catalog.resolve(model)

    async def permitted(self, model: str, call: Call) -> Entry:
        """As `resolve`. Raises `Forbidden` where the caller's key may not use the model."""
        entry = await self.resolve(model)
        if call.who.models is not None and not access.may_use(call.who.models, entry.name):
            raise Forbidden(f"this key may not use model {model!r}; /v1/models lists those that it may", param="model")
        return entry

    def sides(self, entry: Entry) -> Iterator[Entry]:
        """The entry as each arm of its rollout makes it; itself where there is none."""
        return self._arms.sides(entry)

    def limited(self, entry: Entry, who: Principal) -> bool:
        """Whether a limit or budget counts this request, one of its fallbacks, or the copy that may be made of it."""
        if self.shadows.copied(entry.name):
            return True
        return any(self._admission.rules(who, other) for other in (entry, *self._fallbacks(entry)))

    def rules(self) -> Mapping[str, Rule]:
        """The limits and budgets of policies that have been met, by their ids."""
        return self._admission.met()

    def kept(self, model: str) -> Bodies | None:
        """How what is said to this model is to be kept, if it is."""
        if not self.keeps:
            return None
        try:
            bodies = self.catalog.resolve(model).policy.bodies
        except DrivetrainError:
            return None  # nothing will be said
        return bodies if bodies.keep else None

    def generate(self, request: Request, call: Call) -> AsyncGenerator[Sequence[Event], None]:
        """The answer, in batches of events as they arrive. Close the generator to stop the work.

        An answer that is not streamed comes in one batch when it has ended. Raises a `DrivetrainError` where no engine
        could answer. After the first content event it is the error of the engine that broke off.
        """
        terms = call.who.terms
        if not (self._drains_some or terms) or not self._drained(request.model, terms):
            return self._answer(request, call)
        receipt = call.receipt or Receipt()
        return self._drains.relay(self._answer(request, replace(call, receipt=receipt)), receipt)

    def _drained(self, model: str, terms: Sequence[Said]) -> bool:
        """Whether its answers are read to their end although the caller has gone."""
        try:
            policy = self.catalog.resolve(model).policy
        except DrivetrainError:
            return False  # there will be no answer
        return (self._policies.under(policy, terms).policy if terms else policy).on_disconnect == "drain"

    async def _answer(self, request: Request, call: Call) -> AsyncGenerator[Sequence[Event], None]:
        visit = await self._visit(request, call)
        special, entry = None, visit.leg.entry
        held: list[Event] = []  # of an answer that is given whole
        if entry.rollout or entry.policy_name in self._special:
            special = Special(self._owners, request, visit)
            if special.known is not None:
                yield visit.given(special.known)
                return
            visit.thread = special.thread
        with visit:
            while True:
                meter = await visit.reach()
                if special is None:
                    batches = self._attempts.generate(request, visit, visit.leg, meter)
                else:
                    batches = self._next(request, visit, meter)
                try:
                    async for events in batches:
                        if special is not None:
                            events = special.see(events)
                        if request.stream:
                            yield events
                        else:
                            held += events
                    break
                except EngineError as error:
                    visit.go_on(error)
                    if visit.broke_off is None:
                        held.clear()
                        if special is not None:
                            special.anew()
                except CallerError as error:
                    if (failed := visit.broke_off) is None:
                        raise
                    raise failed from error
                finally:
                    await batches.aclose()
        if held:
            yield held
        if special is not None:
            special.ended(visit)

    def _next(self, request: Request, visit: Visit, meter: Meter) -> AsyncGenerator[Sequence[Event], None]:
        """The next attempt at an answer, or at the rest of one."""
        if visit.broke_off is not None and visit.thread is not None:
            request = visit.thread.resumed()
        if self._hedges.watches(visit):
            return self._hedges.generate(request, visit, meter)
        return self._attempts.generate(request, visit, visit.leg, meter)

    async def _visit(self, request: Request | EmbedRequest, call: Call) -> Visit:
        """Where the request may go. A refusal is on record too."""
        visit = Visit(self._house, request, call)
        try:
            entry = self._arms.of(await self.permitted(request.model, call), request, call)
            decision = self._chooser.decide(entry, request, call)
            visit.begin(
                Leg(entry=entry, candidate=_first(decision, entry)),
                lambda: self._others(entry, decision, request, call),
            )
        except DrivetrainError as error:
            visit.refuse(error)
            raise
        return visit

    def _others(self, entry: Entry, decision: Decision, request: Request | EmbedRequest, call: Call) -> list[Leg]:
        """Where a request may go after the first engine: the other targets of the name, then those that a rollout
        has not replaced yet, then those of its fallbacks, as far as the key may use them."""
        legs, who = [Leg(entry=entry, candidate=candidate) for candidate in decision.order[1:]], call.who
        if (spill := entry.spill) is not None:
            legs += self._legs(spill, request, call)
        for other in self._fallbacks(entry):
            if who.models is None or access.may_use(who.models, other.name):
                legs += self._legs(other, request, call)
        return legs

    def _legs(self, entry: Entry, request: Request | EmbedRequest, call: Call) -> list[Leg]:
        order = self._chooser.decide(entry, request, call).order
        return [Leg(entry=entry, candidate=candidate) for candidate in order]

    def _fallbacks(self, entry: Entry) -> Iterator[Entry]:
        for name in entry.fallbacks:
            with suppress(ModelNotFound):  # the engine that had it has gone
                yield self.catalog.resolve(name)

    async def explain(self, model: str, facts: Facts, request: Request | None = None, session: str = "") -> Explanation:
        """Where a request would go. `request`: what its prompt begins with, if that is known.

        Raises `ModelNotFound`.
        """
        entry = await self.resolve(model)
        entries = (*self.sides(entry), *self._fallbacks(entry))
        decided = [(each, self._chooser.explain(each, facts, request, session)) for each in entries]
        return explanation(facts, decided, self.retries)

    def _route(self, model: str) -> Entry:
        return self.catalog.resolve(model)

    def _best(self, entry: Entry, request: Request, call: Call) -> Candidate:
        """The engine that a request goes to which has no other chance."""
        return _first(self._chooser.decide(entry, request, call), entry)

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        """Vectors from the first engine that gives them. Raises as `generate` does."""
        visit = await self._visit(request, call)
        with visit:
            while True:
                meter = await visit.reach()
                try:
                    return await self._attempts.embed(request, visit, visit.leg, meter)
                except EngineError as error:
                    visit.go_on(error)

    def spec_behind(self, engine: str, model: str) -> ModelSpec | None:
        """As `Attempts.spec_behind`."""
        return self._attempts.spec_behind(engine, model)

    async def load(self, model: str, *, keep_alive_s: float | None, options: Mapping[str, Any]) -> None:
        """Bring a model into memory at the first engine that it is routed to. Raises `LoadFailed` with the reason."""
        entry = await self.resolve(model)
        candidate = _first(self._chooser.usual(entry), entry)
        engine = self._attempts.member(candidate.engine).engine
        keep_s = self.residence.keep_alive_s(entry.policy, candidate.engine, candidate.model, keep_alive_s)
        await engine.load(candidate.model, keep_alive_s=keep_s, options={**entry.policy.settings, **options})

    async def preload(self, model: str, *, keep_alive_s: float | None, options: Mapping[str, Any]) -> Sequence[str]:
        """Bring a model into memory at every engine that it is routed to. Returns the names of those that have it then;
        raises why not, if none has."""
        entry = await self.resolve(model)
        options = {**entry.policy.settings, **options}
        places = {target.engine: target.model for target in entry.targets if target.weight}
        keeps = [self.residence.keep_alive_s(entry.policy, *place, keep_alive_s) for place in places.items()]
        engines = [self._attempts.member(name).engine for name in places]
        asked = zip(engines, places.values(), keeps, strict=True)
        loads = [engine.load(model, keep_alive_s=keep_s, options=options) for engine, model, keep_s in asked]
        ends = await asyncio.gather(*loads, return_exceptions=True)
        failures = [end for end in ends if end is not None]
        for failure in failures:
            if len(failures) == len(ends) or not isinstance(failure, DrivetrainError):
                raise failure
        return [name for name, end in zip(places, ends, strict=True) if end is None]

    async def unload(self, model: str) -> None:
        """Free a model's memory at every engine that it is routed to, once its running requests are done."""
        for target in (await self.resolve(model)).targets:
            await self._attempts.member(target.engine).engine.unload(target.model)

    async def dismiss(self, model: str) -> None:
        """As `unload`, because a caller wants it. Raises `Forbidden` for a model that is to stay."""
        self.residence.check_free(await self.resolve(model))
        await self.unload(model)

    async def forget(self, model: str) -> None:
        """Free the memory of a library model that is about to go, at whichever engine has it."""
        for member in self.pool.members.values():
            if member.embedded:
                await member.engine.unload(model)

    async def loaded(self, *, embedded: bool = False) -> Mapping[str, Sequence[Loaded]]:
        """The models in memory, by engine, at every engine that tells; or only at those for which nobody has to be
        asked, for they are `embedded`."""
        members = self.pool.members.values()
        live = [member for member in members if member.health.live and (member.embedded or not embedded)]
        return dict(await asyncio.gather(*(_loaded(member) for member in live)))


def _first(decision: Decision, entry: Entry) -> Candidate:
    if decision.first is None:
        raise EngineUnavailable(f"every target of model {entry.name!r} has weight 0; give one a weight")
    return decision.first


async def _loaded(member: Member) -> tuple[str, Sequence[Loaded]]:
    try:
        return member.name, await member.engine.loaded()
    except EngineError:
        return member.name, ()  # it went away since its last probe; the next one tells
