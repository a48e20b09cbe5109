"""Terms of keys and of what is above them: what they lay down about the time, the queue and the bill of requests."""

import sqlalchemy as sa
from alembic import op

from drivetrain.errors import Internal

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for owners in ("orgs", "teams", "projects", "users", "keys"):
        op.add_column(owners, sa.Column("terms", sa.Text, nullable=False, server_default="{}"))


def downgrade() -> None:
    """Not offered: what is new has no place in the old schema. Raises `Internal`."""
    raise Internal("the store cannot go back to schema 0003; put a copy of the database in its place")
