"""The one path of a request: resolve → admit → choose → generate → account.

Fails over to the next engine until the first content of an answer has gone to the caller, never after. Every attempt
leaves one row in the ledger, whatever became of it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from msgspec.structs import replace

from drivetrain import router
from drivetrain.config.schema import Config
from drivetrain.engines import Host
from drivetrain.errors import DrivetrainError, EngineError, EngineFailed, EngineTimeout, EngineUnavailable
from drivetrain.gateway.account import Account, may_fail_over
from drivetrain.gateway.admission import Admission, Gate
from drivetrain.gateway.catalog import Catalog, Entry, Library
from drivetrain.gateway.meter import Call, Meter
from drivetrain.gateway.pool import Member, Pool
from drivetrain.gateway.prepare import prepare
from drivetrain.gateway.watch import Watch
from drivetrain.router import Candidate
from drivetrain.types import (
    Attempt,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Loaded,
    ModelSpec,
    Notice,
    Progress,
    Request,
    Usage,
)

__all__ = ["Call", "Gateway", "Record"]

NOBODY = Candidate(engine="", model="", why="")  # of a request that was refused before an engine was chosen
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


class Gateway:
    """Owns the configuration snapshot in force, the pool of engines and the counts of the policies."""

    def __init__(self, config: Config, library: Library, host: Host, record: Record) -> None:
        self._library = library
        self._record = record
        self._admission = Admission()
        self.pool = Pool(host, record.notify)
        self.configure(config)

    def configure(self, config: Config) -> Sequence[Member]:
        """Swap in a configuration. Returns the engines that it has no use for, to be retired by the caller.

        Raises `BadRequest` and keeps the old one if an engine cannot be opened.
        """
        gone = self.pool.open(config.engines)
        self.config = config
        self.catalog = Catalog(config, self._library, self.pool.members)
        return gone

    async def resolve(self, model: str) -> Entry:
        """As `Catalog.resolve`; a name that nobody knows is looked for at the engines once more."""
        try:
            return self.catalog.resolve(model)
        except DrivetrainError:
            await self.pool.refresh()
            return self.catalog.resolve(model)

    async def generate(self, request: Request, call: Call) -> AsyncGenerator[Sequence[Event], None]:
        """The answer, in batches of events as they arrive. Close the generator to stop the work.

        Raises a `DrivetrainError` where no engine could answer. After the first content event it is the error of the
        engine that broke off.
        """
        entry, gate = await self._admitted(request, call)
        try:
            for meter in self._meters(entry):
                try:
                    async with aclosing(self._attempt(request, call, entry, meter)) as batches:
                        async for events in batches:
                            yield events
                    break
                except EngineError as error:
                    if not may_fail_over(error, meter):
                        raise
                finally:
                    gate.spent(meter, request)
        finally:
            gate.leave()
            self._record.leave()

    async def _admitted(self, request: Request | EmbedRequest, call: Call) -> tuple[Entry, Gate]:
        """What the request is for, and a slot at its gate, to be left. A refusal is on record too."""
        try:
            entry = await self.resolve(request.model)
            gate = self._admission.gate(entry.name, entry.policy_name, entry.policy)
            if gate.full:
                await self._queue(gate)
            else:
                await gate.enter()
        except DrivetrainError as error:
            meter = Meter(NOBODY, 1, last=True)
            meter.reported = Usage()
            self._record.attempt(meter.row(request, call, outcome="rejected", status=error.status, why=error.code))
            raise
        self._record.enter()
        return entry, gate

    async def _queue(self, gate: Gate) -> None:
        self._record.enqueue()
        try:
            await gate.enter()
        finally:
            self._record.dequeue()

    def _meters(self, entry: Entry) -> Iterator[Meter]:
        """One for each attempt that may be made, best engine first."""
        candidates = self._candidates(entry)
        for position, candidate in enumerate(candidates, 1):
            yield Meter(candidate, position, last=position == len(candidates))

    def _candidates(self, entry: Entry) -> Sequence[Candidate]:
        standings = {} if len(entry.targets) == 1 else self.pool.standings()
        found = router.candidates(entry.targets, standings, random.random)
        if not found:
            raise EngineUnavailable(f"every target of model {entry.name!r} has weight 0; give one a weight")
        return found

    async def _attempt(
        self, request: Request, call: Call, entry: Entry, meter: Meter
    ) -> AsyncGenerator[Sequence[Event], None]:
        """One engine's answer. What comes before the first content is held back: another engine may yet take over."""
        member = self._member(meter.candidate.engine)
        with Account(self._record, member, meter, request, call):
            asked = self._asked(request, entry, member, meter.candidate)
            foreign = call.dialect.startswith("ollama.") and member.config.kind not in NATIVE
            held: list[Event] = []
            with Watch(member.name, entry.policy.timeouts) as watch:
                async with aclosing(member.engine.generate(asked)) as batches:
                    watch.waits()
                    async for events in batches:
                        watch.heard(content=meter.see(events))
                        if foreign and meter.reported is not None:
                            events = [meter.timed(e) if isinstance(e, Finished) else e for e in events]
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

    def _asked(self, request: Request, entry: Entry, member: Member, candidate: Candidate) -> Request:
        spec = entry.spec or self.spec_behind(candidate.engine, candidate.model)
        layers = entry.policy.parameters
        if spec is not None and spec.parameters:
            layers = {**spec.parameters, **layers}
        dialect = NATIVE.get(member.config.kind)
        native = dialect is not None and request.source is not None and request.source.dialect.startswith(dialect)
        if entry.policy.settings:
            request = replace(request, options={**entry.policy.settings, **request.options})
        return prepare(request, model=candidate.model, spec=spec, layers=layers, native=native)

    def spec_behind(self, engine: str, model: str) -> ModelSpec | None:
        """A route may point at a model of the library: its own parameters and system prompt hold there too."""
        return self._library.lookup(model) if self._member(engine).embedded else None

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        """Vectors from the first engine that gives them. Raises as `generate` does."""
        entry, gate = await self._admitted(request, call)
        try:
            for meter in self._meters(entry):
                try:
                    return await self._embed(request, call, entry, meter)
                except EngineError as error:
                    if not may_fail_over(error, meter):
                        raise
                finally:
                    gate.spent(meter, request)
            raise AssertionError("the last candidate either answered or raised")
        finally:
            gate.leave()
            self._record.leave()

    async def _embed(self, request: EmbedRequest, call: Call, entry: Entry, meter: Meter) -> Embeddings:
        member = self._member(meter.candidate.engine)
        limit_s = entry.policy.timeouts.first_token_s
        with Account(self._record, member, meter, request, call):
            try:
                async with asyncio.timeout(limit_s):
                    answer = await member.engine.embed(replace(request, model=meter.candidate.model))
            except TimeoutError as error:
                raise EngineTimeout(f"engine {member.name!r} gave no embedding within {limit_s:g} s") from error
            meter.reported = answer.usage
            return answer

    async def load(self, model: str, *, keep_alive_s: float | None, options: Mapping[str, Any]) -> None:
        """Bring a model into memory at the first engine that it is routed to. Raises `LoadFailed` with the reason."""
        entry = await self.resolve(model)
        candidate = self._candidates(entry)[0]
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


async def _loaded(member: Member) -> tuple[str, Sequence[Loaded]]:
    try:
        return member.name, await member.engine.loaded()
    except EngineError:
        return member.name, ()  # it went away since its last probe; the next one tells
