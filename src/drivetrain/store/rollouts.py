"""Rollouts and experiments in the store: each is made, moved on and ended in a transaction with a line of the audit.

Its history tells what was known then. Blocking; for a thread of its own.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from drivetrain.errors import BadRequest, Conflict, NotFound
from drivetrain.governance import Move
from drivetrain.rollouts.experiments import compared
from drivetrain.rollouts.moves import moved
from drivetrain.rollouts.plan import Arm, Guards, Plan, Rollout, Shadow, Stage, assigned
from drivetrain.rollouts.sense import check
from drivetrain.rollouts.step import step
from drivetrain.store import audit, prompts, tables
from drivetrain.store.audit import Transaction
from drivetrain.store.database import Store
from drivetrain.store.evidence import Sighting
from drivetrain.store.kept import RolloutReport, Turn
from drivetrain.types import Value
from drivetrain.ulid import ulid

PAGE = 1_000
REPORTED = 1_000_000  # rows of the ledger that a report goes over at most
WHY_CHARACTERS = 500
USUAL_STAGES = tuple(Stage(percent=percent) for percent in (1.0, 5.0, 25.0, 100.0))
ON_THE_WAY = ("running", "paused")  # states of which a model has one rollout at most
_SPEC = ("arms", "stages", "guards", "shares", "shadow")  # what of a rollout is one text
_GIVEN = frozenset({"model", "kind", *_SPEC})  # what its maker chooses
_AMENDED = frozenset({"guards", "shadow"})  # what may be chosen anew on the way
_PARTS: Mapping[str, type[Value]] = {"arms": Arm, "stages": Stage, "guards": Guards, "shadow": Shadow}
_COLUMNS = tables.rollouts.c
_PLAIN = tuple(name for name in Rollout.__struct_fields__ if name not in _SPEC)  # members with a column of their own
log = logging.getLogger("drivetrain.store")


class Rollouts:
    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    # --- reading ------------------------------------------------------------------------------------------------------

    def list(self, *, after: str = "", limit: int = PAGE, **exact: str) -> list[Rollout]:
        """In the order in which they were made, those after the id `after`. `exact` are `model`, `kind`, `state`."""
        asked = select(tables.rollouts).where(_COLUMNS.id > after).order_by(_COLUMNS.id).limit(limit)
        asked = asked.where(*[_COLUMNS[name] == value for name, value in exact.items()])
        with self._store.reading() as connection:
            return [_from_row(row) for row in connection.execute(asked).mappings()]

    def get(self, word: str) -> Rollout:
        """By its id; by a model's name the newest of it. Raises `NotFound`."""
        with self._store.reading() as connection:
            return _meant(connection, word)

    def history(self, id: str) -> Sequence[Turn]:
        """From its making on."""
        columns = tables.rollout_history.c
        asked = select(tables.rollout_history).where(columns.rollout == id).order_by(columns.version)
        with self._store.reading() as connection:
            return [_turn(row) for row in connection.execute(asked).mappings()]

    def report(self, rollout: Rollout) -> RolloutReport:
        """How it stands, by what the ledger knows now."""
        sighting = Sighting(self._store, rollout)
        sighting.read(REPORTED)
        taken = step(rollout, sighting.evidence(), self._clock())
        return RolloutReport(
            rollout=rollout,
            whole=sighting.whole,
            next=taken.action,
            why=taken.why,
            guards=tuple(f"{verdict.guard}: {verdict.text}" for verdict in taken.verdicts),
            arms=compared(rollout, sighting.seen()),
        )

    # --- writing ------------------------------------------------------------------------------------------------------

    def create(
        self, fields: Mapping[str, Any], *, engines: Collection[str], actor: str, request_id: str = ""
    ) -> Rollout:
        """What is left out of the arms is as it is now: after a rollout that is done, as that left it. Raises
        `BadRequest` for what makes no sense, and `Conflict` where one of the model is on its way."""
        now_s = self._clock()
        given = {"stages": USUAL_STAGES} if fields.get("kind", "rollout") == "rollout" else {}
        made = _read({**given, **fields}, _GIVEN, {"id": ulid(), "created_s": now_s, "since_s": now_s})
        if not made.model.isprintable():
            raise BadRequest(f"model {made.model!r}: a public name is printable", param="model")
        check(made)
        _check_engines(made, engines)
        with self._writing(actor, request_id) as transaction:
            made = _continued(transaction.connection, made)
            prompts.require(transaction.connection, {arm.prompt for arm in made.arms if arm.prompt})
            transaction.connection.execute(insert(tables.rollouts).values(_to_row(made)))
            _tell(transaction, "create", None, made, actor)
        return made

    def amend(
        self, id: str, version: int | None, fields: Mapping[str, Any], *, actor: str, request_id: str = ""
    ) -> Rollout:
        """Other guards, or another shadow, for one that is on its way. Raises `Conflict`, `BadRequest`, `NotFound`."""
        with self._writing(actor, request_id) as transaction:
            before = _expected(transaction.connection, id, version)
            if before.state not in ON_THE_WAY:
                raise Conflict(f"{before.kind} {before.id} is {_said(before.state)}; make another one")
            after = _read(_merged(before, fields), _AMENDED, _present(before))
            check(after)
            return before if after == before else _replace(transaction, "update", before, after, actor)

    def move(
        self,
        id: str,
        version: int | None,
        move: Move,
        *,
        why: str,
        actor: str,
        request_id: str = "",
        evidence: object = None,
    ) -> Rollout:
        """Raises `Conflict` for a move that its state does not allow, or if `version` is not the newest any more."""
        with self._writing(actor, request_id) as transaction:
            before = _expected(transaction.connection, id, version)
            why = why[:WHY_CHARACTERS].replace("\0", "�")
            after = moved(before, move, why=why, now_s=transaction.at_s)
            return _replace(transaction, move, before, after, actor, evidence)

    def remove(self, id: str, version: int | None = None, *, actor: str, request_id: str = "") -> Rollout:
        """Of one that is done: from now on the model's own route says what it is. Its history goes, the ledger stays.
        Raises `Conflict` for one that is on its way."""
        with self._writing(actor, request_id) as transaction:
            gone = _expected(transaction.connection, id, version)
            if gone.state in ON_THE_WAY:
                raise Conflict(f"{gone.kind} {gone.id} of {gone.model!r} is {gone.state}; roll it back or finish it")
            for column in (tables.rollout_history.c.rollout, tables.comparisons.c.rollout, _COLUMNS.id):
                transaction.connection.execute(delete(column.table).where(column == gone.id))
            transaction.write("delete", "rollout", gone.id, msgspec.to_builtins(gone), None)
            return gone

    def _writing(self, actor: str, request_id: str) -> AbstractContextManager[Transaction]:
        return audit.writing(self._store, at_s=self._clock(), actor=actor, request_id=request_id)


def plan(connection: Connection) -> Plan:
    """All that is in force."""
    return Plan(rollouts=_in_force(connection), prompts=prompts.every(connection))


def _in_force(connection: Connection) -> dict[str, Rollout]:
    """Of each model what is on its way, else what is done. What cannot be read is told, and left out."""
    asked = select(tables.rollouts).where(_COLUMNS.state != "rolled_back").order_by(_COLUMNS.id)
    found: dict[str, Rollout] = {}
    for row in connection.execute(asked).mappings():
        try:
            rollout = _from_row(row)
        except msgspec.ValidationError as error:
            log.error("rollout %s cannot be read, and is not in force: %s", row["id"], error)
            continue
        kept = found.get(rollout.model)
        if _is_in_force(rollout) and (kept is None or kept.state not in ON_THE_WAY):
            found[rollout.model] = rollout
    return found


def _is_in_force(rollout: Rollout) -> bool:
    return rollout.state in ON_THE_WAY or (rollout.state == "done" and rollout.kind == "rollout")


def _continued(connection: Connection, made: Rollout) -> Rollout:
    """On top of what is in force of the model."""
    now = _in_force(connection).get(made.model)
    if now is None:
        return made
    if now.state in ON_THE_WAY:
        raise Conflict(f"{now.kind} {now.id} of {made.model!r} is {now.state}; end that one first", param="model")
    below = assigned(now, "")
    return msgspec.structs.replace(made, arms=tuple(_upon(below, arm) for arm in made.arms))


def _upon(below: Arm, arm: Arm) -> Arm:
    return Arm(
        name=arm.name,
        targets=below.targets if arm.targets is None else arm.targets,
        prompt=below.prompt if arm.prompt is None else arm.prompt,
        settings={**below.settings, **arm.settings},
        parameters={**below.parameters, **arm.parameters},
    )


def _meant(connection: Connection, word: str) -> Rollout:
    row = None
    if word.isprintable():
        asked = select(tables.rollouts).order_by(_COLUMNS.id.desc()).limit(1)
        for column in (_COLUMNS.id, _COLUMNS.model):
            row = row or connection.execute(asked.where(column == word)).mappings().first()
    if row is None:
        raise NotFound(f"there is no rollout {word[:100]!r}; list them to see their ids and models")
    return _from_row(row)


def _expected(connection: Connection, word: str, version: int | None) -> Rollout:
    found = _meant(connection, word)
    if version is not None and version != found.version:
        advice = "it has moved since it was read: read it again, and decide anew"
        raise Conflict(f"{found.kind} {found.id} has version {found.version}, not {version!r}; {advice}")
    return found


def _replace(
    transaction: Transaction, move: Any, before: Rollout, after: Rollout, actor: str, evidence: object = None
) -> Rollout:
    after = msgspec.structs.replace(after, version=before.version + 1)
    transaction.connection.execute(update(tables.rollouts).where(_COLUMNS.id == before.id).values(_to_row(after)))
    _tell(transaction, move, before, after, actor, evidence)
    return after


def _tell(
    transaction: Transaction, move: Any, before: Rollout | None, after: Rollout, actor: str, evidence: object = None
) -> None:
    turn = {
        "rollout": after.id,
        "version": after.version,
        "at_s": transaction.at_s,
        "actor": actor,
        "move": move,
        "state": after.state,
        "stage": after.stage,
        "why": after.why,
        "evidence": None if evidence is None else msgspec.json.encode(evidence).decode(),
    }
    transaction.connection.execute(insert(tables.rollout_history).values(turn))
    was = None if before is None else msgspec.to_builtins(before)
    transaction.write(move, "rollout", after.id, was, msgspec.to_builtins(after))


# --- values and rows --------------------------------------------------------------------------------------------------


def _to_row(rollout: Rollout) -> dict[str, Any]:
    return {**_present(rollout, _PLAIN), "spec": msgspec.json.encode(_present(rollout, _SPEC)).decode()}


def _from_row(row: RowMapping) -> Rollout:
    members = {name: row[name] for name in _PLAIN}
    return msgspec.convert({**members, **msgspec.json.decode(row["spec"])}, Rollout)


def _turn(row: RowMapping) -> Turn:
    evidence = row["evidence"]
    return Turn(**{**row, "evidence": None if evidence is None else msgspec.json.decode(evidence)})


def _present(rollout: Rollout, names: Collection[str] = Rollout.__struct_fields__) -> dict[str, Any]:
    return {name: getattr(rollout, name) for name in names}


def _read(fields: Mapping[str, Any], allowed: Collection[str], ours: Mapping[str, Any]) -> Rollout:
    """Raises `BadRequest` for members that nobody knows, or that do not fit."""
    given: dict[str, Any] = {name: msgspec.to_builtins(value) for name, value in fields.items()}
    for name in given:
        if name not in allowed:
            raise BadRequest(f"a rollout has no member {name!r} to set; {_listed(allowed)}", param=name)
        _refuse_unknown(name, given[name])
    try:
        return msgspec.convert({**msgspec.to_builtins(ours), **given}, Rollout)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise BadRequest(
            f"{path.rstrip('`') or 'a rollout'}: {reason.lower()}", param=path.rstrip("`") or None
        ) from error


def _merged(before: Rollout, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Members of guards and shadow that are not given stay as they are."""
    merged = dict(fields)
    for name in _AMENDED & fields.keys():
        if isinstance(given := fields[name], dict):
            merged[name] = {**(msgspec.to_builtins(getattr(before, name)) or {}), **given}
    return merged


def _refuse_unknown(name: str, given: Any) -> None:
    known = _PARTS[name].__struct_fields__ if name in _PARTS else ()
    for part in given if isinstance(given, list) else [given]:
        for member in part if known and isinstance(part, dict) else ():
            if member not in known:
                raise BadRequest(f"{name} have no member {member!r}; {_listed(known)}", param=name)


def _check_engines(rollout: Rollout, engines: Collection[str]) -> None:
    """A member of a group is called NAME-…, or NAME@…"""
    heads = tuple(f"{name}{mark}" for name in engines for mark in "-@")
    for target in (target for arm in rollout.arms for target in arm.targets or ()):
        if target.engine not in engines and not target.engine.startswith(heads):
            raise BadRequest(f"engine {target.engine!r} is not configured; {_listed(engines)}", param="arms")


def _listed(names: Collection[str]) -> str:
    return f"there are {', '.join(sorted(names))}"


def _said(state: str) -> str:
    return state.replace("_", " ")
