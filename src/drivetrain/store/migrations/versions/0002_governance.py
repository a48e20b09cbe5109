"""Who may do what, and what it cost: all the tables of governance, and rows of the ledger that tell more."""

import sqlalchemy as sa
from alembic import op

from drivetrain.errors import Internal

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = 26
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_OLD = (
    "id, request_id, position, started_s, dialect, model, engine, engine_model, stream, outcome, status, why,"
    " prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, usage_estimated, first_token_s, total_s,"
    " cost_micro_usd"
)


def upgrade() -> None:
    _set_attempts_aside()
    _create_attempts()
    _take_attempts_over()
    _index_attempts()
    _create_spending()
    _create_owners()
    _create_keys()
    _create_rules()
    _create_prices()
    _create_records()


def _set_attempts_aside() -> None:
    op.rename_table("attempts", "attempts_0001")
    if op.get_bind().dialect.name == "postgresql":  # where names of constraints are shared by all tables
        op.execute("ALTER TABLE attempts_0001 RENAME CONSTRAINT attempts_pkey TO attempts_0001_pkey")


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("seq", _SEQUENCE, primary_key=True),
        sa.Column("id", sa.String(_ID), nullable=False, unique=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("started_s", sa.Double, nullable=False),
        sa.Column("dialect", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("engine_model", sa.Text, nullable=False),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
        sa.Column("usage_estimated", sa.Boolean, nullable=False),
        sa.Column("first_token_s", sa.Double),
        sa.Column("total_s", sa.Double, nullable=False),
        sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("key_id", sa.String(_ID), nullable=False),
        sa.Column("user_id", sa.String(_ID), nullable=False),
        sa.Column("project_id", sa.String(_ID), nullable=False),
        sa.Column("team_id", sa.String(_ID), nullable=False),
        sa.Column("org_id", sa.String(_ID), nullable=False),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("model_version", sa.Text, nullable=False),
        sa.Column("prompt_version", sa.Text, nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
        sa.Column("price_id", sa.String(_ID), nullable=False),
        sa.Column("compute_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("received_s", sa.Double, nullable=False),
        sa.Column("queued_s", sa.Double, nullable=False),
        sa.Column("admitted_s", sa.Double, nullable=False),
        sa.Column("reserved_micro_usd", sa.BigInteger, nullable=False),
        sa.Column("overhead_s", sa.Double, nullable=False),
        sa.Column("rollout", sa.Text, nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("span_id", sa.String(16), nullable=False),
        sa.Column("parent_span_id", sa.String(16), nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )


def _take_attempts_over() -> None:
    """Old rows come first, in the order of their ids, which is that of their time. They were anybody's, and free."""
    later = "later.request_id = attempts_0001.request_id AND later.position > attempts_0001.position"
    new = {
        "final": f"NOT EXISTS (SELECT 1 FROM attempts_0001 later WHERE {later})",  # noqa: S608 - a constant
        **dict.fromkeys(("key_id", "user_id", "project_id", "team_id", "org_id"), "''"),
        **dict.fromkeys(("region", "model_version", "prompt_version", "price_id", "rollout"), "''"),
        **dict.fromkeys(("trace_id", "span_id", "parent_span_id", "tags"), "''"),
        **dict.fromkeys(("cache_write_tokens", "compute_micro_usd", "reserved_micro_usd"), "0"),
        **dict.fromkeys(("queued_s", "admitted_s", "overhead_s"), "0"),
        "received_s": "started_s",
    }
    columns, values = ", ".join(new), ", ".join(new.values())
    op.execute(
        f"INSERT INTO attempts ({_OLD}, {columns}) SELECT {_OLD}, {values} FROM attempts_0001 ORDER BY id"  # noqa: S608 - constants
    )
    op.drop_table("attempts_0001")


def _index_attempts() -> None:
    op.create_index("ix_attempts_request_id", "attempts", ["request_id"])
    op.create_index("ix_attempts_started_s", "attempts", ["started_s"])


def _create_spending() -> None:
    op.create_table(
        "spending",
        sa.Column("hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.String(_ID), primary_key=True),
        sa.Column("user_id", sa.String(_ID), primary_key=True),
        sa.Column("project_id", sa.String(_ID), primary_key=True),
        sa.Column("team_id", sa.String(_ID), primary_key=True),
        sa.Column("org_id", sa.String(_ID), primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("cost_micro_usd", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_spending_key", "spending", ["key_id", "hour"])
    sqlite = op.get_bind().dialect.name == "sqlite"
    hour = "CAST(started_s / 3600 AS INTEGER)" if sqlite else "CAST(floor(started_s / 3600) AS INTEGER)"
    owners = "key_id, user_id, project_id, team_id, org_id, model"
    op.execute(
        f"INSERT INTO spending (hour, {owners}, cost_micro_usd)"  # noqa: S608 - constants
        f" SELECT {hour}, {owners}, sum(cost_micro_usd) FROM attempts WHERE cost_micro_usd <> 0"
        f" GROUP BY {hour}, {owners}"
    )


def _id() -> sa.Column[str]:
    return sa.Column("id", sa.String(_ID), primary_key=True)


def _stamps() -> tuple[sa.Column[bool], sa.Column[float], sa.Column[int]]:
    return (
        sa.Column("disabled", sa.Boolean, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )


def _create_owners() -> None:
    op.create_table(
        "orgs",
        _id(),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        *_stamps(),
    )
    op.create_table(
        "teams",
        _id(),
        sa.Column("org", sa.String(_ID), sa.ForeignKey("orgs.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        *_stamps(),
        sa.UniqueConstraint("org", "name"),
    )
    op.create_table(
        "projects",
        _id(),
        sa.Column("team", sa.String(_ID), sa.ForeignKey("teams.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        *_stamps(),
        sa.UniqueConstraint("team", "name"),
    )
    op.create_table(
        "users",
        _id(),
        sa.Column("org", sa.String(_ID), sa.ForeignKey("orgs.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("email", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        *_stamps(),
        sa.UniqueConstraint("org", "name"),
    )
    op.create_index("ix_users_subject", "users", ["subject"])


def _create_keys() -> None:
    op.create_table(
        "keys",
        _id(),
        sa.Column("public_id", sa.String(12), nullable=False, unique=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("pepper", sa.String(16), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("project", sa.String(_ID), sa.ForeignKey("projects.id"), nullable=False),
        sa.Column("user", sa.String(_ID), nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("priority", sa.String(16), nullable=False),
        sa.Column("expires_s", sa.Double),
        sa.Column("rotated_from", sa.String(_ID), nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        *_stamps(),
    )
    op.create_index("ix_keys_project", "keys", ["project"])


def _create_rules() -> None:
    op.create_table(
        "limits",
        _id(),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("subject_id", sa.String(_ID), nullable=False),
        sa.Column("resource", sa.String(16), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("per", sa.String(16), nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("on_loss", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("ix_limits_subject", "limits", ["subject", "subject_id"])
    op.create_table(
        "budgets",
        _id(),
        sa.Column("subject", sa.String(16), nullable=False),
        sa.Column("subject_id", sa.String(_ID), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("per", sa.String(16), nullable=False),
        sa.Column("rolling", sa.Boolean, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("hard", sa.Boolean, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("on_loss", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("ix_budgets_subject", "budgets", ["subject", "subject_id"])


def _create_prices() -> None:
    op.create_table(
        "prices",
        _id(),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("from_s", sa.Double, nullable=False),
        sa.Column("until_s", sa.Double),
        sa.Column("input", sa.BigInteger, nullable=False),
        sa.Column("cached_input", sa.BigInteger),
        sa.Column("cache_write", sa.BigInteger),
        sa.Column("output", sa.BigInteger, nullable=False),
        sa.Column("reasoning", sa.BigInteger),
        sa.Column("request", sa.BigInteger, nullable=False),
        sa.Column("second", sa.BigInteger, nullable=False),
        sa.Column("watts", sa.Double, nullable=False),
        sa.Column("kwh", sa.BigInteger, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )


def _create_records() -> None:
    op.create_table(
        "bodies",
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("delete_s", sa.Double, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
    )
    op.create_index("ix_bodies_delete_s", "bodies", ["delete_s"])
    op.create_table(
        "audit",
        sa.Column("revision", _SEQUENCE, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("object_id", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("ix_audit_object", "audit", ["kind", "object_id"])
    head = op.create_table(
        "head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.bulk_insert(head, [{"id": 1, "revision": 0, "hash": ""}])
    op.create_table(
        "config_revisions",
        sa.Column("revision", _SEQUENCE, primary_key=True),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sinks",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_s", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Not offered: what is new has no place in the old schema. Raises `Internal`."""
    raise Internal("the store cannot go back to schema 0001; put a copy of the database in its place")
