"""The shape of `drivetrain.yaml`, every default included. Values only; `config.load` reads and checks a file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ancestor of the sections: immutable, and a member that nobody knows is an error."""


class Server(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 11435
    workers: AtLeastOne = 1
    auth: Literal["auto", "on", "off"] = "auto"  # auto: off on loopback, on elsewhere
    drop_in: bool = False  # also listen on Ollama's 127.0.0.1:11434
    drain_s: Positive = 30.0  # how long running requests may go on after SIGTERM
    max_body_bytes: AtLeastOne = 16 * 2**20
    origins: tuple[str, ...] = ()  # further browser origins, "*" for all


class Store(Section, frozen=True):
    url: str = "sqlite:///state/drivetrain.db"  # relative to the home


class Shared(Section, frozen=True):
    url: str | None = None


class Engine(Section, frozen=True):
    """An engine instance. Members that only its kind knows are collected in `options` by the loader."""

    kind: str
    url: str | None = None
    api_key: str | None = None
    region: str | None = None
    weight: AtLeastOne = 1
    connect_timeout_s: Positive = 5.0
    options: Mapping[str, Any] = {}


class Target(Section, frozen=True):
    engine: str
    model: str
    weight: Count = 1  # 0 takes it out of rotation
    tier: Count = 0  # a higher tier is used only if every lower one fails


class Route(Section, frozen=True):
    """A public model name and what stands behind it."""

    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1)]
    policy: str = "default"


class Timeouts(Section, frozen=True):
    connect_s: Positive = 5.0
    first_token_s: Positive = 300.0
    idle_s: Positive = 120.0
    total_s: Positive = 3600.0


class Limits(Section, frozen=True):
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None
    concurrency: AtLeastOne | None = None


class Queue(Section, frozen=True):
    size: Count = 512
    timeout_s: Positive = 60.0


class Budget(Section, frozen=True):
    usd: Positive
    per: Literal["hour", "day", "week", "month", "total"]
    hard: bool = True


class Policy(Section, frozen=True):
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    queue: Queue = Queue()
    budgets: tuple[Budget, ...] = ()
    settings: Mapping[str, Any] = {}  # load time, over model.json
    parameters: Mapping[str, Any] = {}  # request time, over model.json

    @property
    def limited(self) -> bool:
        """Whether something is counted here, which has to happen in one place."""
        return self.limits != Limits()


class Residency(Section, frozen=True):
    """Which models may stay in memory."""

    memory_bytes: AtLeastOne | None = None  # for the embedded engine's models; None: three quarters of RAM
    max_loaded: Count = 0  # 0: as many as fit
    keep_alive_s: float = 300.0  # idle time before a model is unloaded; negative: never
    load_timeout_s: Positive = 300.0


class Downloads(Section, frozen=True):
    connections: AtLeastOne = 4  # at once, per model
    huggingface: str = "https://huggingface.co"
    ollama: str = "https://registry.ollama.ai"


class Logging(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"  # auto: console on a terminal, JSON elsewhere


class Config(Section, frozen=True):
    """One snapshot of the whole configuration: validated whole, swapped whole, never changed in place."""

    server: Server = Server()
    store: Store = Store()
    shared: Shared = Shared()
    engines: Mapping[str, Engine] = {}
    models: Mapping[str, Route] = {}
    policies: Mapping[str, Policy] = {}
    residency: Residency = Residency()
    downloads: Downloads = Downloads()
    logging: Logging = Logging()
