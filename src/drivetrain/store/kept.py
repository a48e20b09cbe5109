"""What the store keeps beside the ledger: what was said in requests, how answers of shadows compared, the history of
rollouts, and revisions of the configuration.
"""

import hashlib
from typing import TYPE_CHECKING, Any

from drivetrain.governance import Comparison
from drivetrain.rollouts.experiments import Report
from drivetrain.rollouts.plan import Rollout
from drivetrain.rollouts.step import Action
from drivetrain.types import Value

if TYPE_CHECKING:
    from sqlalchemy import Connection


# The columns of `bodies` are the fields of `Body`, in their order. Both databases understand it.
_BODY = (
    "INSERT INTO bodies (request_id, at_s, delete_s, request, answer) VALUES ({}) ON CONFLICT (request_id) DO UPDATE"
    " SET at_s = excluded.at_s, delete_s = excluded.delete_s, request = excluded.request, answer = excluded.answer"
)

# The columns of `comparisons` after `seq` are the fields of `Comparison`.
_COMPARED = ", ".join(Comparison.__struct_fields__)
_COMPARISON = f"INSERT INTO comparisons ({_COMPARED}) VALUES ({{}})"  # noqa: S608 - names of ours

ANY_BODY = "SELECT 1 FROM bodies LIMIT 1"
OLDEST_COMPARISON = "SELECT min(at_s) FROM comparisons"

# The columns are the fields of `ConfigRevision`, in their order.
NEWEST_CONFIG = "SELECT revision, at_s, actor, hash, body FROM config_revisions ORDER BY revision DESC LIMIT 1"


class Body(Value, frozen=True, kw_only=True):
    """What was said in a request, redacted and cut already."""

    request_id: str
    at_s: float  # Unix time
    delete_s: float  # Unix time at which it may be kept no longer
    request: str
    answer: str


class Turn(Value, frozen=True, kw_only=True):
    """A line of a rollout's history: where it stood from then on, and why."""

    rollout: str  # id
    version: int  # of the rollout, after it
    at_s: float
    actor: str
    move: str  # create, update, advance, pause, resume, finish or rollback
    state: str
    stage: int
    why: str
    evidence: Any = None  # what was known of its arms, where that decided


class RolloutReport(Value, frozen=True, kw_only=True):
    """What was seen of a rollout since its stage began, or since the experiment did."""

    rollout: Rollout
    whole: bool  # false: there are more rows than were read
    next: Action  # what would become of it now, by itself
    why: str
    guards: tuple[str, ...]  # what each has seen
    arms: Report


Keepsake = Body | Comparison


def statement(kept: Keepsake, parameter: str) -> str:
    """SQL that keeps it. `parameter` is how the database writes one."""
    parameters = ", ".join([parameter] * len(kept.__struct_fields__))
    return (_BODY if isinstance(kept, Body) else _COMPARISON).format(parameters)


class ConfigRevision(Value, frozen=True, kw_only=True):
    """A configuration as it was written, references to secrets unresolved."""

    revision: int
    at_s: float  # Unix time
    actor: str
    hash: str  # SHA-256 of the body, hexadecimal
    body: str


def body(connection: "Connection", request_id: str, now_s: float) -> Body | None:
    from sqlalchemy import select

    from drivetrain.store.tables import bodies

    asked = select(bodies).where(bodies.c.request_id == request_id, bodies.c.delete_s > now_s)
    found = connection.execute(asked).mappings().first()
    return Body(**found) if found else None


def sweep_bodies(connection: "Connection", now_s: float) -> int:
    from sqlalchemy import delete

    from drivetrain.store.tables import bodies

    return connection.execute(delete(bodies).where(bodies.c.delete_s <= now_s)).rowcount


def sweep_comparisons(connection: "Connection", before_s: float) -> int:
    from sqlalchemy import delete

    from drivetrain.store.tables import comparisons

    return connection.execute(delete(comparisons).where(comparisons.c.at_s < before_s)).rowcount


def keep_config(connection: "Connection", body: str, *, actor: str, at_s: float) -> ConfigRevision:
    from sqlalchemy import insert, select

    from drivetrain.store.tables import config_revisions, head

    connection.execute(select(head).with_for_update())  # two replicas that start at once give it one number
    newest = next(iter(configs(connection, 1)), None)
    digest = hashlib.sha256(body.encode()).hexdigest()
    if newest is not None and newest.hash == digest:
        return newest
    values = {"at_s": at_s, "actor": actor, "hash": digest, "body": body}
    made = connection.execute(insert(config_revisions).values(values).returning(config_revisions.c.revision))
    return ConfigRevision(revision=made.scalar_one(), at_s=at_s, actor=actor, hash=digest, body=body)


def config(connection: "Connection", revision: int) -> ConfigRevision | None:
    from sqlalchemy import select

    from drivetrain.store.tables import config_revisions

    asked = select(config_revisions).where(config_revisions.c.revision == revision)
    found = connection.execute(asked).mappings().first()
    return ConfigRevision(**found) if found else None


def configs(connection: "Connection", limit: int) -> list[ConfigRevision]:
    from sqlalchemy import select

    from drivetrain.store.tables import config_revisions

    asked = select(config_revisions).order_by(config_revisions.c.revision.desc()).limit(limit)
    return [ConfigRevision(**row) for row in connection.execute(asked).mappings()]
