"""The owner of the engine instances: opens and closes them, probes them, counts what each is working on."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from drivetrain.config.schema import Engine as EngineConfig
from drivetrain.engines import Engine, EngineSettings, Host, open_engine
from drivetrain.errors import DrivetrainError
from drivetrain.router import Standing
from drivetrain.types import Health, Model, Notice

PROBE_S = 10.0
PROBE_DOWN_S = 1.0  # an engine that is away is looked for more often
UNPROBED = Health(live=True, ready=True, message="not probed yet")


class Member:
    """One engine instance and how it stands."""

    def __init__(self, name: str, config: EngineConfig, engine: Engine) -> None:
        self.name = name
        self.config = config
        self.engine = engine
        self.outstanding = 0
        self.health = UNPROBED
        self.told_live: bool | None = None  # what the last notice said
        self.models: Sequence[Model] = ()
        self._idle: asyncio.Event | None = None
        self.ailing = asyncio.Event()  # a request found it away: probe now

    @property
    def embedded(self) -> bool:
        return self.config.kind == "llamacpp"

    def standing(self) -> Standing:
        return Standing(ready=self.health.ready, outstanding=self.outstanding)

    def done(self) -> None:
        self.outstanding -= 1
        if not self.outstanding and self._idle is not None:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no request of ours is left."""
        self._idle = asyncio.Event()
        if self.outstanding:
            await self._idle.wait()

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

    def open(self, engines: Mapping[str, EngineConfig]) -> list[Member]:
        """Take on the engines of a configuration: new or changed ones are opened.

        Returns those that have to go, still open: `retire` them. Raises `BadRequest` and changes nothing if one cannot
        be opened.
        """
        fresh = {
            name: Member(name, config, open_engine(name, _settings(config), self._host))
            for name, config in engines.items()
            if name not in self.members or self.members[name].config != config
        }
        kept = {name: member for name, member in self.members.items() if name in engines and name not in fresh}
        gone = [member for name, member in self.members.items() if kept.get(name) is not member]
        self.members = {name: fresh.get(name) or kept[name] for name in engines}
        return gone

    def standings(self) -> Mapping[str, Standing]:
        return {name: member.standing() for name, member in self.members.items()}

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
        member.health = await member.engine.health()
        if member.health.live:
            try:
                member.models = await member.engine.models()
            except DrivetrainError as error:
                member.health = Health(live=True, ready=False, message=error.message)
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
