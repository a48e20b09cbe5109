"""Which engines somebody has taken out of service. The audit alone tells: by the newest line of each."""

from sqlalchemy import Connection, func, select

from drivetrain.governance import Action
from drivetrain.store.audit import Transaction
from drivetrain.store.tables import audit

KIND = "engine"


def drained(connection: Connection) -> frozenset[str]:
    """Names of engines, and of instances of them."""
    newest = select(func.max(audit.c.revision)).where(audit.c.kind == KIND).group_by(audit.c.object_id)
    asked = select(audit.c.object_id).where(audit.c.revision.in_(newest), audit.c.action == "drain")
    return frozenset(connection.execute(asked).scalars())


def put(transaction: Transaction, engine: str, *, out: bool) -> bool:
    """Take it out, or back in. Whether that is a change."""
    was = engine in drained(transaction.connection)
    if was is not out:
        action: Action = "drain" if out else "resume"
        transaction.write(action, KIND, engine, {"name": engine, "drained": was}, {"name": engine, "drained": out})
    return was is not out
