"""The audit: every write of an administrator is a line of it, in the same transaction, chained to the line before.

Who writes locks the one row of `head` first. So there is one writer at a time, lines are numbered without gaps in the
order of their commits, and whoever has seen revision n has seen everything up to n.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from drivetrain.governance import Action, Change
from drivetrain.store.database import Store
from drivetrain.store.entities import E, Entity, sort_of, to_row
from drivetrain.store.tables import audit, head
from drivetrain.types import Value

PAGE = 1_000  # lines that are verified at a time


class Verdict(Value, frozen=True, kw_only=True):
    """What reading the whole audit gave. A writer of the database who makes the chain anew cannot be found out, unless
    a revision and its hash were noted elsewhere: `head_hash` is there for that."""

    lines: int  # that are as they were written; the number of the last of them
    head_hash: str  # its hash
    broken: int | None = None  # the first revision that is not as it was written
    why: str = ""


class Transaction:
    """One write: what changes, and the lines that tell so."""

    def __init__(self, connection: Connection, *, at_s: float, actor: str, request_id: str) -> None:
        self.connection = connection
        self.at_s = float(at_s)  # as it is read again: the hash is over it
        self._actor = actor
        self._request_id = request_id
        locked = connection.execute(select(head.c.revision, head.c.hash).with_for_update()).one()
        self._revision: int = locked[0]
        self._hash: str = locked[1]

    def add(self, value: Entity, action: Action = "create", more: Mapping[str, str] | None = None) -> None:
        """A new row. `more` are columns that no audit may show."""
        owner = sort_of(value)
        self.connection.execute(insert(owner.table).values(**to_row(value), **(more or {})))
        self.write(action, owner.kind, value.id, None, msgspec.to_builtins(value))

    def replace(self, before: Entity, after: E, action: Action = "update") -> E:
        """Another state of the same entity. Gives it the next version."""
        owner = sort_of(before)
        after = msgspec.structs.replace(after, version=before.version + 1)
        self.connection.execute(update(owner.table).where(owner.table.c.id == before.id).values(**to_row(after)))
        self.write(action, owner.kind, before.id, msgspec.to_builtins(before), msgspec.to_builtins(after))
        return after

    def remove(self, value: Entity) -> None:
        owner = sort_of(value)
        self.connection.execute(delete(owner.table).where(owner.table.c.id == value.id))
        self.write("delete", owner.kind, value.id, msgspec.to_builtins(value), None)

    def write(
        self,
        action: Action,
        kind: str,
        object_id: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> int:
        """A line about anything, without secrets. Its revision."""
        line = {
            "revision": self._revision + 1,
            "at_s": self.at_s,
            "actor": self._actor,
            "action": action,
            "kind": kind,
            "object_id": object_id,
            "before": _json(before),
            "after": _json(after),
            "request_id": self._request_id,
        }
        self._revision, self._hash = self._revision + 1, _chained(self._hash, line)
        self.connection.execute(insert(audit).values(**line, hash=self._hash))
        self.connection.execute(update(head).values(revision=self._revision, hash=self._hash))
        return self._revision


@contextmanager
def writing(store: Store, *, at_s: float, actor: str, request_id: str = "") -> Iterator[Transaction]:
    """All of it happens, or nothing. Raises `StoreAway`."""
    with store.writing() as connection:
        yield Transaction(connection, at_s=at_s, actor=actor, request_id=request_id)


def newest(connection: Connection) -> tuple[int, str]:
    """Number and hash of the newest line. Read it first: what is read after it is at least as new."""
    number, hash = connection.execute(select(head.c.revision, head.c.hash)).one()
    return number, hash


def lines(connection: Connection, since: int, *, limit: int, **exact: str | None) -> list[Change]:
    """Lines after revision `since`, oldest first."""
    asked = select(audit).where(audit.c.revision > since).order_by(audit.c.revision).limit(limit)
    asked = asked.where(*[audit.c[name] == value for name, value in exact.items() if value is not None])
    return [_change(row) for row in connection.execute(asked).mappings()]


def verify(connection: Connection) -> Verdict:
    """Reckon every hash again, from the first line on."""
    last, last_hash = newest(connection)
    reached, hash = 0, ""
    while page := _page(connection, reached, last):
        for row in page:
            if problem := _problem(row, reached, hash):
                return _verdict(reached, hash, problem)
            reached, hash = row["revision"], row["hash"]
    if (reached, hash) != (last, last_hash):
        return _verdict(reached, hash, "the line is missing, or the head of the audit was changed")
    return _verdict(reached, hash, "")


def _verdict(reached: int, hash: str, why: str) -> Verdict:
    return Verdict(lines=reached, head_hash=hash, broken=reached + 1 if why else None, why=why)


def _page(connection: Connection, since: int, last: int) -> Sequence[RowMapping]:
    asked = select(audit).where(audit.c.revision > since, audit.c.revision <= last)
    return connection.execute(asked.order_by(audit.c.revision).limit(PAGE)).mappings().all()


def _problem(row: RowMapping, before: int, hash: str) -> str:
    if row["revision"] != before + 1:
        return "the line is missing"
    if _chained(hash, row) != row["hash"]:
        return "the line was changed, or one before it was put in its place"
    return ""


_HASHED = tuple(column.name for column in audit.c if column.name != "hash")


def _chained(before: str, line: Mapping[str, Any] | RowMapping) -> str:
    content = msgspec.json.encode([before, *(line[name] for name in _HASHED)])
    return hashlib.sha256(content).hexdigest()


def _change(row: RowMapping) -> Change:
    texts = {name: None if row[name] is None else msgspec.json.decode(row[name]) for name in ("before", "after")}
    return Change(**{**row, **texts})


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
