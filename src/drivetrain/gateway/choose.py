"""The choice of an engine for a request: gathers what it depends on, hands it to the router, remembers what is costly.

A request of a policy that wants nothing special, and that any engine can answer, is chosen for by load and speed alone.
"""

import random
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from drivetrain import router
from drivetrain.config.schema import Config, Routing, Target
from drivetrain.errors import ModelNotFound
from drivetrain.gateway import fingerprints
from drivetrain.gateway.catalog import Entry, Library
from drivetrain.gateway.meter import Call
from drivetrain.gateway.pool import Member, Pool
from drivetrain.policies import demand, prices
from drivetrain.policies.prices import Table
from drivetrain.router import ORDINARY, USUAL, Candidate, Decision, Facts, Heat, Roster, Terms, Traits, Work, work_of
from drivetrain.types import EmbedRequest, Image, Model, Request, Usage

UNWANTED = Routing()
ANY_CONTEXT = 2048  # tokens that every model has room for
HURRY_S = 30.0  # for a request with less time, engines are looked at for whether they are fast enough
MOST = 512  # lists of targets, and models of engines, that are remembered
MANY = 16  # engines whose work is looked at for each request
DIGITS = 12  # of a digest, that tell a model's version
NOT_HERE = -1  # work of an engine that is not to be asked
_place: Callable[[Target], tuple[Any, ...]] = attrgetter("engine", "model", "weight", "tier")


class Chooser:
    """Owns what was worked out about lists of targets, and how common the beginnings of prompts are."""

    def __init__(
        self,
        pool: Pool,
        library: Library,
        prices: Callable[[], Table],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._pool = pool
        self._library = library
        self._prices = prices
        self._draw = draw
        self._heat = Heat()
        self._region = ""
        self._rosters: dict[int, Roster] = {}  # by the identity of the targets, which the roster keeps alive
        self._alike: dict[tuple[Any, ...], Roster] = {}
        self._traits: dict[tuple[str, str], tuple[Sequence[Model], Traits]] = {}
        self._kept: dict[int, _Kept] = {}

    def configure(self, config: Config) -> None:
        self._region = config.server.region or ""
        self._rosters, self._alike, self._traits, self._kept = {}, {}, {}, {}

    def decide(self, entry: Entry, request: Request | EmbedRequest, call: Call) -> Decision:
        targets = entry.targets
        if len(targets) == 1:
            return router.candidates(targets, self._pool.standing, self._draw)
        routing = entry.policy.routing
        wanted = routing != UNWANTED
        facts = self.facts(entry, request, call) if wanted else facts_of(request, call, self._region)
        if not wanted and not special(facts):
            return router.candidates(targets, self._pool.standing, self._draw, facts)
        terms = self.terms(entry, facts, count=True)
        return router.candidates(terms.roster.targets, self._pool.standing, self._draw, facts, terms)

    def explain(self, entry: Entry, facts: Facts, request: Request | None = None, session: str = "") -> Decision:
        """As `decide` for a request of which only this is known; counts nothing."""
        shared, own = self._known_by(entry, request or Request(model=entry.name), session)
        facts = replace(facts, shared=shared, own=own, region=facts.region or self._region)
        terms = self.terms(entry, facts, count=False)
        return router.candidates(terms.roster.targets, self._pool.standing, self._draw, facts, terms)

    def usual(self, entry: Entry) -> Decision:
        """Where nothing is known of a request."""
        return router.candidates(entry.targets, self._pool.standing, self._draw)

    def facts(self, entry: Entry, request: Request | EmbedRequest, call: Call) -> Facts:
        """What the choice may depend on, as far as the entry's policy wants it."""
        shared, own = self._known_by(entry, request, call.session)
        return facts_of(request, call, self._region, shared=shared, own=own)

    def _known_by(self, entry: Entry, request: Request | EmbedRequest, session: str) -> tuple[int, int]:
        """What many prompts begin with, and what its conversation begins with, where they are to be kept together."""
        routing = entry.policy.routing
        if routing.affinity == "prefix":
            prompt = entry.prompt.reference if entry.prompt is not None else ""
            return fingerprints.of_prefix(request, prompt, routing.prefix_bytes)
        if routing.affinity == "session":
            known = fingerprints.of_session(request, session)
            return known, known
        return 0, 0

    def terms(self, entry: Entry, facts: Facts, *, count: bool) -> Terms:
        """What the choice is made under. `count`: a request is made, and does not only ask where it would go."""
        share = 0.0
        if facts.own and entry.policy.routing.affinity == "prefix":
            share = self._heat.met(facts.shared) if count else self._heat.share(facts.shared)
        return Terms(
            wish=router.wish(entry.policy.routing, facts),
            roster=self._roster(entry.targets),
            traits=self.traits,
            micro_usd=_Costs(self._prices(), self._pool, entry.name, facts).of,
            work=self._work,
            share=share,
        )

    def _work(self, targets: Sequence[Target]) -> Work:
        """Of many engines not for every request anew: a few requests more or less do not move their mean."""
        key = id(targets)
        kept = self._kept.get(key)
        if kept is not None and kept.targets is targets and kept.uses > 0:
            kept.uses -= 1
            return kept.work
        if len(self._kept) >= MOST:
            self._kept.clear()
        members = self._pool.members
        work = work_of(targets, [_work_of(members.get(target.engine)) for target in targets])
        self._kept[key] = _Kept(targets, work, uses=len(targets) // MANY)
        return work

    def _roster(self, targets: Sequence[Target]) -> Roster:
        """Names that engines list have other targets for every request, but alike ones."""
        found = self._rosters.get(id(targets))
        if found is not None and found.targets is targets:
            return found
        places = tuple(map(_place, targets))
        alike = self._alike.get(places)
        if alike is None:
            if len(self._alike) >= MOST:
                self._rosters, self._alike = {}, {}
            alike = self._alike[places] = self._rosters[id(targets)] = Roster(targets, self._region_of)
        return alike

    def _region_of(self, target: Target) -> str:
        member = self._pool.members.get(target.engine)
        return (member.config.region or "") if member is not None else ""

    def version(self, target: Target | Candidate) -> str:
        """Of the model behind a target, as the configuration or its engine tells; "": nobody does."""
        if target.version:
            return target.version
        member = self._pool.members.get(target.engine)
        if member is None or not member.embedded:
            return self.traits(target).version
        try:  # one in memory may be older; the next request gets the library's
            return version_of(self._library.lookup(target.model).model)
        except ModelNotFound:
            return ""

    def traits(self, target: Target | Candidate) -> Traits:
        """Of an engine's model, as its last probe listed it."""
        member = self._pool.members.get(target.engine)
        if member is None:
            return ORDINARY
        key = (target.engine, target.model)
        kept = self._traits.get(key)
        if kept is not None and kept[0] is member.models:
            return kept[1]
        if len(self._traits) >= MOST:
            self._traits.clear()
        found = self._traits[key] = (member.models, self._look(member, target.model))
        return found[1]

    def _look(self, member: Member, name: str) -> Traits:
        model = next((model for model in member.models if model.id == name), None)
        if model is None and member.embedded:
            try:
                model = self._library.lookup(name).model
            except ModelNotFound:
                model = None
        region = member.config.region or ""
        if model is None:
            return Traits(region=region)
        return Traits(
            capabilities=model.capabilities,
            context=model.context_length,
            region=region,
            version=version_of(model),
        )


class _Kept:
    """Work that was looked at, for so many further requests."""

    __slots__ = ("targets", "uses", "work")

    def __init__(self, targets: Sequence[Target], work: Work, *, uses: int) -> None:
        self.targets = targets
        self.work = work
        self.uses = uses


def version_of(model: Model) -> str:
    return model.digest.removeprefix("sha256:")[:DIGITS]


def _work_of(member: Member | None) -> int:
    if member is None or member.drained or not member.health.ready or member.breaker.opened:
        return NOT_HERE
    return member.outstanding + member.others


class _Costs:
    """What one request is expected to cost where, in micro-dollars."""

    __slots__ = ("_facts", "_known", "_model", "_now_s", "_pool", "_table", "_usage")

    def __init__(self, table: Table, pool: Pool, model: str, facts: Facts) -> None:
        self._table = table
        self._pool = pool
        self._model = model
        self._facts = facts
        self._known: dict[int, float] = {}
        self._usage: Usage | None = None
        self._now_s = 0.0

    def of(self, target: Target) -> float:
        found = self._known.get(id(target))
        if found is None:
            found = self._known[id(target)] = self._worked_out(target)
        return found

    def _worked_out(self, target: Target) -> float:
        facts = self._facts
        if self._usage is None:
            self._usage = Usage(prompt=facts.prompt_tokens, completion=facts.output_tokens)
            self._now_s = time.time()
        price = self._table.find(target.engine, target.model, self._model, self._now_s)
        if price is None:
            return 0.0
        taken_s = 0.0
        if price.second or price.watts:
            speed = self._pool.standing(target).speed
            taken_s = speed.expected_s(facts.prompt_tokens, facts.output_tokens) if speed is not None else 0.0
        return float(prices.cost(price, self._usage, taken_s).micro_usd)


def facts_of(request: Request | EmbedRequest, call: Call, region: str, *, shared: int = 0, own: int = 0) -> Facts:
    """What a choice may depend on. `region`: where this server stands, unless the caller says where he is."""
    prompt, region = demand.prompt_tokens(request), call.region or region
    if isinstance(request, EmbedRequest):
        return Facts(
            prompt_tokens=prompt, output_tokens=0, priority=call.priority, region=region, own=own, shared=shared
        )
    limit = request.sampling.max_tokens or 0
    return Facts(
        prompt_tokens=prompt,
        output_tokens=limit or USUAL.output_tokens,
        limit=limit,
        tools=bool(request.tools),
        images=_sees(request),
        schema=request.output is not None,
        priority=call.priority,
        deadline_s=_deadline_s(request, call),
        region=region,
        shared=shared,
        own=own,
    )


def special(facts: Facts) -> bool:
    """Whether not every engine may be able to answer, or not every one is as near."""
    return (
        facts.tools
        or facts.images
        or facts.prompt_tokens + facts.limit > ANY_CONTEXT
        or bool(facts.region)
        or (facts.deadline_s is not None and facts.deadline_s < HURRY_S)
    )


def _sees(request: Request) -> bool:
    return any(type(part) is Image for message in request.messages for part in message.content)


def _deadline_s(request: Request, call: Call) -> float | None:
    """How long the caller waits for the whole answer, if he said so."""
    waits_s = None if request.stream else call.read_timeout_s
    if call.timeout_s is None or waits_s is None:
        return call.timeout_s or waits_s
    return min(call.timeout_s, waits_s)
