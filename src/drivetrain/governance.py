"""Who may do what, within which limits, at which price: the values that keys, policies, ledger and quota share.

org → team → project → key, and users. Money is integer micro-dollars everywhere, instants are Unix seconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from drivetrain.types import Value

Scope = Literal["inference", "models", "metrics", "usage", "admin"]
SCOPES: frozenset[Scope] = frozenset({"inference", "models", "metrics", "usage", "admin"})
Priority = Literal["bulk", "default", "interactive", "system"]  # from the least urgent to the most
Resource = Literal["requests", "tokens", "concurrency", "money"]
Per = Literal["", "minute", "hour", "day", "week", "month", "total"]  # "": of concurrency
OnDisconnect = Literal["estimate", "drain", "free"]  # the caller left: bill what came, let the answer end, or not bill
OnLoss = Literal["share", "open", "closed"]  # the shared state is away: count one's own share, let all in, or none
Subject = Literal["org", "team", "project", "user", "key"]  # whom a limit or a budget binds
Move = Literal["advance", "pause", "resume", "finish", "rollback"]  # of a rollout
Action = Literal["create", "update", "delete", "rotate", "revoke", "apply", "drain", Move]


Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class Terms(Value, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a key, or something above it, lays down about its requests. None: nothing; what others say holds.

    Times can only be shorter than the policy of the model has them.
    """

    connect_s: Seconds | None = None  # for a connection to the engine
    first_token_s: Seconds | None = None  # until the first piece of the answer, loading included
    idle_s: Seconds | None = None  # between two pieces
    total_s: Seconds | None = None  # for the whole answer
    queue_size: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None  # requests that may wait in one queue; 0: none
    queue_timeout_s: Seconds | None = None  # how long one may wait there
    on_disconnect: OnDisconnect | None = None


class Said(Value, frozen=True, kw_only=True):
    """Terms, and whose they are."""

    id: str  # of the owner, the same in every process: "team:01J…"
    owner: str  # how messages call it: "team 'search'"
    terms: Terms


class Rule(Value, frozen=True, kw_only=True):
    """One limit or budget, wherever it was written: what the quota counts."""

    id: str  # names its counter, in every process and replica
    owner: str  # how messages call whom it binds: "key 'ci'", "policy 'interactive'"
    resource: Resource
    amount: int  # requests, tokens, requests at once, or micro-dollars
    per: Per = ""
    rolling: bool = False  # the last hour, day, …; else those of the calendar (budgets; rates always roll)
    zone: str = "UTC"  # whose calendar
    hard: bool = True  # refuse what is over it; else only tell
    model: str | None = None  # counts requests for this public model only
    on_loss: OnLoss = "share"


class Principal(Value, frozen=True, kw_only=True):
    """Who asks, as far as the request path has to know."""

    key_id: str = ""  # "" where nobody has to show a key
    name: str = ""
    org: str = ""
    team: str = ""
    project: str = ""
    user: str = ""
    scopes: frozenset[Scope] = frozenset()
    models: tuple[str, ...] | None = None  # public names, `*` stands for anything; None: all
    priority: Priority = "system"  # the highest class it may ask for
    rules: tuple[Rule, ...] = ()  # limits and budgets of the key, and of all above it
    terms: tuple[Said, ...] = ()  # of those that have said something: the key's, then those of what is above it


ANYBODY = Principal(name="anybody", scopes=SCOPES)  # where authentication is off


class Price(Value, frozen=True, kw_only=True):
    """What an engine's model costs from one instant to another. Micro-dollars; `*` stands for any engine or model."""

    id: str
    engine: str = "*"
    model: str = "*"  # the engine's own name of it, or its public name
    from_s: float = 0.0  # inclusive
    until_s: float | None = None  # exclusive
    input: int = 0  # per million prompt tokens
    cached_input: int | None = None  # per million of them that came from a cache; None: as `input`
    cache_write: int | None = None  # per million that were written to one; None: as `input`
    output: int = 0  # per million tokens of the answer
    reasoning: int | None = None  # per million of them that are reasoning; None: as `output`
    request: int = 0  # per request
    second: int = 0  # per second of computing, for engines of one's own
    watts: float = 0.0  # drawn while it computes
    kwh: int = 0  # per kilowatt-hour
    version: int = 1


class Org(Value, frozen=True, kw_only=True):
    id: str
    name: str
    disabled: bool = False
    terms: Terms = Terms()
    created_s: float = 0.0
    version: int = 1


class Team(Value, frozen=True, kw_only=True):
    id: str
    org: str  # id
    name: str
    models: tuple[str, ...] | None = None  # what its keys may use at most; None: all
    disabled: bool = False
    terms: Terms = Terms()
    created_s: float = 0.0
    version: int = 1


class Project(Value, frozen=True, kw_only=True):
    id: str
    team: str  # id
    name: str
    disabled: bool = False
    terms: Terms = Terms()
    created_s: float = 0.0
    version: int = 1


class User(Value, frozen=True, kw_only=True):
    id: str
    org: str  # id
    name: str
    email: str = ""
    subject: str = ""  # who an identity provider says it is: "issuer|sub"
    scopes: tuple[Scope, ...] = ()
    disabled: bool = False
    terms: Terms = Terms()
    created_s: float = 0.0
    version: int = 1


class Key(Value, frozen=True, kw_only=True):
    """An API key, without what it takes to use it."""

    id: str
    public_id: str  # the 12 characters that everybody may see
    name: str
    project: str  # id
    user: str = ""  # id, or "" if it is nobody's in particular
    scopes: tuple[Scope, ...] = ("inference",)
    models: tuple[str, ...] | None = None
    priority: Priority = "interactive"
    expires_s: float | None = None
    disabled: bool = False
    rotated_from: str = ""  # id of the key that it takes the place of
    tags: Mapping[str, str] = {}
    terms: Terms = Terms()
    created_s: float = 0.0
    version: int = 1


class Limit(Value, frozen=True, kw_only=True):
    """At most so much per minute or day, or at once."""

    id: str
    subject: Subject
    subject_id: str
    resource: Literal["requests", "tokens", "concurrency"]
    amount: int
    per: Literal["", "minute", "day"] = "minute"  # "" for concurrency
    model: str | None = None
    on_loss: OnLoss = "share"
    version: int = 1


class Budget(Value, frozen=True, kw_only=True):
    id: str
    subject: Subject
    subject_id: str
    amount: int  # micro-dollars
    per: Literal["hour", "day", "week", "month", "total"]
    rolling: bool = False
    zone: str = "UTC"
    hard: bool = True
    model: str | None = None
    on_loss: OnLoss = "share"
    version: int = 1


class Change(Value, frozen=True, kw_only=True):
    """A line of the audit: one write to what an administrator owns. `revision` has no gaps in the order of commits."""

    revision: int
    at_s: float
    actor: str  # "key 01J…", "user ada@example.com", "cli root", "config"
    action: Action
    kind: str  # "key", "team", "price", …
    object_id: str
    before: Mapping[str, Any] | None = None  # without secrets
    after: Mapping[str, Any] | None = None
    request_id: str = ""
    hash: str = ""  # SHA-256 over this line and the hash of the one before it


class Attempt(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One upstream attempt, as the ledger keeps it. Durations in seconds; money in micro-dollars."""

    id: str
    request_id: str
    position: int  # 1 for the first attempt
    started_s: float  # Unix time
    dialect: str
    model: str  # public name
    engine: str
    engine_model: str
    stream: bool
    outcome: Literal["ok", "error", "cancelled", "absorbed", "rejected"]
    status: int
    why: str = ""  # an error's code, or the reason of the choice
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    usage_estimated: bool = False
    first_token_s: float | None = None
    total_s: float = 0.0
    cost_micro_usd: int = 0
    final: bool = True  # the last attempt of its request
    key_id: str = ""
    user_id: str = ""
    project_id: str = ""
    team_id: str = ""
    org_id: str = ""
    region: str = ""
    model_version: str = ""
    prompt_version: str = ""
    cache_write_tokens: int = 0
    price_id: str = ""  # of the price that the cost was reckoned with
    compute_micro_usd: int = 0  # of the cost, what the time of computing cost
    received_s: float = 0.0  # Unix time at which the request came; the times below count from it
    queued_s: float = 0.0  # waited for a slot
    admitted_s: float = 0.0  # let in by limits and budgets
    reserved_micro_usd: int = 0  # set aside before the attempt
    overhead_s: float = 0.0  # spent in Drivetrain before the engine was asked
    rollout: str = ""  # which rollout and bucket it belonged to
    trace_id: str = ""  # 32 hex digits
    span_id: str = ""  # 16 hex digits, of this attempt
    parent_span_id: str = ""  # the caller's
    tags: str = ""  # JSON object of texts


class Comparison(Value, frozen=True, kw_only=True):
    """An answer that no caller saw, beside the one that the caller got. Durations in seconds."""

    request_id: str
    rollout: str  # id
    arm: str
    at_s: float  # Unix time
    how: str  # it was compared: exact, similarity or json
    value: float  # from 0, nothing in common, to 1, the same
    first_token_s: float | None
    baseline_first_token_s: float | None
    total_s: float
    baseline_total_s: float
