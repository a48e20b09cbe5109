"""The owner of the engine instances: opens and closes them as they come and go, probes them, and learns from requests
how they stand."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from drivetrain.background import lasting
from drivetrain.config.schema import Breaker as BreakerConfig
from drivetrain.config.schema import Discover, Target
from drivetrain.config.schema import Engine as EngineConfig
from drivetrain.engines import Engine, EngineSettings, Host, open_engine
from drivetrain.errors import BadRequest, DrivetrainError
from drivetrain.gateway.discovery import Resolve, Unknown, addresses, family, instances, resolved
from drivetrain.gateway.hearsay import Finding, Heard, Hearsay, subject
from drivetrain.gateway.member import USUAL_RULES, Member
from drivetrain.gateway.warmth import WARMING
from drivetrain.router import Standing
from drivetrain.types import Health, Notice

__all__ = ["Member", "Pool", "retire"]

PROBE_S = 10.0
PROBE_DOWN_S = 1.0  # an engine that is away is looked for more often
GONE = Standing(ready=False)  # of an engine that is no member
JITTER = 0.05  # of a pause between probes, so that replicas do not all come at once
HEED_S = 1.0  # between two looks of which engines others warn

log = logging.getLogger("drivetrain.pool")


class Family:
    """An engine whose instances are discovered."""

    def __init__(self, config: EngineConfig, discover: Discover, urls: Sequence[str]) -> None:
        self.config = config
        self.discover = discover
        self.urls = urls  # where they are
        self.heard = urls  # the same, with those that are no addresses
        self.wrong = ""  # why nobody can tell now


class Pool:
    """`run` discovers and probes until it is cancelled; `members` and `families` are what others read."""

    def __init__(self, host: Host, notify: Callable[[Notice], None], resolve: Resolve = resolved) -> None:
        self._host = host
        self._notify = notify
        self._resolve = resolve
        self._rules = USUAL_RULES
        self._single: Mapping[str, EngineConfig] = {}  # engines that are one instance each
        self._families: Mapping[str, Family] = {}
        self._watched: dict[Member | Family, asyncio.Task[None]] = {}
        self._leaving: set[Member] = set()
        self._drained: frozenset[str] = frozenset()
        self._stirred = asyncio.Event()  # somebody has come or gone
        self.members: dict[str, Member] = {}
        self.version = 0  # grows whenever instances came or went, came up, went down, or have other models
        self.hearsay: Hearsay | None = None  # of other replicas
        self.warms: Callable[[Member], bool] = lambda member: False  # who is warmed before requests
        self.on_change: Callable[[], None] = lambda: None  # called when instances came, went, were drained or resumed

    @property
    def families(self) -> Mapping[str, Sequence[str]]:
        """The engines whose instances are discovered, and the names of those."""
        return {
            name: [one for one in instances(name, each.config, each.urls) if one in self.members]
            for name, each in self._families.items()
        }

    def open(self, engines: Mapping[str, EngineConfig], rules: BreakerConfig = USUAL_RULES) -> list[Member]:
        """Take on the engines of a configuration: new or changed ones are opened. `rules` hold for all.

        Returns those that have to go, still open: `retire` them. Raises `BadRequest` and changes nothing if one cannot
        be opened.
        """
        single = {name: config for name, config in engines.items() if config.discover is None}
        families = {
            name: self._family(name, config, config.discover)
            for name, config in engines.items()
            if config.discover is not None
        }
        wanted = _wanted(single, families)
        gone = self._take_on(wanted, self._opened(wanted, rules))
        for member in self.members.values():
            member.breaker.rules = rules
        self._rules = rules
        self._single, self._families = single, families
        return gone

    def _family(self, name: str, config: EngineConfig, discover: Discover) -> Family:
        """What was found before holds until it is known where instances are by the new configuration."""
        known = self._families.get(name)
        if known is not None and known.config == config:
            return known
        return Family(config, discover, discover.list or (known.urls if known is not None else ()))

    def _opened(self, wanted: Mapping[str, EngineConfig], rules: BreakerConfig) -> Mapping[str, Member]:
        """New members, for those of the wanted that are not there, or not like this. Raises `BadRequest`."""
        return {
            name: Member(name, config, open_engine(name, _settings(config), self._host), rules)
            for name, config in wanted.items()
            if name not in self.members or self.members[name].config != config
        }

    def _take_on(self, wanted: Iterable[str], fresh: Mapping[str, Member]) -> list[Member]:
        """These are the members from now on. Returns those that are not any more."""
        before = self.members
        self.members = {name: fresh.get(name) or before[name] for name in wanted}
        for member in fresh.values():
            member.changed = self.changed
            member.drained = self._is_drained(member.name)
            member.tell = partial(self._told, member)
            member.warms = self.warms
            member.health = member.warmth.expect(member.health, needed=self.warms(member))
        self.changed()
        self._stirred.set()
        return [member for name, member in before.items() if self.members.get(name) is not member]

    def changed(self) -> None:
        """What was worked out about members has to be worked out again."""
        self.version += 1

    def up(self, target: Target) -> bool:
        """Whether the engine of a target is, as far as its probes tell."""
        member = self.members.get(target.engine)
        return member is not None and member.up

    def standing(self, target: Target) -> Standing:
        """Of the engine of a target, now."""
        member = self.members.get(target.engine)
        return member.standing(target.model) if member is not None else GONE

    def note(self, target: Target) -> str:
        """What else there is to say of the engine of a target, in words."""
        member = self.members.get(target.engine)
        return member.note(target.model) if member is not None else "there is no such instance now"

    async def run(self) -> None:
        """Look for instances, and probe every member for as long as it is one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(lasting("warnings of other replicas", self._heed))
            while True:
                self._stirred.clear()
                self._watched = {who: task for who, task in self._watched.items() if not task.done()}
                for each in self._families.values():
                    if each not in self._watched and not each.discover.list:
                        looking = lasting("the search for instances of an engine", partial(self._keep_looking, each))
                        self._watched[each] = group.create_task(looking)
                for member in (*self.members.values(), *self._leaving):
                    if member not in self._watched:
                        watching = lasting(f"probes of engine {member.name!r}", partial(self._watch, member))
                        self._watched[member] = group.create_task(watching)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._stirred.wait()

    async def aclose(self) -> None:
        for member in (*self.members.values(), *self._leaving):
            await member.engine.aclose()
        self.members = {}

    # --- who is there -------------------------------------------------------------------------------------------------

    async def seek(self) -> None:
        """Look for the instances of every engine now."""
        async with asyncio.TaskGroup() as group:
            for name, each in self._families.items():
                group.create_task(self._seek(name, each))

    async def _keep_looking(self, each: Family) -> None:
        while name := next((name for name, known in self._families.items() if known is each), None):
            await self._seek(name, each)
            await asyncio.sleep(each.discover.every_s)

    async def _seek(self, name: str, each: Family) -> None:
        try:
            urls = await addresses(each.discover, self._host.home, self._resolve)
        except Unknown as error:
            if each.wrong != str(error):
                log.warning("engine %r keeps the instances that are known: %s", name, error)
            each.wrong = str(error)
            return
        each.wrong = ""
        if urls != each.heard and self._families.get(name) is each:
            self._settle(name, each, urls)

    def _settle(self, name: str, each: Family, urls: Sequence[str]) -> None:
        """Its instances are there from now on. Others get no new requests, and are closed when they are idle."""
        fresh: dict[str, Member] = {}
        usable = []
        for url in urls:
            try:
                fresh.update(self._opened(instances(name, each.config, (url,)), self._rules))
                usable.append(url)
            except (BadRequest, ValueError) as error:  # it may be no URL at all
                log.warning("engine %r: an instance is left out: %s", name, error)
        before, each.urls, each.heard = self.members, usable, urls
        gone = self._take_on(_wanted(self._single, self._families), fresh)
        for member in gone:
            self._leaving.add(member)
            member.ailing.set()
            self._notify(Notice(name="engine.left", engine=member.name))
        for joined in self.members.keys() - before.keys():
            self._notify(Notice(name="engine.joined", engine=joined))
        self.on_change()

    # --- who is taken out ---------------------------------------------------------------------------------------------

    def drain(self, names: frozenset[str]) -> None:
        """Exactly these engines and instances get no new requests from now on."""
        if names == self._drained:
            return
        self._drained = names
        for member in self.members.values():
            drained = self._is_drained(member.name)
            if drained is not member.drained:
                member.drained = drained
                self._notify(Notice(name="engine.drained" if drained else "engine.resumed", engine=member.name))
        self.on_change()

    def _is_drained(self, name: str) -> bool:
        return name in self._drained or family(name) in self._drained

    def _told(self, member: Member, event: str) -> None:
        """By its breaker."""
        self._notify(Notice(name=event, engine=member.name))
        about = subject(member.name, member.config)
        if event == "engine.set_aside" and self.hearsay is not None and about is not None:
            self.hearsay.warn(about, member.breaker.rules.open_s)

    async def _heed(self) -> None:
        """What other replicas warn of."""
        while True:
            if (hearsay := self.hearsay) is not None:
                about = {subject(member.name, member.config): member for member in self.members.values()}
                for warned in await hearsay.warned([one for one in about if one is not None]):
                    about[warned].breaker.warned()
            await asyncio.sleep(HEED_S)

    # --- how they are -------------------------------------------------------------------------------------------------

    async def _watch(self, member: Member) -> None:
        """Probe it, and see it off when it has left."""
        age_s = 0.0
        while self.members.get(member.name) is member:
            fresh_s = 0.0 if member.ailing.is_set() else _pause_s(member)
            member.ailing.clear()
            age_s = await self.probe(member, fresh_s)
            pause_s = (_pause_s(member) - age_s) * (1 + JITTER * random.random())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s, 0.0)):
                    await member.ailing.wait()
        if member in self._leaving:
            await retire((member,))
            self._leaving.discard(member)

    async def probe(self, member: Member, fresh_s: float = 0.0) -> float:
        """Find out how an engine is and what it has. Free of cost: never generates. With replicas that tell each other,
        one of them asks it, and a finding that is no older than `fresh_s` will do. Returns how old it is."""
        about = subject(member.name, member.config) if self.hearsay is not None else None
        if self.hearsay is None or about is None:
            heard = Heard(await _found(member.engine), 0.0)
        else:
            heard = await self.hearsay.ask(about, fresh_s, partial(_found, member.engine))
        self._learn(member, heard.finding)
        return heard.age_s

    def _learn(self, member: Member, finding: Finding) -> None:
        if finding.health.live:
            member.models = finding.models
        member.found(finding.health)
        if member.told_live != member.health.live:
            member.told_live = member.health.live
            name = "engine.up" if member.health.live else "engine.down"
            well = member.health.ready or member.health.message == WARMING
            wrong = None if well else member.health.message or None
            self._notify(Notice(name=name, engine=member.name, error=wrong))

    async def refresh(self) -> None:
        """Probe all that may list models, now."""
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                if not member.embedded:
                    group.create_task(self.probe(member))


async def _found(engine: Engine) -> Finding:
    """By asking it."""
    health = await engine.health()
    if not health.live:
        return Finding(health=health)
    try:
        return Finding(health=health, models=tuple(await engine.models()))
    except DrivetrainError as error:
        return Finding(health=Health(live=True, ready=False, message=error.message))


def _pause_s(member: Member) -> float:
    return PROBE_S if member.health.live else PROBE_DOWN_S


def _wanted(single: Mapping[str, EngineConfig], families: Mapping[str, Family]) -> Mapping[str, EngineConfig]:
    """Every engine that is to be a member."""
    wanted = dict(single)
    for name, each in families.items():
        wanted.update(instances(name, each.config, each.urls))
    return wanted


async def retire(members: Sequence[Member]) -> None:
    """Close engines that a new configuration has no use for, once their requests are done."""
    for member in members:
        await member.idle()
        await member.engine.aclose()


def _settings(config: EngineConfig) -> EngineSettings:
    return EngineSettings(
        kind=config.kind,
        url=config.url,
        api_key=config.api_key,
        region=config.region,
        weight=config.weight,
        connect_timeout_s=config.connect_timeout_s,
        options=config.options,
    )
