"""The one path of a request: resolve → admit → choose → generate → account.

Fails over to the next engine until the first content of an answer has gone to the caller, never after. Every attempt
leaves one row in the ledger, whatever became of it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

from msgspec.structs import replace

from drivetrain import router
from drivetrain.config.schema import Bodies, Config
from drivetrain.engines import Host
from drivetrain.errors import (
    DrivetrainError,
    EngineError,
    EngineFailed,
    EngineTimeout,
    EngineUnavailable,
    Forbidden,
    ModelNotFound,
)
from drivetrain.gateway.account import Account
from drivetrain.gateway.admission import Admission
from drivetrain.gateway.catalog import Catalog, Entry, Library
from drivetrain.gateway.drain import Drains
from drivetrain.gateway.explain import Explanation, explanation
from drivetrain.gateway.meter import Call, Meter, Trace
from drivetrain.gateway.pool import Member, Pool
from drivetrain.gateway.prepare import prepare
from drivetrain.gateway.receipt import Receipt
from drivetrain.gateway.retries import Retries
from drivetrain.gateway.visit import House, Visit
from drivetrain.gateway.watch import Watch
from drivetrain.gateway.way import Leg
from drivetrain.governance import Attempt, Principal, Resource, Rule
from drivetrain.policies import access, demand
from drivetrain.policies.classes import RANKS
from drivetrain.policies.prices import Table
from drivetrain.quota import Quota
from drivetrain.router import USUAL, Candidate, Decision, Facts
from drivetrain.types import (
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Loaded,
    ModelSpec,
    Notice,
    Progress,
    Request,
)

__all__ = ["Call", "Gateway", "Receipt", "Record", "Trace"]

# Engines that speak a caller's dialect natively know its defaults.
NATIVE: Mapping[str, str] = {"ollama": "ollama."}


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
    ) -> None:
        """`prices` gives the table in force."""
        self._library = library
        self._admission = Admission(quota, record, shared=config.shared.url is not None)
        self._drains = Drains()
        self.pool = pool = Pool(host, record.notify)
        self.retries = Retries()
        self._house = House(self._admission, record, prices, self.retries, lambda name: pool.members.get(name))
        self.configure(config)

    def configure(self, config: Config) -> Sequence[Member]:
        """Swap in a configuration. Returns the engines that it has no use for, to be retired by the caller.

        Raises `BadRequest` and keeps the old one if an engine cannot be opened.
        """
        gone = self.pool.open(config.engines, config.breaker)
        self.config = config
        self.catalog = Catalog(config, self._library, self.pool.members)
        self.keeps = any(policy.bodies.keep for policy in config.policies.values())
        self._drains_some = any(policy.on_disconnect == "drain" for policy in config.policies.values())
        return gone

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

    def limited(self, entry: Entry, who: Principal) -> bool:
        """Whether a limit or budget counts this request, or one of its fallbacks."""
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

        Raises a `DrivetrainError` where no engine could answer. After the first content event it is the error of the
        engine that broke off.
        """
        if not self._drains_some or not self._drained(request.model):
            return self._answer(request, call)
        receipt = call.receipt or Receipt()
        return self._drains.relay(self._answer(request, replace(call, receipt=receipt)), receipt)

    def _drained(self, model: str) -> bool:
        """Whether its answers are read to their end although the caller has gone."""
        try:
            return self.catalog.resolve(model).policy.on_disconnect == "drain"
        except DrivetrainError:
            return False  # there will be no answer

    async def _answer(self, request: Request, call: Call) -> AsyncGenerator[Sequence[Event], None]:
        visit = await self._visit(request, call)
        with visit:
            while True:
                meter = await visit.reach()
                try:
                    async with aclosing(self._attempt(request, visit, visit.leg, meter)) as batches:
                        async for events in batches:
                            yield events
                    return
                except EngineError as error:
                    visit.go_on(error, meter)

    async def _visit(self, request: Request | EmbedRequest, call: Call) -> Visit:
        """Where the request may go. A refusal is on record too."""
        visit = Visit(self._house, request, call)
        try:
            entry = await self.permitted(request.model, call)
            decision = self._candidates(entry, _facts(request) if len(entry.targets) > 1 else USUAL)
            visit.begin(
                Leg(entry=entry, candidate=_first(decision, entry)), lambda: self._others(entry, decision, call.who)
            )
        except DrivetrainError as error:
            visit.refuse(error)
            raise
        return visit

    def _others(self, entry: Entry, decision: Decision, who: Principal) -> list[Leg]:
        """Where a request may go after the first engine: the other targets of the name, then those of its fallbacks,
        as far as the key may use them."""
        legs = [Leg(entry=entry, candidate=candidate) for candidate in decision.order[1:]]
        for other in self._fallbacks(entry):
            if who.models is None or access.may_use(who.models, other.name):
                legs += [Leg(entry=other, candidate=candidate) for candidate in self._candidates(other).order]
        return legs

    def _fallbacks(self, entry: Entry) -> Iterator[Entry]:
        for name in entry.fallbacks:
            with suppress(ModelNotFound):  # the engine that had it has gone
                yield self.catalog.resolve(name)

    async def explain(self, model: str, facts: Facts) -> Explanation:
        """Where a request would go. Raises `ModelNotFound`."""
        entry = await self.resolve(model)
        entries = (entry, *self._fallbacks(entry))
        return explanation(facts, [(each, self._candidates(each, facts)) for each in entries], self.retries)

    def _candidates(self, entry: Entry, facts: Facts = USUAL) -> Decision:
        return router.candidates(entry.targets, self.pool.standing, random.random, facts)

    async def _attempt(
        self, request: Request, visit: Visit, leg: Leg, meter: Meter
    ) -> AsyncGenerator[Sequence[Event], None]:
        """One engine's answer. What comes before the first content is held back: another engine may yet take over."""
        entry, name = leg.entry, leg.candidate.engine
        with Account(visit, leg, meter, self.pool.members.get(name)):
            member = self._member(name)
            asked = self._asked(request, visit, leg, meter, member)
            foreign = visit.call.dialect.startswith("ollama.") and member.config.kind not in NATIVE
            held: list[Event] = []
            with Watch(member.name, entry.policy.timeouts, visit.deadlines) as watch:
                async with aclosing(member.engine.generate(asked)) as batches:
                    watch.waits()
                    async for events in batches:
                        watch.heard(content=meter.see(events))
                        if meter.reported is not None and (foreign or meter.price is not None):
                            events = _ended(events, meter, visit, foreign=foreign)
                        if meter.first_token_s is None:
                            held += [event for event in events if type(event) is not Progress]
                            if progress := [event for event in events if type(event) is Progress]:
                                yield progress
                        elif held:
                            yield [*held, *events]
                            held = []
                        else:
                            yield events
                        watch.waits()
            if meter.reported is None:
                raise EngineFailed(f"engine {member.name!r} ended its answer without saying so")

    def _member(self, name: str) -> Member:
        member = self.pool.members.get(name)
        if member is None:
            known = ", ".join(sorted(self.pool.members))
            raise EngineUnavailable(f"engine {name!r} is not configured; configured: {known}")
        return member

    def _asked(self, request: Request, visit: Visit, leg: Leg, meter: Meter, member: Member) -> Request:
        entry, candidate = leg.entry, leg.candidate
        spec = entry.spec or self.spec_behind(candidate.engine, candidate.model)
        layers = entry.policy.parameters
        if spec is not None and spec.parameters:
            layers = {**spec.parameters, **layers}
        dialect = NATIVE.get(member.config.kind)
        native = dialect is not None and request.source is not None and request.source.dialect.startswith(dialect)
        changes: dict[str, Any] = {
            "traceparent": visit.traceparent(meter),
            "connect_s": entry.policy.timeouts.connect_s,
            "urgency": RANKS[visit.call.priority],
        }
        if entry.policy.settings:
            changes["options"] = {**entry.policy.settings, **request.options}
        return prepare(request, model=candidate.model, spec=spec, layers=layers, native=native, changes=changes)

    def spec_behind(self, engine: str, model: str) -> ModelSpec | None:
        """A route may point at a model of the library: its own parameters and system prompt hold there too."""
        return self._library.lookup(model) if self._member(engine).embedded else None

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        """Vectors from the first engine that gives them. Raises as `generate` does."""
        visit = await self._visit(request, call)
        with visit:
            while True:
                meter = await visit.reach()
                try:
                    return await self._embed(request, visit, visit.leg, meter)
                except EngineError as error:
                    visit.go_on(error, meter)

    async def _embed(self, request: EmbedRequest, visit: Visit, leg: Leg, meter: Meter) -> Embeddings:
        name, whole, timeouts = leg.candidate.engine, visit.deadlines.whole, leg.entry.policy.timeouts
        limit_s = timeouts.first_token_s
        trace = visit.traceparent(meter)
        asked = replace(request, model=leg.candidate.model, traceparent=trace, connect_s=timeouts.connect_s)
        with Account(visit, leg, meter, self.pool.members.get(name)):
            member = self._member(name)
            try:
                async with asyncio.timeout(min(limit_s, whole.left_s())):
                    answer = await member.engine.embed(asked)
            except TimeoutError as error:
                if whole.left_s() <= 0:
                    raise whole.passed(f"engine {member.name!r} was asked and has not finished") from error
                raise EngineTimeout(f"engine {member.name!r} gave no embedding within {limit_s:g} s") from error
            meter.reported = answer.usage
            return answer

    async def load(self, model: str, *, keep_alive_s: float | None, options: Mapping[str, Any]) -> None:
        """Bring a model into memory at the first engine that it is routed to. Raises `LoadFailed` with the reason."""
        entry = await self.resolve(model)
        candidate = _first(self._candidates(entry), entry)
        engine = self._member(candidate.engine).engine
        await engine.load(candidate.model, keep_alive_s=keep_alive_s, options={**entry.policy.settings, **options})

    async def unload(self, model: str) -> None:
        """Free a model's memory at every engine that it is routed to, once its running requests are done."""
        for target in (await self.resolve(model)).targets:
            await self._member(target.engine).engine.unload(target.model)

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


def _facts(request: Request | EmbedRequest) -> Facts:
    """What the time that a request takes depends on."""
    prompt = demand.prompt_tokens(request)
    if isinstance(request, EmbedRequest):
        return Facts(prompt_tokens=prompt, output_tokens=0)
    return Facts(prompt_tokens=prompt, output_tokens=request.sampling.max_tokens or USUAL.output_tokens)


async def _loaded(member: Member) -> tuple[str, Sequence[Loaded]]:
    try:
        return member.name, await member.engine.loaded()
    except EngineError:
        return member.name, ()  # it went away since its last probe; the next one tells


def _ended(events: Sequence[Event], meter: Meter, visit: Visit, *, foreign: bool) -> Sequence[Event]:
    """An answer's end, with durations for a caller whose dialect has them, and with its price where it has one."""
    end = events[-1]
    if type(end) is not Finished:
        return events
    if foreign:
        end = meter.timed(end)
    if meter.price is not None:
        end = meter.priced(end, visit.spent_micro_usd)
    return [*events[:-1], end]
