"""What an engine is. The public extension API: everything else in this package is private.

An engine is a class behind an entry point of the group `drivetrain.engines`, named by its kind:

    [project.entry-points."drivetrain.engines"]
    mykind = "my_package:MyEngine"

Drivetrain's own engines come in by the same door.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.types import (
    Embeddings,
    EmbedRequest,
    Event,
    Health,
    Loaded,
    Model,
    ModelSpec,
    Notice,
    Request,
    Resident,
)

__all__ = [
    "GROUP",
    "Engine",
    "EngineFactory",
    "EngineSettings",
    "Host",
    "Resident",
    "kinds",
    "open_engine",
    "options_of",
]

GROUP = "drivetrain.engines"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's entry in `drivetrain.yaml`. `options` holds the members that only its kind knows."""

    kind: str
    url: str | None = None
    api_key: str | None = None
    region: str | None = None
    weight: int = 1
    connect_timeout_s: float = 5.0
    options: Mapping[str, Any] = {}


class Host(Protocol):
    """What Drivetrain offers an engine."""

    home: Path  # $DRIVETRAIN_HOME
    default_keep_alive_s: float

    def lookup(self, model: str) -> ModelSpec:
        """The library's model of this id. Raises `ModelNotFound`."""

    def notify(self, notice: Notice) -> None:
        """Tells a lifecycle event: shown on `/v1/events`, counted, logged. Never blocks."""

    def pinned(self, model: str) -> bool:
        """Whether this model, by its id in the library, is to stay in memory once it is there."""

    def evictions(
        self, resident: Sequence[Resident], *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> Sequence[str]:
        """Which models to unload, in order, so that `need_bytes` more fit the budget. Those in use among them are to
        take no new requests, and leave when they have none. `waited_s`: for how long a caller has waited for room.

        Raises `Busy` if there is none yet, with `retry_after_s` where waiting will help, and `LoadFailed` if there
        will be none. Instants of `resident` are those of `time.monotonic`."""


class Engine(Protocol):
    """Runs models. Cancelling a call, or closing the generator of `generate`, stops the work at once."""

    name: str  # of the instance
    kind: str

    async def models(self) -> Sequence[Model]:
        """The models it can run now. Costs nothing: never generates a token."""

    def generate(self, request: Request) -> AsyncGenerator[Sequence[Event], None]:
        """Events of one generation, ending in exactly one `Finished`, in batches: what arrived together is yielded
        together (one event each is fine, an empty batch too), so that a burst of frames costs one hop and one write.
        `request.model` is the engine's own name of the model. Raises a `CallerError` for what the request got wrong
        and an `EngineError` for all else."""

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per input, in order. Raises `Unsupported` if the engine has no embeddings."""

    async def health(self) -> Health:
        """Its state, by free probes only. Never raises."""

    async def load(self, model: str, *, keep_alive_s: float | None = None, options: Mapping[str, Any] = {}) -> None:
        """Bring a model into memory and return when it is ready. Raises `LoadFailed` with the reason."""

    async def unload(self, model: str) -> None:
        """Free the model's memory once its running requests are done. Unloading what is not loaded is no error."""

    async def loaded(self) -> Sequence[Loaded]:
        """The models that occupy memory now."""

    async def aclose(self) -> None:
        """Stop everything it started and release everything it holds."""


EngineFactory = Callable[[str, EngineSettings, Host], Engine]


def kinds() -> Mapping[str, EntryPoint]:
    """The kinds of engine that are installed. Nothing is imported.

    Raises `BadRequest` naming both packages if two claim one kind.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise BadRequest(
                f"engine kind {entry.name!r} is claimed by both {other.value} and {entry.value}; uninstall one"
            )
    return found


def options_of(kind: str) -> type[msgspec.Struct] | None:
    """The type of the options that an installed kind takes, where its class tells it as `options_type`. Imports it."""
    told: type[msgspec.Struct] | None = getattr(kinds()[kind].load(), "options_type", None)
    return told


def open_engine(name: str, settings: EngineSettings, host: Host) -> Engine:
    """The engine `name`, of the kind its settings name. Raises `BadRequest` for a kind that is not installed."""
    entry = kinds().get(settings.kind)
    if entry is None:
        known = ", ".join(sorted(kinds()))
        raise BadRequest(f"engine {name!r} is of kind {settings.kind!r}, which is not installed; installed: {known}")
    factory: EngineFactory = entry.load()
    return factory(name, settings, host)
