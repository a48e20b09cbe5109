"""What the request path needs of a key, put together from the rows of the key and of all that is above it; and what has
changed since it was put together.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BindParameter, Connection, RowMapping, Select, bindparam, not_, or_, select

from drivetrain.governance import Budget, Change, Limit, Price, Principal, Rule, Said, Scope, Subject, Terms, User
from drivetrain.store import audit
from drivetrain.store.directory import KeyRecord, News
from drivetrain.store.entities import SUBJECTS, from_row
from drivetrain.store.patterns import both
from drivetrain.store.tables import budgets, keys, limits, orgs, prices, projects, teams, users

AT_ONCE = 200  # keys that are read with one statement
MOST_LINES = 2_000  # of the audit: after more of them all is read again
_ABOVE = {"project": projects, "team": teams, "org": orgs, "user_row": users}
_DISABLED = ("disabled", "user_row_disabled", "project_disabled", "team_disabled", "org_disabled")
_TERMS: Mapping[Subject, str] = {  # the columns with what each has laid down
    "key": "terms",
    "user": "user_row_terms",
    "project": "project_terms",
    "team": "team_terms",
    "org": "org_terms",
}
NOTHING_SAID = "{}"
_KEYS = (
    select(
        keys,
        projects.c.team,
        teams.c.org,
        teams.c.models.label("team_models"),
        *[
            table.c[name].label(f"{kind}_{name}")
            for kind, table in _ABOVE.items()
            for name in ("name", "disabled", "terms")
        ],
    )
    .join(projects, keys.c.project == projects.c.id)
    .join(teams, projects.c.team == teams.c.id)
    .join(orgs, teams.c.org == orgs.c.id)
    .join(users, keys.c.user == users.c.id, isouter=True)
)
_OF_THESE: BindParameter[str] = bindparam("these", expanding=True)
_BY_PUBLIC_ID = _KEYS.where(keys.c.public_id.in_(_OF_THESE))  # made once: making one takes longer than running it
_BY_ID = _KEYS.where(keys.c.id.in_(_OF_THESE))
_LIMITS = select(limits).where(limits.c.subject_id.in_(_OF_THESE)).order_by(limits.c.id)
_BUDGETS = select(budgets).where(budgets.c.subject_id.in_(_OF_THESE)).order_by(budgets.c.id)
_strings = msgspec.json.Decoder(tuple[str, ...]).decode
_scopes = msgspec.json.Decoder(frozenset[Scope]).decode
_terms = msgspec.json.Decoder(Terms).decode

Rules = Mapping[tuple[str, str], Sequence[Limit | Budget]]  # by subject and its id


def by_public_id(connection: Connection, public_ids: Iterable[str]) -> dict[str, KeyRecord]:
    """The keys of these public ids that there are."""
    return _read(connection, _BY_PUBLIC_ID, public_ids)


def by_id(connection: Connection, ids: Iterable[str]) -> dict[str, KeyRecord]:
    """The keys of these ids that there are, by their public ids."""
    return _read(connection, _BY_ID, ids)


def usable(connection: Connection, most: int, now_s: float) -> dict[str, KeyRecord]:
    """So many of the newest keys that have not ended, by their public ids."""
    lives = or_(keys.c.expires_s.is_(None), keys.c.expires_s > now_s)
    asked = select(keys.c.id).where(not_(keys.c.disabled), lives).order_by(keys.c.id.desc()).limit(most)
    return by_id(connection, connection.execute(asked).scalars().all())


def _read(connection: Connection, asked: Select[Any], these: Iterable[str]) -> dict[str, KeyRecord]:
    found: dict[str, KeyRecord] = {}
    wanted = list(these)
    for start in range(0, len(wanted), AT_ONCE):
        rows = connection.execute(asked, {"these": wanted[start : start + AT_ONCE]}).mappings().all()
        rules = _rules(connection, {id for row in rows for id in _subject_ids(row).values()})
        found |= {row["public_id"]: _record(row, rules) for row in rows}
    return found


def all_prices(connection: Connection) -> tuple[Price, ...]:
    rows = connection.execute(select(prices).order_by(prices.c.id)).mappings()
    return tuple(from_row(Price, row) for row in rows)


def user_of(connection: Connection, subject: str) -> User | None:
    """Whom an identity provider calls `subject`; disabled also where the organisation is."""
    asked = select(users, orgs.c.disabled.label("org_disabled")).join(orgs, users.c.org == orgs.c.id)
    row = connection.execute(asked.where(users.c.subject == subject).order_by(users.c.id)).mappings().first()
    if row is None:
        return None
    return msgspec.structs.replace(from_row(User, row), disabled=row["disabled"] or row["org_disabled"])


# --- what has changed -------------------------------------------------------------------------------------------------


def news(connection: Connection, since: tuple[int, str] | None) -> News:
    """What the lines of the audit tell after one that is given by number and hash."""
    head = audit.newest(connection)
    if since is None or not since[0] <= head[0] <= since[0] + MOST_LINES:
        return News(head=head, whole=True)
    # A store that has no such line is another one, such as a copy that was put in its place.
    if since[0] and [line.hash for line in audit.lines(connection, since[0] - 1, limit=1)] != [since[1]]:
        return News(head=head, whole=True)
    lines = audit.lines(connection, since[0], limit=MOST_LINES)
    return News(
        head=head,
        kinds=frozenset(line.kind for line in lines),
        ids=frozenset(_concerned(line) for line in lines),
        barred=frozenset(line.object_id for line in lines if line.after is None or line.after.get("disabled")),
    )


def _concerned(line: Change) -> str:
    rule = line.kind in ("limit", "budget")
    return str((line.after or line.before or {})["subject_id"]) if rule else line.object_id


# --- from rows to records ---------------------------------------------------------------------------------------------


def _subject_ids(row: RowMapping) -> dict[Subject, str]:
    """From the nearest to the widest."""
    ids = {"key": row["rotated_from"] or row["id"]} | {kind: row[kind] for kind in SUBJECTS if kind != "key"}
    return {kind: ids[kind] for kind in SUBJECTS if ids[kind]}


def _names(row: RowMapping) -> dict[Subject, str]:
    return {
        "key": row["name"],
        "user": row["user_row_name"],
        "project": row["project_name"],
        "team": row["team_name"],
        "org": row["org_name"],
    }


def _rules(connection: Connection, ids: Iterable[str]) -> Rules:
    found: dict[tuple[str, str], list[Limit | Budget]] = defaultdict(list)
    these = {"these": sorted(ids)}
    for row in connection.execute(_LIMITS, these).mappings():
        found[row["subject"], row["subject_id"]].append(from_row(Limit, row))
    for row in connection.execute(_BUDGETS, these).mappings():
        found[row["subject"], row["subject_id"]].append(from_row(Budget, row))
    return found


def _record(row: RowMapping, rules: Rules) -> KeyRecord:
    ids, names = _subject_ids(row), _names(row)
    models = both(*(None if row[name] is None else _strings(row[name]) for name in ("models", "team_models")))
    principal = Principal(
        key_id=ids["key"],
        name=row["name"],
        org=row["org"],
        team=row["team"],
        project=row["project"],
        user=row["user"],
        scopes=_scopes(row["scopes"]),
        models=models,
        priority=row["priority"],
        rules=tuple(
            rule(stored, f"{kind} {names[kind]!r}") for kind, id in ids.items() for stored in rules.get((kind, id), ())
        ),
        terms=tuple(_said(row, ids, names)),
    )
    return KeyRecord(
        id=row["id"],
        public_id=row["public_id"],
        principal=principal,
        hash=row["hash"],
        pepper=row["pepper"],
        not_after_s=row["expires_s"],
        disabled=any(row[name] for name in _DISABLED),
    )


def _said(row: RowMapping, ids: Mapping[Subject, str], names: Mapping[Subject, str]) -> Iterator[Said]:
    """From the nearest to the widest, those that lay something down."""
    for kind, id in ids.items():
        if (told := row[_TERMS[kind]]) not in (None, NOTHING_SAID):
            yield Said(id=f"{kind}:{id}", owner=f"{kind} {names[kind]!r}", terms=_terms(told))


def rule(stored: Limit | Budget, owner: str) -> Rule:
    """What the quota counts. `owner` is how messages call whom it binds."""
    id = f"{stored.subject}:{stored.subject_id}:{stored.id}"
    same: dict[str, Any] = {"id": id, "owner": owner, "amount": stored.amount, "per": stored.per, "model": stored.model}
    if isinstance(stored, Limit):
        return Rule(resource=stored.resource, on_loss=stored.on_loss, **same)
    return Rule(
        resource="money", rolling=stored.rolling, zone=stored.zone, hard=stored.hard, on_loss=stored.on_loss, **same
    )
