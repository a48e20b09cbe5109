"""One engine's attempt at a request: what it is asked, and what of its answer goes to the caller."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from drivetrain.errors import (
    ConnectTimeout,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
)
from drivetrain.gateway.account import Account
from drivetrain.gateway.arms import rendered
from drivetrain.gateway.catalog import Library
from drivetrain.gateway.deadline import overdue, unconnected
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.pool import Member, Pool
from drivetrain.gateway.prepare import prepare
from drivetrain.gateway.purse import purse as purse_of
from drivetrain.gateway.residence import Residence
from drivetrain.gateway.visit import Visit
from drivetrain.gateway.watch import Watch
from drivetrain.gateway.way import Leg
from drivetrain.policies.classes import RANKS
from drivetrain.types import Embeddings, EmbedRequest, Event, Finished, ModelSpec, Progress, Request

GATHER_S = 0.1  # of an answer that is given whole, whose growing nobody sees: a silence, or money's end, shows so late
# Engines that speak a caller's dialect natively know its defaults.
NATIVE: Mapping[str, str] = {"ollama": "ollama."}


class Attempts:
    """Makes them, at the engines of a pool."""

    def __init__(self, pool: Pool, library: Library, residence: Residence) -> None:
        self._pool = pool
        self._library = library
        self._residence = residence

    async def generate(
        self, request: Request, visit: Visit, leg: Leg, meter: Meter
    ) -> AsyncGenerator[Sequence[Event], None]:
        """One engine's answer. What comes before the first content is held back: another engine may yet take over."""
        entry, name = leg.entry, leg.candidate.engine
        member = self._pool.members.get(name)
        with Account(visit, leg, meter, member):
            if member is None or member.drained:
                raise self._closed(name)
            asked = self._asked(request, visit, leg, meter, member)
            foreign = visit.call.dialect.startswith("ollama.") and member.config.kind not in NATIVE
            purse = purse_of(request, entry.policy, meter, visit.inside) if meter.price is not None else None
            held: list[Event] = []
            with Watch(member.name, visit.policy.timeouts, visit.deadlines, visit.own) as watch:
                batches = member.engine.generate(asked)
                try:
                    watch.waits()
                    async for events in batches:
                        watch.heard(content=meter.see(events))
                        if purse is not None and meter.deltas > purse.until and meter.reported is None:
                            events = await purse.spend(events)
                        told = meter.reported
                        if told is not None and (foreign or meter.price is not None or told.estimated):
                            events = _ended(events, request, meter, visit, foreign=foreign)
                        if meter.first_token_s is None:
                            held += [event for event in events if type(event) is not Progress]
                            if progress := [event for event in events if type(event) is Progress]:
                                yield progress
                        elif held:
                            yield [*held, *events]
                            held = []
                        else:
                            yield events
                        if meter.cut:
                            break
                        watch.waits()
                finally:
                    await batches.aclose()
            if meter.reported is None:
                raise EngineFailed(f"engine {member.name!r} ended its answer without saying so")

    async def embed(self, request: EmbedRequest, visit: Visit, leg: Leg, meter: Meter) -> Embeddings:
        """One engine's vectors."""
        name, whole, timeouts = leg.candidate.engine, visit.deadlines.whole, visit.policy.timeouts
        limit_s = timeouts.first_token_s
        trace = visit.traceparent(meter)
        kept = self._residence.kept(request, leg.entry.policy, leg.candidate)
        model = leg.candidate.model
        asked = replace(request, model=model, traceparent=trace, connect_s=timeouts.connect_s, **kept)
        member = self._pool.members.get(name)
        with Account(visit, leg, meter, member):
            if member is None or member.drained:
                raise self._closed(name)
            try:
                async with asyncio.timeout(min(limit_s, whole.left_s())):
                    answer = await member.engine.embed(asked)
            except TimeoutError as error:
                if whole.left_s() <= 0:
                    raise whole.passed(f"engine {member.name!r} was asked and has not finished") from error
                during = f"engine {member.name!r} was asked and has not finished"
                late = EngineTimeout(f"engine {member.name!r} gave no embedding within {limit_s:g} s")
                raise overdue(visit.own, "first_token_s", during) or late from error
            except ConnectTimeout as error:
                raise unconnected(visit.own, error, member.name) or error from error.__cause__
            meter.reported = answer.usage
            return answer

    def member(self, name: str) -> Member:
        """Raises `EngineUnavailable` if there is no engine of this name any more."""
        member = self._pool.members.get(name)
        if member is None:
            raise self._closed(name)
        return member

    def _closed(self, name: str) -> EngineError:
        """Why this engine gets no requests: it is not there, or was drained, which is no failure of it."""
        if name in self._pool.members:
            return EngineOverloaded(f"engine {name!r} gets no new requests: it was drained, and has not been resumed")
        if name in self._pool.families:
            return EngineUnavailable(f"engine {name!r} has no instance: `discover` has found none")
        known = ", ".join(sorted(self._pool.members))
        return EngineUnavailable(f"engine {name!r} is not configured; configured: {known}")

    def _asked(self, request: Request, visit: Visit, leg: Leg, meter: Meter, member: Member) -> Request:
        entry, candidate = leg.entry, leg.candidate
        spec = entry.spec or (self._library.lookup(candidate.model) if member.embedded else None)
        layers, settings = entry.policy.parameters, entry.policy.settings
        if spec is not None and spec.parameters:
            layers = {**spec.parameters, **layers}
        if entry.parameters:
            layers = {**layers, **entry.parameters}
        if entry.settings:
            settings = {**settings, **entry.settings}
        dialect = NATIVE.get(member.config.kind)
        native = dialect is not None and request.source is not None and request.source.dialect.startswith(dialect)
        changes: dict[str, Any] = {
            "traceparent": visit.traceparent(meter),
            "connect_s": visit.policy.timeouts.connect_s,
            "urgency": RANKS[visit.call.priority],
        }
        if not request.stream:
            changes["gather_s"] = min(GATHER_S, visit.policy.timeouts.idle_s / 4)
        if entry.policy.keep_alive_s is not None or self._residence.pins:
            changes |= self._residence.kept(request, entry.policy, candidate)
        if settings:
            changes["options"] = {**settings, **request.options}
        system = rendered(entry.prompt, request) if entry.prompt is not None else ""
        return prepare(
            request, model=candidate.model, spec=spec, layers=layers, native=native, changes=changes, system=system
        )

    def spec_behind(self, engine: str, model: str) -> ModelSpec | None:
        """A route may point at a model of the library: its own parameters and system prompt hold there too."""
        return self._library.lookup(model) if self.member(engine).embedded else None


def _ended(events: Sequence[Event], request: Request, meter: Meter, visit: Visit, *, foreign: bool) -> Sequence[Event]:
    """An answer's end, with durations for a caller whose dialect has them, with its price where it has one, and with a
    count of ours where the engine told none."""
    end = events[-1]
    if type(end) is not Finished:
        return events
    if end.usage.estimated:
        end = meter.counted(end, request)
    if foreign:
        end = meter.timed(end)
    if meter.price is not None:
        end = meter.priced(end, visit.spent_micro_usd)
    return [*events[:-1], end]
