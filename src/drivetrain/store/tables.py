"""The tables, in SQLAlchemy Core that every supported database understands. A change here needs a migration.

Instants are Unix seconds, money is integer micro-dollars, ids are ULIDs but where a comment says otherwise.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
_ID = 26  # characters of a ULID
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up an INTEGER PRIMARY KEY only


def _id() -> Column[str]:
    return Column("id", String(_ID), primary_key=True)


def _terms() -> Column[str]:
    return Column("terms", Text, nullable=False, server_default="{}")  # JSON: what is said of `governance.Terms`


def _stamps() -> tuple[Column[bool], Column[float], Column[int]]:
    return (
        Column("disabled", Boolean, nullable=False),
        Column("created_s", Double, nullable=False),
        Column("version", Integer, nullable=False),  # counts up with each write: a writer says which one it read
    )


orgs = Table("orgs", metadata, _id(), Column("name", Text, nullable=False, unique=True), *_stamps(), _terms())

teams = Table(
    "teams",
    metadata,
    _id(),
    Column("org", String(_ID), ForeignKey("orgs.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("models", Text),  # JSON list of patterns; null: all
    *_stamps(),
    _terms(),
    UniqueConstraint("org", "name"),
)

projects = Table(
    "projects",
    metadata,
    _id(),
    Column("team", String(_ID), ForeignKey("teams.id"), nullable=False),
    Column("name", Text, nullable=False),
    *_stamps(),
    _terms(),
    UniqueConstraint("team", "name"),
)

users = Table(
    "users",
    metadata,
    _id(),
    Column("org", String(_ID), ForeignKey("orgs.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("scopes", Text, nullable=False),  # JSON list
    *_stamps(),
    _terms(),
    UniqueConstraint("org", "name"),
    Index("ix_users_subject", "subject"),
)

keys = Table(
    "keys",
    metadata,
    _id(),
    Column("public_id", String(12), nullable=False, unique=True),
    Column("hash", String(64), nullable=False),  # HMAC-SHA-256 of the secret, hexadecimal
    Column("pepper", String(16), nullable=False),  # which pepper made it: the first digits of its SHA-256
    Column("name", Text, nullable=False),
    Column("project", String(_ID), ForeignKey("projects.id"), nullable=False),
    Column("user", String(_ID), nullable=False),  # "" for nobody in particular
    Column("scopes", Text, nullable=False),  # JSON list
    Column("models", Text),  # JSON list of patterns; null: all
    Column("priority", String(16), nullable=False),
    Column("expires_s", Double),
    Column("rotated_from", String(_ID), nullable=False),
    Column("tags", Text, nullable=False),  # JSON object of texts
    *_stamps(),
    _terms(),
    Index("ix_keys_project", "project"),
)

limits = Table(
    "limits",
    metadata,
    _id(),
    Column("subject", String(16), nullable=False),  # org, team, project, user, key
    Column("subject_id", String(_ID), nullable=False),
    Column("resource", String(16), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("per", String(16), nullable=False),
    Column("model", Text),
    Column("on_loss", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Index("ix_limits_subject", "subject", "subject_id"),
)

budgets = Table(
    "budgets",
    metadata,
    _id(),
    Column("subject", String(16), nullable=False),
    Column("subject_id", String(_ID), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("per", String(16), nullable=False),
    Column("rolling", Boolean, nullable=False),
    Column("zone", Text, nullable=False),
    Column("hard", Boolean, nullable=False),
    Column("model", Text),
    Column("on_loss", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Index("ix_budgets_subject", "subject", "subject_id"),
)

prices = Table(
    "prices",
    metadata,
    _id(),
    Column("engine", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("from_s", Double, nullable=False),
    Column("until_s", Double),
    Column("input", BigInteger, nullable=False),
    Column("cached_input", BigInteger),
    Column("cache_write", BigInteger),
    Column("output", BigInteger, nullable=False),
    Column("reasoning", BigInteger),
    Column("request", BigInteger, nullable=False),
    Column("second", BigInteger, nullable=False),
    Column("watts", Double, nullable=False),
    Column("kwh", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
)

# One row per upstream attempt: the columns after `seq` are the fields of `governance.Attempt`, in their order.
attempts = Table(
    "attempts",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True),  # in the order of commits, what sinks go by
    Column("id", String(_ID), nullable=False, unique=True),
    Column("request_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("started_s", Double, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("engine_model", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("status", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("usage_estimated", Boolean, nullable=False),
    Column("first_token_s", Double),
    Column("total_s", Double, nullable=False),
    Column("cost_micro_usd", BigInteger, nullable=False),
    Column("final", Boolean, nullable=False),
    Column("key_id", String(_ID), nullable=False),
    Column("user_id", String(_ID), nullable=False),
    Column("project_id", String(_ID), nullable=False),
    Column("team_id", String(_ID), nullable=False),
    Column("org_id", String(_ID), nullable=False),
    Column("region", Text, nullable=False),
    Column("model_version", Text, nullable=False),
    Column("prompt_version", Text, nullable=False),
    Column("cache_write_tokens", BigInteger, nullable=False),
    Column("price_id", String(_ID), nullable=False),
    Column("compute_micro_usd", BigInteger, nullable=False),
    Column("received_s", Double, nullable=False),
    Column("queued_s", Double, nullable=False),
    Column("admitted_s", Double, nullable=False),
    Column("reserved_micro_usd", BigInteger, nullable=False),
    Column("overhead_s", Double, nullable=False),
    Column("rollout", Text, nullable=False),
    Column("trace_id", String(32), nullable=False),
    Column("span_id", String(16), nullable=False),
    Column("parent_span_id", String(16), nullable=False),
    Column("tags", Text, nullable=False),
    Index("ix_attempts_request_id", "request_id"),
    Index("ix_attempts_started_s", "started_s"),
    Index(
        "ix_attempts_rollout",
        "rollout",
        "seq",
        sqlite_where=text("rollout <> ''"),  # the rows of rollouts alone: all others cost nothing
        postgresql_where=text("rollout <> ''"),
    ),
    sqlite_autoincrement=True,
)

# What the rows of `attempts` cost, by the hour in which they started, kept by who inserts them: see `spending`.
spending = Table(
    "spending",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),  # since 1970
    Column("key_id", String(_ID), primary_key=True),
    Column("user_id", String(_ID), primary_key=True),
    Column("project_id", String(_ID), primary_key=True),
    Column("team_id", String(_ID), primary_key=True),
    Column("org_id", String(_ID), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("cost_micro_usd", BigInteger, nullable=False),
    Index("ix_spending_key", "key_id", "hour"),
    sqlite_with_rowid=False,
)

# What was said, where a policy asks for it: redacted, cut, and deleted when its time is over.
bodies = Table(
    "bodies",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("delete_s", Double, nullable=False),
    Column("request", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Index("ix_bodies_delete_s", "delete_s"),
)

rollouts = Table(
    "rollouts",
    metadata,
    _id(),
    Column("model", Text, nullable=False),  # public name
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", Integer, nullable=False),
    Column("since_s", Double, nullable=False),
    Column("why", Text, nullable=False),
    Column("spec", Text, nullable=False),  # JSON: what it consists of, as it was written
    Column("created_s", Double, nullable=False),
    Column("version", Integer, nullable=False),
    Index("ix_rollouts_model", "model"),
)

# How a rollout came to where it is: each move, who made it, and what was known then.
rollout_history = Table(
    "rollout_history",
    metadata,
    Column("rollout", String(_ID), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),  # of the rollout, after the move
    Column("at_s", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("move", String(16), nullable=False),
    Column("state", String(16), nullable=False),  # after it
    Column("stage", Integer, nullable=False),  # after it
    Column("why", Text, nullable=False),
    Column("evidence", Text),  # JSON; null: nobody looked at any
)

# A row is never changed: a new text of the name is its next version.
prompts = Table(
    "prompts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
    Column("created_s", Double, nullable=False),
)

# The columns after `seq` are the fields of `governance.Comparison`, in their order.
comparisons = Table(
    "comparisons",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("rollout", String(_ID), nullable=False),
    Column("arm", Text, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("how", String(16), nullable=False),
    Column("value", Double, nullable=False),
    Column("first_token_s", Double),
    Column("baseline_first_token_s", Double),
    Column("total_s", Double, nullable=False),
    Column("baseline_total_s", Double, nullable=False),
    Index("ix_comparisons_rollout", "rollout", "seq"),
    Index("ix_comparisons_at_s", "at_s"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("revision", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("object_id", Text, nullable=False),
    Column("before", Text),  # JSON
    Column("after", Text),  # JSON
    Column("request_id", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Index("ix_audit_object", "kind", "object_id"),
)

# One row: the newest revision of `audit`. Who writes locks it first, so that revisions appear in the order of commits.
head = Table(
    "head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # 1
    Column("revision", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),  # of the newest line
)

config_revisions = Table(
    "config_revisions",
    metadata,
    Column("revision", _SEQUENCE, primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("body", Text, nullable=False),  # the file as it was written, references to secrets unresolved
    sqlite_autoincrement=True,
)

# How far each sink has come. `state` is its own: a stream and its offset, a batch that was begun.
sinks = Table(
    "sinks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # rows of `attempts` up to here are out
    Column("state", Text, nullable=False),  # JSON
    Column("updated_s", Double, nullable=False),
)
