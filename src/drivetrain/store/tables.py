"""The tables, in SQLAlchemy Core that every supported database understands. A change here needs a migration."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

# One row per upstream attempt: the columns are the fields of `types.Attempt`, in their order.
attempts = Table(
    "attempts",
    metadata,
    Column("id", String(26), primary_key=True),  # a ULID: rows lie in the order of time
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
    Index("ix_attempts_request_id", "request_id"),
    Index("ix_attempts_started_s", "started_s"),
    Index("ix_attempts_model", "model"),
    sqlite_with_rowid=False,  # one B-tree for row and key
)
