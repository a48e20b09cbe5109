"""What must outlive the process: who may do what, what it cost, in SQLite or PostgreSQL. The only package that knows a
database.

`Store.open` brings a database to the newest schema; `Ledger` appends rows to it without making the event loop wait.
SQLAlchemy and Alembic are imported when a query or a migration needs them; an ordinary start with SQLite does neither.
"""

from drivetrain.store.database import Store
from drivetrain.store.kept import Body, ConfigRevision, RolloutReport, Turn
from drivetrain.store.ledger import Ledger
from drivetrain.store.usage import DIMENSIONS, AttemptQuery, Dimension, UsageQuery, UsageRow

__all__ = [
    "DIMENSIONS",
    "AttemptQuery",
    "Body",
    "ConfigRevision",
    "Dimension",
    "Ledger",
    "RolloutReport",
    "Store",
    "Turn",
    "UsageQuery",
    "UsageRow",
]
