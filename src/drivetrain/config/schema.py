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
    host: str = "127.0.0.1"  # address to listen on
    port: Port = 11435  # 0 picks a free one
    workers: AtLeastOne = 1  # processes that answer requests
    auth: Literal["auto", "on", "off"] = "auto"  # auto: off on loopback, on elsewhere
    drop_in: bool = False  # also listen on Ollama's 127.0.0.1:11434
    drain_s: Positive = 30.0  # how long running requests may go on after SIGTERM
    max_body_bytes: AtLeastOne = 16 * 2**20  # a larger request is refused
    origins: tuple[str, ...] = ()  # further browser origins, "*" for all


class Store(Section, frozen=True):
    url: str = "sqlite:///state/drivetrain.db"  # relative to the home


class Shared(Section, frozen=True):
    url: str | None = None  # redis://…, for several replicas; null: this process alone


class Engine(Section, frozen=True):
    """An engine instance. Members that only its kind knows are collected in `options` by the loader."""

    kind: str  # which adapter speaks to it; `llamacpp`, `openai`, `ollama`, or what a package adds
    url: str | None = None  # where it answers; `unix:/path` for a socket
    api_key: str | None = None  # sent to it; write `"${NAME}"` or `"file:/path"`
    region: str | None = None  # where it stands, for routing and the ledger
    weight: AtLeastOne = 1  # its share among engines that could answer
    connect_timeout_s: Positive = 5.0  # how long a connection may take
    options: Mapping[str, Any] = {}  # what only its kind knows; may also be written beside `kind`


class Target(Section, frozen=True):
    engine: str  # name of an engine
    model: str  # the engine's own name of the model
    weight: Count = 1  # 0 takes it out of rotation
    tier: Count = 0  # a higher tier is used only if every lower one fails


class Route(Section, frozen=True):
    """A public model name and what stands behind it."""

    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1)]  # at least one
    policy: str = "default"  # name of a policy


class Timeouts(Section, frozen=True):
    connect_s: Positive = 5.0  # for a connection to the engine
    first_token_s: Positive = 300.0  # until the first piece of the answer, loading included
    idle_s: Positive = 120.0  # between two pieces
    total_s: Positive = 3600.0  # for the whole answer


class Limits(Section, frozen=True):
    requests_per_minute: AtLeastOne | None = None  # null: no limit
    tokens_per_minute: AtLeastOne | None = None  # prompt and answer; null: no limit
    concurrency: AtLeastOne | None = None  # requests at once; null: no limit


class Queue(Section, frozen=True):
    size: Count = 512  # requests that may wait; the next one is refused
    timeout_s: Positive = 60.0  # how long one may wait


class Budget(Section, frozen=True):
    usd: Positive  # how much
    per: Literal["hour", "day", "week", "month", "total"]  # in which time
    hard: bool = True  # refuse what is over it; false: only tell


class Policy(Section, frozen=True):
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    queue: Queue = Queue()
    budgets: tuple[Budget, ...] = ()  # each on its own
    settings: Mapping[str, Any] = {}  # load time, over model.json
    parameters: Mapping[str, Any] = {}  # request time, over model.json

    @property
    def limited(self) -> bool:
        """Whether something is counted here, which has to happen in one place."""
        return self.limits != Limits()


class Residency(Section, frozen=True):
    """Which models may stay in memory."""

    memory_bytes: AtLeastOne | None = None  # for the embedded engine's models; null: three quarters of RAM
    max_loaded: Count = 0  # 0: as many as fit
    keep_alive_s: float = 300.0  # idle time before a model is unloaded; negative: never
    load_timeout_s: Positive = 300.0  # how long a model may take to load


class Downloads(Section, frozen=True):
    connections: AtLeastOne = 4  # at once, per model
    huggingface: str = "https://huggingface.co"  # or a mirror of it
    ollama: str = "https://registry.ollama.ai"  # the registry of names without a host


class Logging(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"  # the least that is written
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
