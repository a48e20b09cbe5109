"""What must outlive the process: the ledger of attempts, in SQLite. The only package that knows a database.

`Store.open` brings a database to the newest schema; `Ledger` appends rows to it without making the event loop wait.
SQLAlchemy and Alembic are imported when a query or a migration needs them, never for an ordinary start.
"""

from drivetrain.store.database import AttemptQuery, Store
from drivetrain.store.ledger import Ledger

__all__ = ["AttemptQuery", "Ledger", "Store"]
