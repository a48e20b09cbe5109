"""Rollouts, experiments, versions of prompts, and how answers of shadows compared."""

import sqlalchemy as sa
from alembic import op

from drivetrain.errors import Internal

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = 26
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_OF_ROLLOUTS = sa.text("rollout <> ''")


def upgrade() -> None:
    op.create_index(
        "ix_attempts_rollout",
        "attempts",
        ["rollout", "seq"],
        sqlite_where=_OF_ROLLOUTS,
        postgresql_where=_OF_ROLLOUTS,
    )
    _create_rollouts()
    _create_prompts()
    _create_comparisons()


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(_ID), primary_key=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        sa.Column("since_s", sa.Double, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_index("ix_rollouts_model", "rollouts", ["model"])
    op.create_table(
        "rollout_history",
        sa.Column("rollout", sa.String(_ID), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("move", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text),
    )


def _create_prompts() -> None:
    op.create_table(
        "prompts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
    )


def _create_comparisons() -> None:
    op.create_table(
        "comparisons",
        sa.Column("seq", _SEQUENCE, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("rollout", sa.String(_ID), nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("how", sa.String(16), nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("first_token_s", sa.Double),
        sa.Column("baseline_first_token_s", sa.Double),
        sa.Column("total_s", sa.Double, nullable=False),
        sa.Column("baseline_total_s", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_comparisons_rollout", "comparisons", ["rollout", "seq"])
    op.create_index("ix_comparisons_at_s", "comparisons", ["at_s"])


def downgrade() -> None:
    """Not offered: what is new has no place in the old schema. Raises `Internal`."""
    raise Internal("the store cannot go back to schema 0002; put a copy of the database in its place")
