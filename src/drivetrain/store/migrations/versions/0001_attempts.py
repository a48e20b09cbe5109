"""The ledger of attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(26), primary_key=True),
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
        sqlite_with_rowid=False,
    )
    op.create_index("ix_attempts_request_id", "attempts", ["request_id"])
    op.create_index("ix_attempts_started_s", "attempts", ["started_s"])
    op.create_index("ix_attempts_model", "attempts", ["model"])


def downgrade() -> None:
    op.drop_table("attempts")
