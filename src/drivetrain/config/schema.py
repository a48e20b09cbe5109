"""The shape of `drivetrain.yaml`, every default included. Values only; `config.load` reads and checks a file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
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
    media_hosts: tuple[str, ...] = ()  # public hosts from which images are fetched for callers, "*" for all


class Store(Section, frozen=True):
    url: str = "sqlite:///state/drivetrain.db"  # relative to the home; or postgresql://…


class Shared(Section, frozen=True):
    """Where several replicas count limits and budgets together."""

    url: str | None = None  # redis://…; null: this host alone
    deadline_s: Positive = 0.05  # how long a request waits for it; then `on_loss` of each rule decides
    lease_s: Positive = 30.0  # what a process that died had reserved is free again after so long


class Keys(Section, frozen=True):
    """API keys. `server.auth` tells whether one has to be shown."""

    pepper: str | None = None  # what hashes of keys are made with, the same for every replica; null: state/pepper
    grace_s: Positive = 86400.0  # how long a rotated key goes on working beside its successor


class Oidc(Section, frozen=True):
    """Administrators who come with a token of an identity provider instead of a key."""

    issuer: str | None = None  # https://…; null: keys only
    audience: str = "drivetrain"  # who the token has to be for
    jwks_url: str | None = None  # where the provider's public keys are; null: as its discovery document says
    scopes_claim: str = "drivetrain_scopes"  # the claim that lists scopes, for users who are not in the store


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
    fallbacks: tuple[str, ...] = ()  # public names that are tried after the targets, each under its own policy


class Timeouts(Section, frozen=True):
    connect_s: Positive = 5.0  # for a connection to the engine
    first_token_s: Positive = 300.0  # until the first piece of the answer, loading included
    idle_s: Positive = 120.0  # between two pieces
    total_s: Positive = 3600.0  # for the whole answer


OnLoss = Literal["share", "open", "closed"]


class Limits(Section, frozen=True):
    requests_per_minute: AtLeastOne | None = None  # null: no limit
    requests_per_day: AtLeastOne | None = None  # null: no limit
    tokens_per_minute: AtLeastOne | None = None  # prompt and answer; null: no limit
    tokens_per_day: AtLeastOne | None = None  # prompt and answer; null: no limit
    concurrency: AtLeastOne | None = None  # requests at once; null: no limit
    on_loss: OnLoss = "share"  # shared.url is away: count one's own share, let all in, or none


class Reserved(Section, frozen=True):
    """Slots of `limits.concurrency` that a class has for itself and those above it. Lower ones always have one left."""

    system: Percent = 0  # of the slots, that interactive, default and bulk requests leave free
    interactive: Percent = 0  # of the slots, that default and bulk requests leave free
    default: Percent = 20  # of the slots, that bulk requests leave free


class Queue(Section, frozen=True):
    size: Count = 512  # requests that may wait; of more, the newest of the lowest class is refused
    timeout_s: Positive = 60.0  # how long one may wait
    reserved: Reserved = Reserved()


Retried = Literal["engine_unavailable", "engine_overloaded", "engine_failed", "engine_timeout", "load_failed"]


class Retries(Section, frozen=True):
    """When a request that failed is tried again: at another engine, or once more at the last one that is left."""

    max: Count = 2  # further attempts of one request
    budget_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 20  # further attempts per 100 requests, in any minute
    least: Count = 10  # further attempts in any minute that are allowed however few requests there are
    on: tuple[Retried, ...] = (
        "engine_unavailable",
        "engine_overloaded",
        "engine_failed",
        "engine_timeout",
        "load_failed",
    )  # codes of the errors after which there is another attempt


class Budget(Section, frozen=True):
    usd: Positive  # how much
    per: Literal["hour", "day", "week", "month", "total"]  # in which time
    rolling: bool = False  # the last hour, day, …; false: those of the calendar
    zone: str = "UTC"  # whose calendar, such as Europe/Berlin
    hard: bool = True  # refuse what is over it; false: only tell
    on_loss: OnLoss = "share"  # shared.url is away: count one's own share, let all in, or none


class Bodies(Section, frozen=True):
    """What was said is kept only where this says so."""

    keep: bool = False  # requests and answers, for `drivetrain trace`
    max_bytes: AtLeastOne = 16384  # of each; the rest is cut off
    retention_s: Positive = 604800.0  # after so long they are deleted
    redact: tuple[str, ...] = ()  # further regular expressions whose matches are blackened


class Breaker(Section, frozen=True):
    """When an engine is set aside because it fails, and for how long. A caller's mistake never counts."""

    failures: AtLeastOne = 5  # in a row
    percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50  # or so many of 100 requests in `window_s`
    window_s: Positive = 30.0  # in which the share of failures is counted
    least_requests: AtLeastOne = 20  # in `window_s`, before their share counts
    open_s: Positive = 10.0  # until one request may try it again; doubled after each trial that fails, up to eightfold
    slow_start_s: Positive = 30.0  # in which an engine that has come back takes up its full share


class Policy(Section, frozen=True):
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    queue: Queue = Queue()
    retries: Retries = Retries()
    budgets: tuple[Budget, ...] = ()  # each on its own
    on_disconnect: Literal["estimate", "drain", "free"] = "estimate"  # caller left: bill what came, let it end, or not
    reserve_output_tokens: AtLeastOne = 1024  # set aside for an answer whose request names no limit
    bodies: Bodies = Bodies()
    settings: Mapping[str, Any] = {}  # load time, over model.json
    parameters: Mapping[str, Any] = {}  # request time, over model.json


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


class Sink(Section, frozen=True):
    """Where rows of the ledger go, beside the store."""

    kind: Literal["bigquery", "parquet", "otlp", "webhook"]  # what it is
    url: str | None = None  # otlp, webhook: where to; bigquery: an emulator's REST address
    path: str | None = None  # parquet: folder, relative to the home
    project: str | None = None  # bigquery
    dataset: str | None = None  # bigquery
    table: str = "attempts"  # bigquery
    grpc: str | None = None  # bigquery: an emulator's gRPC address
    headers: Mapping[str, str] = {}  # otlp, webhook: sent with every request; write `"${NAME}"` for secrets
    secret: str | None = None  # webhook: signs each body (x-drivetrain-signature)
    batch_rows: AtLeastOne = 500  # at once, at most
    every_s: Positive = 5.0  # how long a row waits for others


class Logging(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"  # the least that is written
    format: Literal["auto", "json", "console"] = "auto"  # auto: console on a terminal, JSON elsewhere


class Config(Section, frozen=True):
    """One snapshot of the whole configuration: validated whole, swapped whole, never changed in place."""

    server: Server = Server()
    store: Store = Store()
    shared: Shared = Shared()
    keys: Keys = Keys()
    oidc: Oidc = Oidc()
    engines: Mapping[str, Engine] = {}
    models: Mapping[str, Route] = {}
    policies: Mapping[str, Policy] = {}
    breaker: Breaker = Breaker()
    residency: Residency = Residency()
    downloads: Downloads = Downloads()
    sinks: Mapping[str, Sink] = {}
    logging: Logging = Logging()
