"""The choice of an engine for a request: gathers what it depends on, hands it to the router, remembers what is costly.

Every request is chosen for in one way, whatever its policy wants.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from drivetrain import router
from drivetrain.config.schema import Config, Target
from drivetrain.gateway import fingerprints
from drivetrain.gateway.catalog import Entry, Library, stored
from drivetrain.gateway.meter import Call
from drivetrain.gateway.pool import Member, Pool
from drivetrain.governance import Price
from drivetrain.policies import demand, prices
from drivetrain.policies.prices import Table
from drivetrain.router import (
    ORDINARY,
    PLAIN,
    USUAL,
    Candidate,
    Case,
    Decision,
    Facts,
    Heat,
    Roster,
    Terms,
    Traits,
    Work,
    work_of,
)
from drivetrain.types import EmbedRequest, Image, Model, Request, Usage

MOST = 512  # lists of targets, and models of engines, that are remembered
MANY = 16  # engines whose work is looked at for each request
DIGITS = 12  # of a digest, that tell a model's version
_place: Callable[[Target], tuple[Any, ...]] = attrgetter("engine", "model", "version", "weight", "tier")


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
        # by the identity of the targets, which are kept alive here
        self._rosters: dict[int, tuple[Sequence[Target], Roster]] = {}
        self._alike: dict[tuple[Any, ...], Roster] = {}
        self._traits: dict[tuple[str, str], tuple[Sequence[Model], Traits]] = {}
        self._kept: dict[int, _Kept] = {}

    def configure(self, config: Config) -> None:
        self._region = config.server.region or ""
        self._rosters, self._alike, self._traits, self._kept = {}, {}, {}, {}

    def decide(self, entry: Entry, request: Request | EmbedRequest, call: Call) -> Decision:
        if len(entry.targets) == 1:
            return self.usual(entry)
        facts = self.facts(entry, request, call)
        return self._decided(entry, facts, self.terms(entry, facts, count=True))

    def explain(self, entry: Entry, facts: Facts, request: Request | None = None, session: str = "") -> Decision:
        """As `decide` for a request of which only this is known; counts nothing."""
        shared, own = self._known_by(entry, request or Request(model=entry.name), session)
        facts = replace(facts, shared=shared, own=own, region=facts.region or self._region)
        return self._decided(entry, facts, self.terms(entry, facts, count=False))

    def usual(self, entry: Entry) -> Decision:
        """Where nothing is known of a request, or nothing need be."""
        if len(entry.targets) == 1:
            return router.only(entry.targets[0], lambda: self._case(entry.targets))
        return self._decided(entry, USUAL, PLAIN)

    def _case(self, targets: Sequence[Target]) -> Case:
        return Case(self.roster(targets), self._pool.standing, self._draw, USUAL, PLAIN)

    def _decided(self, entry: Entry, facts: Facts, terms: Terms) -> Decision:
        return router.candidates(self.roster(entry.targets), self._pool.standing, self._draw, facts, terms)

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
            micro_usd=_Costs(self._prices(), self._pool, entry.name, facts).of,
            work=self._work,
            share=share,
        )

    def _work(self, targets: Sequence[Target]) -> Work:
        """Of many engines not for every request anew: a few requests more or less do not move their mean."""
        version = self._pool.version
        kept = self._kept.get(id(targets))
        if kept is None or kept.targets is not targets or kept.version != version:
            if len(self._kept) >= MOST:
                self._kept.clear()
            kept = self._kept[id(targets)] = _Kept(targets, self._pool.members, version)
        return kept.told()

    def roster(self, targets: Sequence[Target]) -> Roster:
        """Of these targets, as the pool is now. Names that engines list have other targets for every request, but alike
        ones."""
        kept = self._rosters.get(id(targets))
        found = kept[1] if kept is not None and kept[0] is targets else self._alike_to(targets)
        if found.version != self._pool.version:
            found.renew(self._pool.version)
        return found

    def _alike_to(self, targets: Sequence[Target]) -> Roster:
        places = tuple(map(_place, targets))
        found = self._alike.get(places)
        if found is None:
            if len(self._alike) >= MOST:
                self._alike.clear()
            found = self._alike[places] = Roster(targets, self.traits, self._pool.up, self._pool.note)
        if len(self._rosters) >= MOST:
            self._rosters.clear()
        self._rosters[id(targets)] = (targets, found)
        return found

    def version(self, target: Target | Candidate) -> str:
        """Of the model behind a target, as the configuration or its engine tells; "": nobody does."""
        if target.version:
            return target.version
        member = self._pool.members.get(target.engine)
        if member is None or not member.embedded:
            return self.traits(target).version
        model = stored(self._library, target.model)  # one in memory may be older; the next request gets this one
        return version_of(model) if model is not None else ""

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
            model = stored(self._library, name)
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
    """The work of some targets as it was looked at, for so many further requests."""

    __slots__ = ("_members", "_uses", "_weights", "_work", "targets", "version")

    def __init__(self, targets: Sequence[Target], members: Mapping[str, Member], version: int) -> None:
        """`version`: of the pool, by which it is known who is up."""
        self.targets = targets
        self.version = version
        found = [(members.get(target.engine), target.weight) for target in targets]
        up = [(member, weight) for member, weight in found if member is not None and member.up]
        self._members = [member for member, _ in up]
        self._weights = [weight for _, weight in up]
        self._work = Work(outstanding=0, weight=0, least=0.0)
        self._uses = 0

    def told(self) -> Work:
        if self._uses:
            self._uses -= 1
        else:
            self._uses = len(self.targets) // MANY
            self._work = self._looked_at()
        return self._work

    def _looked_at(self) -> Work:
        works = [each.outstanding + each.others for each in self._members if not each.breaker.opened]
        if len(works) == len(self._members):
            return work_of(works, self._weights)
        pairs = zip(self._members, self._weights, strict=True)
        return work_of(works, [weight for each, weight in pairs if not each.breaker.opened])


def version_of(model: Model) -> str:
    return model.digest.removeprefix("sha256:")[:DIGITS]


class _Costs:
    """What one request is expected to cost where, in micro-dollars."""

    __slots__ = ("_facts", "_known", "_model", "_now_s", "_pool", "_table")

    def __init__(self, table: Table, pool: Pool, model: str, facts: Facts) -> None:
        self._table = table
        self._pool = pool
        self._model = model
        self._facts = facts
        self._known: dict[int, int] = {}
        self._now_s = 0.0

    def of(self, target: Target) -> int:
        found = self._known.get(id(target))
        if found is not None:
            return found
        facts = self._facts
        self._now_s = self._now_s or time.time()
        price = self._table.find(target.engine, target.model, self._model, self._now_s)
        if price is None:
            cost = 0
        elif price.second or price.watts:
            cost = self._computed(price, target)
        else:
            cost = prices.spoken(price, facts.prompt_tokens, facts.output_tokens)
        self._known[id(target)] = cost
        return cost

    def _computed(self, price: Price, target: Target) -> int:
        usage = Usage(prompt=self._facts.prompt_tokens, completion=self._facts.output_tokens)
        speed = self._pool.standing(target).speed
        taken_s = speed.expected_s(usage.prompt, usage.completion) if speed is not None else 0.0
        return prices.cost(price, usage, taken_s).micro_usd


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


def _sees(request: Request) -> bool:
    return any(type(part) is Image for message in request.messages for part in message.content)


def _deadline_s(request: Request, call: Call) -> float | None:
    """How long the caller waits for the whole answer, if he said so."""
    waits_s = None if request.stream else call.read_timeout_s
    if call.timeout_s is None or waits_s is None:
        return call.timeout_s or waits_s
    return min(call.timeout_s, waits_s)
