"""The shape of `drivetrain.yaml`, every default included. Values only; `config.load` reads and checks a file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ancestor of the sections: immutable, and a member that nobody knows is an error."""


class Server(Section, frozen=True):
    host: str = "127.0.0.1"  # address to listen on
    port: Port = 11435  # 0 picks a free one
    region: str | None = None  # where this server stands: engines of the same `region` are asked first
    workers: AtLeastOne = 1  # processes that answer requests
    auth: Literal["auto", "on", "off"] = "auto"  # auto: off on loopback, on elsewhere
    drop_in: bool = False  # also listen on Ollama's 127.0.0.1:11434
    notice_s: NotNegative = 0.0  # after SIGTERM requests are still taken so long, and /readyz says 503: go elsewhere
    drain_s: Positive = 30.0  # how long running requests may go on after that
    max_body_bytes: AtLeastOne = 16 * 2**20  # a larger request is refused
    origins: tuple[str, ...] = ()  # further browser origins, "*" for all
    media_hosts: tuple[str, ...] = ()  # public hosts from which images are fetched for callers, "*" for all


class Store(Section, frozen=True):
    url: str = "sqlite:///state/drivetrain.db"  # relative to the home; or postgresql://…


class Shared(Section, frozen=True):
    """Where several replicas count limits and budgets together."""

    url: str | None = None  # redis://…; null: this host alone
    mode: Literal["exact", "leased"] = "exact"  # ask it for each request, or take of limits and budgets ahead
    lease_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10  # leased: of each, that a process has ahead at most
    deadline_s: Positive = 0.05  # how long a request waits for it, leased at least 1 s; then `on_loss` of each decides
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


class Discover(Section, frozen=True):
    """Where the instances of an engine are. They may come and go while the server runs."""

    list: tuple[str, ...] = ()  # their URLs; give one of `list`, `dns` and `file`
    dns: str | None = None  # host:port: every address of the host is an instance that speaks HTTP
    file: str | None = None  # a list of URLs in YAML or JSON, relative to the home
    every_s: Positive = 5.0  # how often `dns` and `file` are looked at


class Engine(Section, frozen=True):
    """An engine instance, or several that are alike. Members that only its kind knows are collected in `options` by the
    loader."""

    kind: str  # which adapter speaks to it; `llamacpp`, `openai`, `ollama`, or what a package adds
    url: str | None = None  # where it answers; `unix:/path` for a socket
    discover: Discover | None = None  # instead of `url`: where its instances are, named NAME@HOST:PORT
    api_key: str | None = None  # sent to it; write `"${NAME}"` or `"file:/path"`
    region: str | None = None  # where it stands, for routing and the ledger
    weight: AtLeastOne = 1  # its share among engines that could answer
    connect_timeout_s: Positive = 5.0  # how long a connection may take
    options: Mapping[str, Any] = {}  # what only its kind knows; may also be written beside `kind`


class Target(Section, frozen=True):
    engine: str  # name of an engine
    model: str  # the engine's own name of the model
    version: str = ""  # of the model, for the ledger; empty: as its digest begins, where the engine tells one
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


Retried = Literal[
    "engine_unavailable", "engine_overloaded", "engine_failed", "engine_timeout", "load_failed", "model_missing"
]


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
        "model_missing",
    )  # codes of the errors after which there is another attempt
    resume: bool = False  # an answer that breaks off is continued by another engine that can, where that is sound


class Hedge(Section, frozen=True):
    """A second engine is asked as well when the first one is slow to begin: the one that begins first answers."""

    percent: Percent = 0  # of the requests of a minute, at most; 0: never. 5 is a good beginning
    quantile: Annotated[int, msgspec.Meta(ge=50, le=99)] = 95  # of the model's times to the first token: slow is beyond
    least_s: Positive = 0.1  # never sooner
    most_s: Positive = 30.0  # and no later, also while the model's times are not known yet


class Cache(Section, frozen=True):
    """Answers that are given again to the same request of the same project, without an engine."""

    ttl_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # how long an answer may be given again; 0: never
    max_bytes: AtLeastOne = 64 * 2**20  # in memory, of each process; the ones not used for longest go
    answers: Literal["deterministic", "all"] = "deterministic"  # of temperature 0 or with a seed; or whatever was asked


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


Goal = Literal["balanced", "latency", "throughput", "cost"]
Class = Literal["bulk", "default", "interactive", "system"]


class When(Section, frozen=True):
    """Which requests a rule is for: those of which all that is given here is true."""

    prompt_tokens_over: Count | None = None  # as estimated before it is sent
    prompt_tokens_under: AtLeastOne | None = None  # as estimated before it is sent
    output_tokens_over: Count | None = None  # of the limit that the request names
    tools: bool | None = None  # it offers tools, or does not
    images: bool | None = None  # it has images, or has none
    schema: bool | None = None  # it demands JSON, a schema or a grammar, or does not
    priority: tuple[Class, ...] = ()  # its class is one of these; none given: any
    deadline_under_s: Positive | None = None  # its caller waits no longer than this


class RoutingRule(Section, frozen=True):
    """Where some requests go first. The first rule that fits a request holds; the other targets come after."""

    when: When = When()  # nothing given: every request
    engines: tuple[str, ...] = ()  # their targets come first
    tier: Count | None = None  # targets of this tier come first
    goal: Goal | None = None  # instead of the policy's


class Routing(Section, frozen=True):
    """How an engine is chosen among the targets of a model."""

    goal: Goal = "balanced"  # what is looked at: work in hand, the first token, the pace, or the price
    affinity: Literal["none", "prefix", "session"] = "none"  # whom to keep together, where the engine has seen them
    load_factor: Annotated[float, msgspec.Meta(ge=1)] = 1.25  # times its share of the work, at most, to keep them so
    prefix_bytes: AtLeastOne = 1024  # of the system prompt, and of the first message, that tell prompts apart
    spill_factor: Annotated[float, msgspec.Meta(ge=1)] = 2.0  # another region goes first if it is so many times sooner
    rules: tuple[RoutingRule, ...] = ()  # for requests of some kinds


class Warm(Section, frozen=True):
    """What an engine gets before it takes requests: at the start, when it is new, when it comes back."""

    load: bool = False  # the model is brought into memory
    prompts: tuple[str, ...] = ()  # system prompts that it reads, so that its cache has them; "": the model's own
    within_s: Positive = 300.0  # after so long it takes requests, warm or not


class Policy(Section, frozen=True):
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    queue: Queue = Queue()
    retries: Retries = Retries()
    hedge: Hedge = Hedge()
    cache: Cache = Cache()
    prompt: str | None = None  # NAME@VERSION: the system prompt of requests that have none of their own
    routing: Routing = Routing()
    budgets: tuple[Budget, ...] = ()  # each on its own
    on_disconnect: Literal["estimate", "drain", "free"] = "estimate"  # caller left: bill what came, let it end, or not
    reserve_output_tokens: AtLeastOne = 1024  # set aside for an answer without a limit, and as often again
    bodies: Bodies = Bodies()
    warm: Warm = Warm()
    keep_alive_s: float | None = None  # idle time before a model is unloaded; null: residency.keep_alive_s
    settings: Mapping[str, Any] = {}  # load time, over model.json
    parameters: Mapping[str, Any] = {}  # request time, over model.json


class Residency(Section, frozen=True):
    """Which models are in memory."""

    pin: tuple[str, ...] = ()  # names of models that are loaded at the start and stay, at every engine that has them
    preload: tuple[str, ...] = ()  # names of models that are loaded at the start, in this order, and may leave
    memory_bytes: AtLeastOne | None = None  # for the embedded engine's models; null: three quarters of RAM
    max_loaded: Count = 0  # 0: as many as fit
    least_resident_s: NotNegative = 5.0  # how long a model stays, once loaded, before another may push it out
    patience_s: NotNegative = 10.0  # how long a model waits, at least, until a busy one has to make room for it
    keep_alive_s: float = 300.0  # idle time before a model is unloaded; negative: never
    load_timeout_s: Positive = 300.0  # how long a model may take to load


class Rollouts(Section, frozen=True):
    """How rollouts are moved on, and rolled back, by themselves."""

    every_s: Positive = 5.0  # between two looks at those on their way
    keep_comparisons_s: Positive = 2_592_000.0  # how long it is kept how the answers of shadows compared


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
    rollouts: Rollouts = Rollouts()
    downloads: Downloads = Downloads()
    sinks: Mapping[str, Sink] = {}
    logging: Logging = Logging()
