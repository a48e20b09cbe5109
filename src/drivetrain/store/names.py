"""Which entity a text means: an id, or what people write: a name, a path of names, an e-mail address, a public id.

`search` is a team of that name, `acme/search` the one of organisation acme. What could be two is refused.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, or_, select

from drivetrain.errors import BadRequest, NotFound
from drivetrain.governance import Key
from drivetrain.keys import PUBLIC_CHARACTERS
from drivetrain.store.entities import SORTS, Entity, Sort, from_row


def by_id(connection: Connection, sort: Sort, id: str) -> Entity | None:
    row = connection.execute(select(sort.table).where(sort.table.c.id == id)).mappings().first()
    return None if row is None else from_row(sort.value, row)


def meant(connection: Connection, sort: Sort, text: object, *, at_s: float) -> Entity:
    """Raises `NotFound`, and `BadRequest` where it could be several."""
    if not isinstance(text, str) or not text.isprintable():
        raise BadRequest(f"{sort.kind} {text!r} is neither an id nor a name", param=sort.kind)
    if found := by_id(connection, sort, text):
        return found
    match _in_force(_named(connection, sort, text), at_s):
        case []:
            raise NotFound(f"there is no {sort.kind} {text!r}; list them to see their ids and names", param=sort.kind)
        case [only]:
            return only
        case several:
            ids = ", ".join(candidate.id for candidate in several)
    raise BadRequest(f"{sort.kind} {text!r} could be any of {ids}; write the id", param=sort.kind)


def _named(connection: Connection, sort: Sort, text: str) -> Sequence[Entity]:
    if "name" not in sort.table.c:
        return ()
    *above, name = text.split("/")
    columns = sort.table.c
    same: list[ColumnElement[bool]] = [columns.name == name]
    if sort.kind == "user" and "@" in name:
        same.append(columns.email == name)
    if sort.kind == "key":
        same.append(columns.public_id == name.removeprefix("dt-")[:PUBLIC_CHARACTERS])
    asked = select(sort.table).where(or_(*same)).order_by(columns.id)
    rows = [from_row(sort.value, row) for row in connection.execute(asked).mappings()]
    return [row for row in rows if _hangs_below(connection, sort, row, above)]


def _hangs_below(connection: Connection, sort: Sort, value: Any, above: Sequence[str]) -> bool:
    if len(above) > len(sort.above):
        return False
    for name, kind in zip(reversed(above), sort.above, strict=False):
        value = by_id(connection, SORTS[kind], getattr(value, kind))
        if value.name != name:
            return False
    return True


def _in_force(candidates: Sequence[Entity], at_s: float) -> Sequence[Entity]:
    """Of several keys of one name those that still open something, and of keys that were rotated the newest."""
    keys = sorted((value for value in candidates if isinstance(value, Key)), key=lambda key: key.created_s)
    if len(keys) < 2:
        return candidates
    usable = [key for key in keys if usable_at(key, at_s)] or keys
    newest = {line(key): key for key in usable}
    return list(newest.values())


def usable_at(key: Key, at_s: float) -> bool:
    return not key.disabled and (key.expires_s is None or at_s < key.expires_s)


def line(key: Key) -> str:
    """What a key and those that took its place have in common: the id of the first, by which they are counted."""
    return key.rotated_from or key.id


def within(sort: Sort, kind: str, id: str) -> ColumnElement[bool]:
    """Whether a row hangs below something, however far."""
    if kind in sort.table.c:
        return sort.table.c[kind] == id
    parent = SORTS[sort.above[0]]
    return sort.table.c[parent.kind].in_(select(parent.table.c.id).where(within(parent, kind, id)))
