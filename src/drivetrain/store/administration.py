"""What administrators do: every write is one transaction, checked against the version that its writer had read, and
a line of the audit. Blocking; for a thread of its own.

Wherever an entity is asked for, its id will do, and so will its name. Organisation, team and project `default` are made
when something first needs them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import msgspec
from sqlalchemy import ColumnElement, Connection, select

from drivetrain import keys
from drivetrain.errors import BadRequest, Conflict
from drivetrain.governance import SCOPES, Change, Key
from drivetrain.store import audit, drains, owners, tables
from drivetrain.store.audit import Transaction, Verdict
from drivetrain.store.database import Store
from drivetrain.store.entities import SORTS, Entity, Sort, as_member, checked, from_row, settable, sort
from drivetrain.store.names import line, meant, usable_at, within
from drivetrain.store.pepper import Pepper
from drivetrain.ulid import ulid

PAGE = 1_000
_INSTANT_S = 0.001
_NO_FILTERS = frozenset({"scopes", "models", "tags", "terms"})
FIRST = "first-admin"  # name of the key that a first start makes


class Administration:
    def __init__(self, store: Store, pepper: Pepper, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock

    # --- reading ------------------------------------------------------------------------------------------------------

    def list(
        self, kind: str, filters: Mapping[str, Any] | None = None, *, after: str = "", limit: int = PAGE
    ) -> Sequence[Entity]:
        """In the order in which they were made, those after the id `after`. A filter is a member and its value, or
        something above: `{"team": "search"}` for keys. Raises `BadRequest` for one that there is not."""
        owner = sort(kind)
        with self._store.reading() as connection:
            asked = select(owner.table).where(owner.table.c.id > after).order_by(owner.table.c.id).limit(limit)
            asked = asked.where(*[self._filter(connection, owner, *given) for given in (filters or {}).items()])
            return [from_row(owner.value, row) for row in connection.execute(asked).mappings()]

    def get(self, kind: str, id: str) -> Entity:
        """Raises `NotFound`, and `BadRequest` for a name that several have."""
        with self._store.reading() as connection:
            return meant(connection, sort(kind), id, at_s=self._clock())

    def audit(
        self, since: int = 0, *, limit: int = PAGE, kind: str | None = None, object_id: str | None = None
    ) -> Sequence[Change]:
        """Lines of the audit after revision `since`, oldest first."""
        with self._store.reading() as connection:
            return audit.lines(connection, since, limit=limit, kind=kind, object_id=object_id)

    def verify_audit(self) -> Verdict:
        """Whether the audit is as it was written, from the first line to the last."""
        with self._store.reading() as connection:
            return audit.verify(connection)

    # --- writing ------------------------------------------------------------------------------------------------------

    def create(self, kind: str, fields: Mapping[str, Any], *, actor: str, request_id: str = "") -> Entity:
        """Raises `BadRequest`, `NotFound` for something that it refers to, and `Conflict` if there is one already.
        Keys are made by `create_key`, for their secret is seen only once."""
        owner = sort(kind)
        if owner.kind == "key":
            raise BadRequest("a key is made together with its secret, by create_key", param="kind")
        with self._writing(actor, request_id) as transaction:
            value: Entity = self._made(transaction, owner, fields)
            transaction.add(value)
            return value

    def update(
        self, kind: str, id: str, version: int | None, fields: Mapping[str, Any], *, actor: str, request_id: str = ""
    ) -> Entity:
        """Change the members that are named. `version` is the one that the writer has read; raises `Conflict` if it is
        not the newest any more, `None` does without. What is given as it is already does no harm."""
        owner = sort(kind)
        with self._writing(actor, request_id) as transaction:
            before = self._expected(transaction, owner, id, version)
            after = self._changed(transaction, owner, before, fields)
            if after == before:
                return before
            return transaction.replace(before, after)

    def delete(self, kind: str, id: str, version: int | None = None, *, actor: str, request_id: str = "") -> Entity:
        """With the limits and budgets that bind it alone. Raises `Conflict` if something hangs on it."""
        owner = sort(kind)
        with self._writing(actor, request_id) as transaction:
            value = self._expected(transaction, owner, id, version)
            owners.refuse_use(transaction.connection, owner, value)
            for rule in owners.rules_of(transaction.connection, owner, value.id):
                transaction.remove(rule)
            transaction.remove(value)
            return value

    # --- keys ---------------------------------------------------------------------------------------------------------

    def create_key(self, fields: Mapping[str, Any], *, actor: str, request_id: str = "") -> tuple[Key, str]:
        """The key, and its text, which nobody can ask for again. Raises as `create` does."""
        with self._writing(actor, request_id) as transaction:
            return self._new_key(transaction, fields)

    def rotate_key(
        self, id: str, version: int | None = None, *, grace_s: float, actor: str, request_id: str = ""
    ) -> tuple[Key, str]:
        """A key in the place of another: the same rights, limits and budgets, counted together, and as long a life. The
        old one works for `grace_s` more. Raises `Conflict` for a key that has ended, or has been rotated already."""
        with self._writing(actor, request_id) as transaction:
            old = cast("Key", self._expected(transaction, SORTS["key"], id, version))
            self._refuse_ended(transaction.connection, old)
            now_s = self._clock()
            end_s = min(now_s + grace_s, old.expires_s or now_s + grace_s)
            transaction.replace(old, msgspec.structs.replace(old, expires_s=end_s), "rotate")
            life_s = None if old.expires_s is None else now_s + old.expires_s - old.created_s
            public_id, secret = keys.new()
            new = msgspec.structs.replace(
                old,
                id=ulid(),
                public_id=public_id,
                rotated_from=line(old),
                expires_s=life_s,
                created_s=max(now_s, old.created_s + _INSTANT_S),  # later, whatever another host's clock says
                version=1,
            )
            transaction.add(new, "rotate", self._hashed(secret))
            return new, keys.text(public_id, secret)

    def revoke_key(self, id: str, version: int | None = None, *, actor: str, request_id: str = "") -> Key:
        """For good, everywhere within a second. Revoking a key revokes those whose place it took; one of these can be
        revoked by its own id while its successor goes on."""
        with self._writing(actor, request_id) as transaction:
            key = cast("Key", self._expected(transaction, SORTS["key"], id, version))
            until = owners.line_of(transaction.connection, key)
            for one in [one for one in until if one.created_s <= key.created_s and not one.disabled]:
                revoked = transaction.replace(one, msgspec.structs.replace(one, disabled=True), "revoke")
                key = revoked if revoked.id == key.id else key
            return key

    # --- engines ------------------------------------------------------------------------------------------------------

    def drain(self, engine: str, *, out: bool, actor: str, request_id: str = "") -> bool:
        """Take an engine, or one instance of it, out of service, or back in. Whether that is a change."""
        with self._writing(actor, request_id) as transaction:
            return drains.put(transaction, engine, out=out)

    def first_admin_key(self, *, actor: str = "first start") -> str | None:
        """The text of a key that may do everything, made if no administrator's key was ever made. Of several processes
        that ask together, one gets it."""
        with self._writing(actor, "") as transaction:
            columns = tables.keys.c
            if transaction.connection.execute(select(columns.id).where(columns.scopes.contains('"admin"'))).first():
                return None
            fields = {"name": FIRST, "scopes": sorted(SCOPES), "priority": "system"}
            return self._new_key(transaction, fields)[1]

    def _new_key(self, transaction: Transaction, fields: Mapping[str, Any]) -> tuple[Key, str]:
        public_id, secret = keys.new()
        key = self._made(transaction, SORTS["key"], fields, public_id=public_id)
        if key.expires_s is not None and key.expires_s <= self._clock():
            raise BadRequest(f"expires_s {key.expires_s!r} of a key: it is over already", param="expires_s")
        transaction.add(key, more=self._hashed(secret))
        return key, keys.text(public_id, secret)

    def _hashed(self, secret: str) -> Mapping[str, str]:
        return {"hash": keys.hashed(self._pepper.secret, secret), "pepper": self._pepper.id}

    def _refuse_ended(self, connection: Connection, key: Key) -> None:
        if not usable_at(key, self._clock()):
            raise Conflict(f"key {key.name!r} ({key.public_id}) has ended; make a new one")
        newer = [other for other in owners.line_of(connection, key) if other.created_s > key.created_s]
        if newer:
            raise Conflict(f"key {key.name!r} ({key.public_id}) was rotated already; rotate {newer[-1].id}")

    # --- what is written ----------------------------------------------------------------------------------------------

    def _made(self, transaction: Transaction, owner: Sort, fields: Mapping[str, Any], **ours: str) -> Any:
        now_s = self._clock()
        given = {name: value for name, value in fields.items() if value is not None}
        given = owners.resolved(transaction, owner, given, at_s=now_s)
        settable(owner, given)
        given |= {"id": ulid(), "version": 1} | ours
        if "created_s" in owner.table.c:
            given["created_s"] = now_s
        value = checked(owner, given)
        owners.refuse_twin(transaction.connection, owner, value, at_s=now_s)
        return value

    def _changed(self, transaction: Transaction, owner: Sort, before: Entity, fields: Mapping[str, Any]) -> Entity:
        present = msgspec.to_builtins(before)
        changes = {name: value for name, value in fields.items() if name not in present or value != present[name]}
        settable(owner, changes)
        for name in changes.keys() & owner.anchored:
            if not self._is_same(transaction.connection, name, changes[name], present[name]):
                message = f"{name} of {owner.one} stays what it is, {present[name]!r}; make another {owner.kind}"
                raise BadRequest(message, param=name)
            del changes[name]
        after: Entity = checked(owner, present | changes)
        if isinstance(before, Key) and before.disabled and "disabled" in changes:
            raise Conflict(f"key {before.name!r} ({before.public_id}) was revoked, which is for good; make a new one")
        owners.refuse_twin(transaction.connection, owner, after, at_s=self._clock())
        return after

    def _is_same(self, connection: Connection, name: str, given: object, present: str) -> bool:
        """Whether what hangs above is given by its name."""
        if name not in SORTS or not isinstance(given, str) or not given:
            return False
        return meant(connection, sort(name), given, at_s=self._clock()).id == present

    def _expected(self, transaction: Transaction, owner: Sort, id: str, version: int | None) -> Entity:
        found = meant(transaction.connection, owner, id, at_s=self._clock())
        if version is not None and version != found.version:
            advice = "somebody else has changed it: read it again, and repeat what you meant to change"
            raise Conflict(f"{owner.kind} {id!r} has version {found.version}, not {version!r}; {advice}")
        return found

    def _filter(self, connection: Connection, owner: Sort, name: str, value: Any) -> ColumnElement[bool]:
        if name in (*owner.above, *owner.anchored) and name in SORTS:
            return within(owner, name, meant(connection, sort(name), value, at_s=self._clock()).id)
        if name not in owner.value.__struct_fields__ or name in _NO_FILTERS:
            known = ", ".join(sorted({*owner.value.__struct_fields__, *owner.above} - _NO_FILTERS))
            raise BadRequest(f"a list of {owner.kind}s cannot be filtered by {name!r}; it can by {known}", param=name)
        return owner.table.c[name] == as_member(owner, name, value)  # type: ignore[no-any-return]  # of any type

    def _writing(self, actor: str, request_id: str) -> AbstractContextManager[Transaction]:
        return audit.writing(self._store, at_s=self._clock(), actor=actor, request_id=request_id)
