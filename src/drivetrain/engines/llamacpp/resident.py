"""One model in memory, from the wish to load it until its memory is free. Its owner is the fleet."""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from drivetrain import types
from drivetrain.engines._http import Upstream
from drivetrain.engines.llamacpp.flow import Flow
from drivetrain.engines.llamacpp.launch import Launch
from drivetrain.engines.llamacpp.process import Worker
from drivetrain.engines.llamacpp.settings import Chosen
from drivetrain.engines.llamacpp.ways import Way
from drivetrain.errors import DrivetrainError
from drivetrain.types import Experts, Loaded, ModelSpec

State = Literal["queued", "loading", "ready", "leaving"]


class Running(NamedTuple):
    """A worker that serves, and what is needed to speak with it."""

    model: str
    launch: Launch
    worker: Worker
    upstream: Upstream
    flow: Flow | None = None  # of a streamed model


class Resident:
    """Written to by its owner's task, but for what `hold`, `release` and `retire` change. Everything between two awaits
    is one step, so what a request has checked still holds when it acts on it."""

    def __init__(self, spec: ModelSpec, chosen: Chosen) -> None:
        self.spec = spec
        self.chosen = chosen  # settings and options under which it was loaded
        self.way: Way | None = None
        self.running: Running | None = None  # while `state` is "ready"
        self.state: State = "queued"
        self.fraction: float | None = None  # how far it is loaded
        self.failure: DrivetrainError | None = None
        self.counted = False  # its size is in the budget
        self.active = 0  # requests that need it
        self.retiring = False  # takes no more requests
        self.gone = asyncio.Event()
        self.wanted_s = time.monotonic()  # when it was asked for
        self.last_used_s = self.wanted_s
        self.expires_s = math.inf  # on the monotonic clock
        self.ready_s = 0.0
        self._changed = asyncio.Event()
        self._flow: Flow | None = None

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def launch(self) -> Launch | None:
        return self.way.launch if self.way else None

    @property
    def size_bytes(self) -> int:
        """What it takes at least. Experts take more of what is free, and give it back."""
        return self.way.size_bytes if self.way else 0

    @property
    def experts(self) -> Experts | None:
        """How those of a streamed model fare; none before it is loaded."""
        return self._flow.experts() if self._flow else None

    @property
    def open(self) -> bool:
        """It takes requests, now or when it is loaded."""
        return not self.retiring and self.state != "leaving"

    @property
    def serving(self) -> Running | None:
        """Its worker, unless that has just died and the owner is about to see it."""
        running = self.running
        return None if running is None or running.worker.exited.is_set() else running

    @property
    def was_ready(self) -> bool:
        return self.ready_s > 0

    @property
    def slots(self) -> int:
        """How many requests it works on at once."""
        return self.running.launch.parallel if self.running else 0

    def serves(self, spec: ModelSpec, options: Chosen) -> bool:
        """It is what a request asks for: the library's model has not changed, and no option differs."""
        if spec is not self.spec and _essence(spec) != _essence(self.spec):
            return False
        return all(self._value(name) == value for name, value in options.items())

    def _value(self, name: str) -> Any:
        return self.chosen[name] if name in self.chosen else getattr(self.launch, name, None)

    def become(self, running: Running) -> None:
        """It is in memory, and serves. If nobody waits any longer, its time runs from now."""
        self.running, self.state, self.fraction, self.ready_s = running, "ready", 1.0, time.monotonic()
        self._flow = running.flow
        self.tell()

    def hold(self) -> None:
        self.active += 1

    def release(self, keep_alive_s: float) -> None:
        """A request is done; the model stays for so long after the last one, for ever if that is negative."""
        self.active -= 1
        self.last_used_s = time.monotonic()
        self.expires_s = math.inf if keep_alive_s < 0 else self.last_used_s + keep_alive_s
        if not self.active:
            self.tell()

    def retire(self) -> None:
        """Leave memory once the running requests are done."""
        self.retiring = True
        self.tell()

    def due(self) -> bool:
        return not self.active and (self.retiring or time.monotonic() >= self.expires_s)

    def tell(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, within_s: float | None) -> None:
        """Wait until something changes, or the time is over."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def standing(self) -> types.Resident:
        """What is still loading has only just come."""
        return types.Resident(
            id=self.id,
            size_bytes=self.size_bytes,
            active=self.active,
            last_used_s=self.last_used_s,
            since_s=self.ready_s or time.monotonic(),
        )

    def loaded(self, *, engine: str) -> Loaded:
        left_s = self.expires_s - time.monotonic()
        experts = self.experts
        return Loaded(
            model=replace(self.spec.model, id=self.id, engine=engine),
            size_bytes=self.size_bytes + self._beyond_least(experts),
            experts=experts,
            context_length=self.launch.context if self.launch else None,
            expires_s=None if math.isinf(left_s) else time.time() + max(left_s, 0.0),
            active=self.active,
            address=f"unix:{self.running.worker.socket}" if self.running else "",
        )

    def _beyond_least(self, experts: Experts | None) -> int:
        if experts is None or self.way is None or self.way.stream is None:
            return 0
        return max(0, experts.resident_bytes - self.way.stream.least_bytes)


def _essence(spec: ModelSpec) -> tuple[str | None, str | None, tuple[str, ...], Mapping[str, Any]]:
    """What a worker depends on: the rest of a model's description may change under it."""
    return spec.weights, spec.projector, spec.adapters, spec.settings
