"""What hangs on what: whose a new team, project, key or budget is, what may not be there twice, what may not go.

What is above is given by id or name, nearest or farther: `team="search"` alone makes a key of that team's project
`default`. Organisation, team and project `default` are made when something first needs them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, or_, select

from drivetrain.errors import BadRequest, Conflict, NotFound
from drivetrain.governance import Budget, Key, Limit, Price, User
from drivetrain.store import tables
from drivetrain.store.audit import Transaction
from drivetrain.store.entities import SORTS, SUBJECTS, Entity, Kind, Sort, checked, from_row
from drivetrain.store.names import line, meant, usable_at
from drivetrain.ulid import ulid

DEFAULT = "default"
_BELOW: Mapping[str, Kind] = {"org": "team", "team": "project", "project": "key"}  # what hangs below a default


def resolved(transaction: Transaction, sort: Sort, fields: Mapping[str, Any], *, at_s: float) -> dict[str, Any]:
    """The fields with ids in the place of names, and what is above in one member."""
    given = dict(fields)
    if sort.parent is not None:
        given[sort.parent] = _above(transaction, sort, given, at_s)
    if sort.kind == "key" and given.get("user"):
        given["user"] = meant(transaction.connection, SORTS["user"], given["user"], at_s=at_s).id
    if sort.kind in ("limit", "budget"):
        given |= _subject(transaction, given, at_s)
        if given.get("resource") == "concurrency":
            given.setdefault("per", "")
    return given


def _above(transaction: Transaction, sort: Sort, given: dict[str, Any], at_s: float) -> str:
    """The id of the parent. Takes what is above out of `given`."""
    parent = SORTS[sort.above[0]]
    name = given.pop(parent.kind, None) or DEFAULT
    if not isinstance(name, str):
        raise BadRequest(f"{parent.kind} {name!r} is neither an id nor a name", param=parent.kind)
    if name != DEFAULT and not given.keys() & set(parent.above):
        return meant(transaction.connection, parent, name, at_s=at_s).id
    fields = {"name": name}
    if parent.above:
        fields[parent.above[0]] = _above(transaction, parent, given, at_s)
    found = _child(transaction.connection, parent, fields)
    if found is None and name == DEFAULT:
        return _default(transaction, parent, fields, at_s)
    if found is None:
        raise NotFound(f"there is no {parent.kind} {name!r} there; make it first", param=parent.kind)
    return found


def _child(connection: Connection, sort: Sort, fields: Mapping[str, str]) -> str | None:
    columns = sort.table.c
    is_it = or_(columns.name == fields["name"], columns.id == fields["name"])
    below = [columns[name] == id for name, id in fields.items() if name != "name"]
    return connection.execute(select(columns.id).where(is_it, *below)).scalar()


def _default(transaction: Transaction, sort: Sort, fields: Mapping[str, str], at_s: float) -> str:
    made: Entity = checked(sort, {**fields, "id": ulid(), "created_s": at_s})
    transaction.add(made)
    return made.id


def _subject(transaction: Transaction, given: dict[str, Any], at_s: float) -> Mapping[str, str]:
    """Whom a limit or a budget binds: `subject` and `subject_id`, or in short `{"team": "search"}`."""
    short = [kind for kind in SUBJECTS if kind in given]
    if len(short) > 1 or (short and "subject" in given):
        raise BadRequest(f"it can bind one only, not {' and '.join(short)}; make one for each", param=short[-1])
    kind = short[0] if short else given.get("subject")
    if kind not in SUBJECTS:
        raise BadRequest(f"subject {kind!r}: whom it binds is one of {', '.join(SUBJECTS)}", param="subject")
    name = given.pop(kind, None) or given.get("subject_id")
    if name == DEFAULT and kind in _BELOW:
        return {"subject": kind, "subject_id": _above(transaction, SORTS[_BELOW[kind]], {kind: name}, at_s)}
    bound = meant(transaction.connection, SORTS[kind], name, at_s=at_s)
    return {"subject": kind, "subject_id": line(bound) if isinstance(bound, Key) else bound.id}


# --- what may not be twice --------------------------------------------------------------------------------------------


def refuse_twin(connection: Connection, sort: Sort, value: Entity, *, at_s: float) -> None:
    """Raises `Conflict` if another one has the name, or the place, that this one is to have."""
    members: Sequence[str] = ("name", *([sort.parent] if sort.parent else ()))
    match value:
        case Limit() | Budget():
            return
        case Price():
            members = ("engine", "model", "from_s")
    if isinstance(value, User) and value.subject:
        _refuse_second_subject(connection, value)
    columns = sort.table.c
    same = [columns[name] == getattr(value, name) for name in members]
    for row in connection.execute(select(sort.table).where(*same, columns.id != value.id)).mappings():
        other = from_row(sort.value, row)
        if isinstance(value, Key) and (line(other) == line(value) or not usable_at(other, at_s)):
            continue
        what = " ".join(repr(getattr(value, name)) for name in members if name != sort.parent)
        raise Conflict(f"there is {sort.one} {what} already, {other.id}; change that one", param=members[0])


def _refuse_second_subject(connection: Connection, user: User) -> None:
    columns = tables.users.c
    others = select(columns.id).where(columns.subject == user.subject, columns.id != user.id)
    if other := connection.execute(others).scalar():
        raise Conflict(f"subject {user.subject!r} is user {other} already; one person is one user", param="subject")


# --- what hangs on it -------------------------------------------------------------------------------------------------

_USERS: Mapping[Kind, Sequence[tuple[Kind, str]]] = {  # kinds whose rows name it, and the member that does
    "org": (("team", "org"), ("user", "org")),
    "team": (("project", "team"),),
    "project": (("key", "project"),),
    "user": (("key", "user"),),
    "key": (("key", "rotated_from"),),
}


def refuse_use(connection: Connection, sort: Sort, value: Entity) -> None:
    """Raises `Conflict` if something would be left hanging in the air."""
    for kind, member in _USERS.get(sort.kind, ()):
        columns = SORTS[kind].table.c
        if user := connection.execute(select(columns.id).where(columns[member] == value.id).limit(1)).scalar():
            raise Conflict(f"{sort.kind} {value.id} is in use by {kind} {user}; delete or disable that first")
    if isinstance(value, Key):
        columns = tables.attempts.c
        if connection.execute(select(columns.seq).where(columns.key_id == value.id).limit(1)).first():
            raise Conflict(
                f"key {value.name!r} ({value.public_id}) is in the ledger; revoke it, then it stays known there"
            )


def rules_of(connection: Connection, sort: Sort, id: str) -> Iterator[Limit | Budget]:
    """What binds this one alone."""
    for kind in ("limit", "budget"):
        rule = SORTS[kind]
        columns = rule.table.c
        asked = select(rule.table).where(columns.subject == sort.kind, columns.subject_id == id)
        for row in connection.execute(asked).mappings().all():
            yield from_row(rule.value, row)


def line_of(connection: Connection, key: Key) -> Sequence[Key]:
    """The key, those whose place it took, and those that took its own, oldest first."""
    columns = tables.keys.c
    in_line = or_(columns.id == line(key), columns.rotated_from == line(key))
    asked = select(tables.keys).where(in_line).order_by(columns.created_s)
    return [from_row(Key, row) for row in connection.execute(asked).mappings()]
