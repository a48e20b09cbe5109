"""One engine instance, and how it stands: what its probes have found, and what requests tell of it."""

import asyncio
import time
from collections.abc import Callable, Sequence

from drivetrain.config.schema import Breaker as BreakerConfig
from drivetrain.config.schema import Engine as EngineConfig
from drivetrain.engines import Engine
from drivetrain.gateway.meter import Meter
from drivetrain.gateway.warmth import Warmth
from drivetrain.router import DRAINED, Breaker, Speedometer, Standing
from drivetrain.types import Health, Model

MOST_HELD_S = 300.0  # an engine is asked again after so long, whatever it said
MOST_MODELS = 256  # of an engine, whose speed is remembered
ASLEEP = 0.05  # of its weight that an engine takes which has to be woken first
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
        self.embedded = config.kind == "llamacpp"
        self.engine = engine
        self.outstanding = 0
        self.others = 0  # requests that others had there when it was last probed, if it tells
        self.changed: Callable[[], None] = lambda: None  # called when it comes up or goes, or has other models
        self._drained = False
        self.up = True  # its last probe found it ready, and nobody took it out
        self.tell: Callable[[str], None] = lambda event: None  # of its breaker
        self._aside = False  # what was last told
        self.not_before_s = 0.0  # by `clock`; until then it asked to be left alone (Retry-After)
        self.breaker = Breaker(rules)
        self._health = UNPROBED
        self.warmth = Warmth()
        self.warms: Callable[[Member], bool] = lambda member: False  # has to be warmed before requests
        self._gone = False  # the last probe found it away
        self.told_live: bool | None = None  # what the last notice said
        self._models: Sequence[Model] = ()
        self.ailing = asyncio.Event()  # a request found it away: probe now
        self._idle: asyncio.Event | None = None
        self._clock = clock
        self._speeds: dict[str, Speedometer] = {}  # by its name of the model
        self._trials: list[Meter] = []  # attempts that began while its breaker was open
        self._believed: Meter | None = None  # the one of them whose first token closed it

    @property
    def health(self) -> Health:
        return self._health

    @health.setter
    def health(self, health: Health) -> None:
        self._health = health
        self._come_or_go()

    @property
    def drained(self) -> bool:
        """Somebody took it out: no new requests."""
        return self._drained

    @drained.setter
    def drained(self, drained: bool) -> None:
        self._drained = drained
        self._come_or_go()

    @property
    def models(self) -> Sequence[Model]:
        return self._models

    @models.setter
    def models(self, models: Sequence[Model]) -> None:
        before, self._models = self._models, models
        if self.embedded or models != before:  # what is not in memory of it, the library tells
            self.changed()

    def _come_or_go(self) -> None:
        up = self._health.ready and not self._drained
        if up is not self.up:
            self.up = up
            self.changed()

    def standing(self, model: str = "") -> Standing:
        """Now, for work with this model of it."""
        now_s = self._clock()
        breaker, speeds = self.breaker, self._speeds.get(model)
        if self._trials:
            self._prove(now_s)
        return Standing(
            ready=self.up,
            outstanding=self.outstanding + self.others,
            state=breaker.state(now_s) if breaker.opened else "closed",
            wait_s=self.not_before_s - now_s if self.not_before_s > now_s else 0.0,
            share=ASLEEP if not self._health.awake else 1.0 if breaker.whole_s < now_s else breaker.share(now_s),
            speed=speeds.speed(now_s) if speeds is not None else None,
        )

    def note(self, model: str = "") -> str:
        """Why it gets no requests, or fewer; else how far its speed is known. In words; "": there is nothing to say."""
        health, speeds = self._health, self._speeds.get(model)
        if self._drained:
            return DRAINED
        if not health.ready:
            state = "not ready" if health.live else "down"
            return f"{state}: {health.message}" if health.message else state
        if not health.awake:
            return "asleep"
        if health is UNPROBED:
            return UNPROBED.message
        return speeds.note(self._clock()) if speeds is not None else ""

    def _prove(self, now_s: float) -> None:
        """A trial that has begun to answer has succeeded, however long the answer."""
        for meter in self._trials:
            if meter.first_token_s is not None:
                self._trials.remove(meter)
                self._believed = meter
                self.breaker.succeeded(now_s, trial=True)
                self._tell(now_s)
                return

    def _tell(self, now_s: float) -> None:
        aside = self.breaker.state(now_s) != "closed"
        if aside is not self._aside:
            self._aside = aside
            self.tell("engine.set_aside" if aside else "engine.taken_back")

    def begins(self, meter: Meter) -> None:
        """An attempt at it; `ends` tells what came of it."""
        self.outstanding += 1
        if (speeds := self._speeds.get(meter.candidate.model)) is not None:
            speeds.began()
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
            self._believed = None  # a whole answer tells more
            self.breaker.succeeded(now_s, trial=trial)
        elif meter is self._believed:
            self.breaker.relapsed(now_s)
        else:
            self.breaker.failed(now_s, trial=trial)
        if trial or worked is False:
            self._tell(now_s)
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
        if speeds is not None:
            speeds.ended(now_s)

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
        health = self.warmth.judge(health, needed=self.warms(self))
        if health.ready and not self.health.ready:
            now_s = self._clock()
            if self._gone or self.breaker.state(now_s) == "closed":
                self.breaker.returned(now_s)
        self.health, self._gone = health, not health.ready
        self.others = max(0, (health.running or 0) + (health.waiting or 0) - self.outstanding)

    def rest(self, wanted_s: float) -> None:
        """It asked to be left alone for so long."""
        self.not_before_s = self._clock() + min(wanted_s, MOST_HELD_S)

    def lost(self, message: str) -> None:
        """A request could not reach it."""
        self.health = Health(live=False, ready=False, message=message)
        self.ailing.set()
