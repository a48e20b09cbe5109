"""The owner of the engine instances: opens and closes them, probes them, and learns from requests how they stand."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from drivetrain.config.schema import Breaker as BreakerConfig
from drivetrain.config.schema import Engine as EngineConfig
from drivetrain.config.schema import Target
from drivetrain.engines import Engine, EngineSettings, Host, open_engine
from drivetrain.errors import DrivetrainError
from drivetrain.gateway.meter import Meter
from drivetrain.router import Breaker, Speedometer, Standing
from drivetrain.types import Health, Model, Notice

PROBE_S = 10.0
PROBE_DOWN_S = 1.0  # an engine that is away is looked for more often
MOST_HELD_S = 300.0  # an engine is asked again after so long, whatever it said
MOST_MODELS = 256  # of an engine, whose speed is remembered
GONE = Standing(ready=False)  # of an engine that is no member
USUAL_RULES = BreakerConfig()
UNPROBED = Health(live=True, ready=True, message="not probed yet")


class Member:
    """One engine instance and how it stands."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        engine: Engine,
        rules: BreakerConfig = USUAL_RULES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.config = config
        self.engine = engine
        self.outstanding = 0
        self.not_before_s = 0.0  # by `clock`; until then it asked to be left alone (Retry-After)
        self.breaker = Breaker(rules)
        self.health = UNPROBED
        self._gone = False  # the last probe found it away
        self.told_live: bool | None = None  # what the last notice said
        self.models: Sequence[Model] = ()
        self.ailing = asyncio.Event()  # a request found it away: probe now
        self._idle: asyncio.Event | None = None
        self._clock = clock
        self._speeds: dict[str, Speedometer] = {}  # by its name of the model
        self._trials: list[Meter] = []  # attempts that began while its breaker was open

    @property
    def embedded(self) -> bool:
        return self.config.kind == "llamacpp"

    def standing(self, model: str = "") -> Standing:
        """Now, for work with this model of it."""
        now_s = self._clock()
        breaker, speeds = self.breaker, self._speeds.get(model)
        if self._trials:
            self._prove(now_s)
        return Standing(
            ready=self.health.ready,
            outstanding=self.outstanding,
            state=breaker.state(now_s),
            wait_s=self.not_before_s - now_s if self.not_before_s > now_s else 0.0,
            share=1.0 if breaker.whole_s < now_s else breaker.share(now_s),
            speed=speeds.speed(now_s) if speeds is not None else None,
        )

    def _prove(self, now_s: float) -> None:
        """A trial that has begun to answer has succeeded, however long the answer."""
        for meter in self._trials:
            if meter.first_token_s is not None:
                self._trials.remove(meter)
                self.breaker.succeeded(now_s, trial=True)
                return

    def begins(self, meter: Meter) -> None:
        """An attempt at it; `ends` tells what came of it."""
        self.outstanding += 1
        if self.breaker.began():
            self._trials.append(meter)

    def ends(self, meter: Meter, *, worked: bool | None) -> None:
        """`worked`: whether it did its part; None if this attempt does not tell."""
        self.outstanding -= 1
        if not self.outstanding and self._idle is not None:
            self._idle.set()
        now_s = self._clock()
        trial = False
        if self._trials:
            self._prove(now_s)
            if trial := meter in self._trials:
                self._trials.remove(meter)
        if worked is None:
            self.breaker.spared(trial=trial)
        elif worked:
            self.breaker.succeeded(now_s, trial=trial)
        else:
            self.breaker.failed(now_s, trial=trial)
        self._measure(meter, now_s, worked=worked)

    def _measure(self, meter: Meter, now_s: float, *, worked: bool | None) -> None:
        total_s, usage = time.perf_counter() - meter.began, meter.reported
        first_s, model = meter.first_token_s, meter.candidate.model
        speeds = self._speeds.get(model)
        if worked and first_s is not None and usage is not None:
            if speeds is None:
                speeds = self._meet(model)
            speeds.answered(
                now_s,
                prompt_tokens=usage.prompt - usage.cached,
                first_token_s=first_s - meter.waited_s,
                tokens=usage.completion,
                rest_s=total_s - first_s,
            )
        elif speeds is not None and first_s is None and worked is not True:
            speeds.silent(now_s, waited_s=total_s - meter.waited_s)

    def _meet(self, model: str) -> Speedometer:
        if len(self._speeds) >= MOST_MODELS:
            del self._speeds[next(iter(self._speeds))]
        found = self._speeds[model] = Speedometer()
        return found

    async def idle(self) -> None:
        """Wait until no request of ours is left."""
        self._idle = asyncio.Event()
        if self.outstanding:
            await self._idle.wait()

    def found(self, health: Health) -> None:
        """By a probe. An engine that was away for requests only has not come back: its breaker knows better."""
        if health.ready and not self.health.ready:
            now_s = self._clock()
            if self._gone or self.breaker.state(now_s) == "closed":
                self.breaker.returned(now_s)
        self.health, self._gone = health, not health.ready

    def rest(self, wanted_s: float) -> None:
        """It asked to be left alone for so long."""
        self.not_before_s = self._clock() + min(wanted_s, MOST_HELD_S)

    def lost(self, message: str) -> None:
        """A request could not reach it."""
        self.health = Health(live=False, ready=False, message=message)
        self.ailing.set()


class Pool:
    """`run` probes until it is cancelled; `members` is what others read."""

    def __init__(self, host: Host, notify: Callable[[Notice], None]) -> None:
        self._host = host
        self._notify = notify
        self._probes: dict[str, asyncio.Task[None]] = {}
        self.members: dict[str, Member] = {}

    def open(self, engines: Mapping[str, EngineConfig], rules: BreakerConfig = USUAL_RULES) -> list[Member]:
        """Take on the engines of a configuration: new or changed ones are opened. `rules` hold for all.

        Returns those that have to go, still open: `retire` them. Raises `BadRequest` and changes nothing if one cannot
        be opened.
        """
        fresh = {
            name: Member(name, config, open_engine(name, _settings(config), self._host), rules)
            for name, config in engines.items()
            if name not in self.members or self.members[name].config != config
        }
        kept = {name: member for name, member in self.members.items() if name in engines and name not in fresh}
        gone = [member for name, member in self.members.items() if kept.get(name) is not member]
        self.members = {name: fresh.get(name) or kept[name] for name in engines}
        for member in kept.values():
            member.breaker.rules = rules
        return gone

    def standing(self, target: Target) -> Standing:
        """Of the engine of a target, now."""
        member = self.members.get(target.engine)
        return member.standing(target.model) if member is not None else GONE

    async def run(self) -> None:
        """Probe every member for as long as it is one."""
        async with asyncio.TaskGroup() as group:
            while True:
                for member in self.members.values():
                    if member.name not in self._probes or self._probes[member.name].done():
                        self._probes[member.name] = group.create_task(self._watch(member))
                await asyncio.sleep(1.0)

    async def _watch(self, member: Member) -> None:
        while self.members.get(member.name) is member:
            member.ailing.clear()
            await self.probe(member)
            pause_s = PROBE_S if member.health.live else PROBE_DOWN_S
            try:
                async with asyncio.timeout(pause_s):
                    await member.ailing.wait()
            except TimeoutError:
                continue

    async def probe(self, member: Member) -> None:
        """Ask an engine how it is and what it has. Free of cost: never generates."""
        found = await member.engine.health()
        if found.live:
            try:
                member.models = await member.engine.models()
            except DrivetrainError as error:
                found = Health(live=True, ready=False, message=error.message)
        member.found(found)
        if member.told_live != member.health.live:
            member.told_live = member.health.live
            name = "engine.up" if member.health.live else "engine.down"
            wrong = None if member.health.ready else member.health.message or None
            self._notify(Notice(name=name, engine=member.name, error=wrong))

    async def refresh(self) -> None:
        """Probe all that may list models, now."""
        async with asyncio.TaskGroup() as group:
            for member in self.members.values():
                if not member.embedded:
                    group.create_task(self.probe(member))

    async def aclose(self) -> None:
        for member in self.members.values():
            await member.engine.aclose()
        self.members = {}


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
