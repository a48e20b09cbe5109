"""An engine inside the test's process that follows a script, and what a gateway needs around it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drivetrain.config.schema import Config, Engine, Policy, Route, Target
from drivetrain.engines import Host
from drivetrain.errors import DrivetrainError, ModelNotFound, Unsupported
from drivetrain.gateway import Gateway
from drivetrain.gateway.pool import Member
from drivetrain.governance import Attempt, Comparison, Price, Resource
from drivetrain.policies.prices import Table
from drivetrain.quota import Quota
from drivetrain.quota.memory import MemoryQuota
from drivetrain.rollouts.plan import Plan
from drivetrain.types import (
    ChoiceFinished,
    Embeddings,
    EmbedRequest,
    Event,
    Finished,
    Health,
    Loaded,
    Message,
    Model,
    ModelSpec,
    Notice,
    Opaque,
    Request,
    Text,
    TextDelta,
    Usage,
)

Step = Sequence[Event] | DrivetrainError | float  # a batch, an error to raise, or seconds of silence

ROLE = Opaque(raw=b"role")
HELLO = TextDelta(text="Hello")
WORLD = TextDelta(text=" world")
END = (ChoiceFinished(reason="stop"), Finished(usage=Usage(prompt=5, completion=2)))
ANSWER: tuple[Step, ...] = ([ROLE], [HELLO], [WORLD], END)


class ScriptedEngine:
    """Plays one script per call, the last one again and again. `asked` holds the requests; `closed` counts cuts,
    `silences` how often it fell silent."""

    kind = "scripted"

    def __init__(
        self, name: str, *scripts: Sequence[Step], vectors: Embeddings | DrivetrainError | None = None
    ) -> None:
        self.name = name
        self._scripts = list(scripts) or [ANSWER]
        self._vectors = vectors
        self.asked: list[Request] = []
        self.closed = 0
        self.silences = 0
        self.state = Health(live=True, ready=True)
        self.listed: tuple[Model, ...] = ()

    def play(self, *scripts: Sequence[Step]) -> None:
        """From now on."""
        self._scripts = list(scripts)

    async def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        self.asked.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        try:
            for step in script:
                if isinstance(step, DrivetrainError):
                    raise step
                if isinstance(step, float):
                    self.silences += 1
                    await asyncio.sleep(step)
                else:
                    yield step
        except (GeneratorExit, asyncio.CancelledError):
            self.closed += 1
            raise

    async def embed(self, request: EmbedRequest) -> Embeddings:
        if isinstance(self._vectors, DrivetrainError):
            raise self._vectors
        if self._vectors is None:
            raise Unsupported("no embeddings here")
        return self._vectors

    async def models(self) -> Sequence[Model]:
        return self.listed

    async def health(self) -> Health:
        return self.state

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None: ...

    async def unload(self, model: str) -> None: ...

    async def loaded(self) -> Sequence[Loaded]:
        return ()

    async def aclose(self) -> None: ...


class EmptyLibrary:
    """A library without models."""

    def lookup(self, model: str) -> ModelSpec:
        raise ModelNotFound(f"model {model!r} not found")

    def list(self) -> Sequence[ModelSpec]:
        return ()


class Notebook:
    """Keeps what the gateway records."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.notices: list[Notice] = []
        self.answering = 0
        self.queued = 0
        self.refusals: list[Resource] = []
        self.comparisons: list[Comparison] = []

    def attempt(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)

    def enter(self) -> None:
        self.answering += 1

    def leave(self) -> None:
        self.answering -= 1

    def enqueue(self) -> None:
        self.queued += 1

    def dequeue(self) -> None:
        self.queued -= 1

    def refused(self, resource: Resource) -> None:
        self.refusals.append(resource)

    def compared(self, comparison: Comparison) -> None:
        self.comparisons.append(comparison)


class NoHost:
    home = Path("/nonexistent")
    default_keep_alive_s = 300.0

    def lookup(self, model: str) -> ModelSpec:
        raise ModelNotFound(f"model {model!r} not found")

    def notify(self, notice: Notice) -> None: ...

    def pinned(self, model: str) -> bool:
        return False

    def evictions(self, resident: Any, *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0) -> Sequence[str]:
        return ()


def route_to(*engines: ScriptedEngine, fallbacks: Sequence[str] = ()) -> Route:
    """The first in tier 0, the next in tier 1 and so on."""
    targets = (Target(engine=engine.name, model=f"{engine.name}-model", tier=n) for n, engine in enumerate(engines))
    return Route(targets=tuple(targets), fallbacks=tuple(fallbacks))


def gateway_over(
    *engines: ScriptedEngine,
    policy: Policy | None = None,
    route: Route | None = None,
    routes: Mapping[str, Route] = {},
    prices: Sequence[Price] = (),
    quota: Quota | None = None,
    plan: Callable[[], Plan] = Plan,
) -> tuple[Gateway, Notebook]:
    """A gateway with the route `chat` over these engines, or with `routes`."""
    notebook = Notebook()
    config = Config(
        models=routes or {"chat": route or route_to(*engines)},
        policies={"default": policy or Policy()},
    )
    host: Host = NoHost()
    table = Table(prices)
    gateway = Gateway(config, EmptyLibrary(), host, notebook, quota or MemoryQuota(), lambda: table, plan)
    for engine in engines:
        member = gateway.pool.members[engine.name] = Member(engine.name, Engine(kind=engine.kind), engine)
        member.changed = gateway.pool.changed
    return gateway, notebook


def ask(text: str = "Hi", *, model: str = "chat", stream: bool = True) -> Request:
    return Request(model=model, messages=(Message(role="user", content=(Text(text=text),)),), stream=stream)


async def leaving(asking: Coroutine[Any, Any, Any], when: Callable[[], object]) -> None:
    """A caller who goes away as soon as that is so."""
    task = asyncio.create_task(asking)
    while not when() and not task.done():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
