"""What an administrator owns: the kinds of it, how a value becomes a row and back, and what a value may hold."""

import math
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import RowMapping, Table

from drivetrain.errors import BadRequest
from drivetrain.governance import Budget, Key, Limit, Org, Price, Project, Scope, Subject, Team, Terms, User
from drivetrain.store import tables
from drivetrain.types import Value

Kind = Literal["org", "team", "project", "user", "key", "limit", "budget", "price"]
Entity = Org | Team | Project | User | Key | Limit | Budget | Price
E = TypeVar("E", bound=Entity)

MOST = 2**53 - 1  # what every counter keeps exactly
NAME_CHARACTERS = 200
PATTERNS = 100  # that a key or a team may list
STARS = 4  # in one pattern
TAGS = 32
_FIXED = frozenset({"id", "public_id", "rotated_from", "created_s", "version"})  # ours to give


class Sort(Value, frozen=True, kw_only=True):
    """A kind of entity, and where it hangs."""

    kind: Kind
    value: type[Any]
    table: Table
    parent: Kind | None = None
    anchored: frozenset[str] = frozenset()  # members that stay as they were made

    @property
    def members(self) -> tuple[str, ...]:
        """What an administrator may write."""
        return tuple(name for name in self.value.__struct_fields__ if name not in _FIXED)

    @property
    def one(self) -> str:
        return f"an {self.kind}" if self.kind == "org" else f"a {self.kind}"

    @property
    def above(self) -> tuple[Kind, ...]:
        """Kinds that it hangs below, nearest first."""
        return () if self.parent is None else (self.parent, *SORTS[self.parent].above)


def _sort(kind: Kind, value: type[Any], table: Table, parent: Kind | None = None, *anchored: str) -> Sort:
    return Sort(kind=kind, value=value, table=table, parent=parent, anchored=frozenset(anchored))


SORTS: Mapping[Kind, Sort] = {
    "org": _sort("org", Org, tables.orgs),
    "team": _sort("team", Team, tables.teams, "org", "org"),
    "project": _sort("project", Project, tables.projects, "team", "team"),
    "user": _sort("user", User, tables.users, "org", "org"),
    "key": _sort("key", Key, tables.keys, "project", "project", "user"),
    "limit": _sort("limit", Limit, tables.limits, None, "subject", "subject_id"),
    "budget": _sort("budget", Budget, tables.budgets, None, "subject", "subject_id"),
    "price": _sort("price", Price, tables.prices),
}
SUBJECTS: tuple[Subject, ...] = ("key", "user", "project", "team", "org")  # from the nearest to the widest

_TEXTS: Mapping[str, Any] = {  # columns that hold JSON
    "scopes": msgspec.json.Decoder(tuple[Scope, ...]),
    "models": msgspec.json.Decoder(tuple[str, ...]),
    "tags": msgspec.json.Decoder(dict[str, str]),
    "terms": msgspec.json.Decoder(Terms),
}


def sort(kind: str) -> Sort:
    """Raises `BadRequest` for a kind that there is not."""
    found = SORTS.get(kind)  # type: ignore[call-overload]  # any text may come from outside
    if found is None:
        raise BadRequest(f"there is no kind {kind!r}; there are {_listed(SORTS)}", param="kind")
    return found  # type: ignore[no-any-return]


def sort_of(value: Entity) -> Sort:
    return next(sort for sort in SORTS.values() if sort.value is type(value))


def to_row(value: Entity) -> dict[str, Any]:
    row = msgspec.structs.asdict(value)
    return {name: _text(item) if name in _TEXTS and item is not None else item for name, item in row.items()}


def from_row(value: type[E], row: RowMapping) -> E:
    fields = {name: row[name] for name in value.__struct_fields__}
    for name in _TEXTS.keys() & fields.keys():
        if fields[name] is not None:
            fields[name] = _TEXTS[name].decode(fields[name])
    return value(**fields)


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def settable(sort: Sort, fields: Mapping[str, Any]) -> None:
    """Raises `BadRequest` for members that this kind does not have, or that are not the writer's to choose."""
    for name in fields:
        if name not in sort.members:
            raise BadRequest(f"{sort.one} has no member {name!r} to set; it has {_listed(sort.members)}", param=name)


def checked(sort: Sort, fields: Mapping[str, Any]) -> Any:
    """The value with these fields. Raises `BadRequest` with the member and its value."""
    try:
        value = msgspec.convert(dict(fields), sort.value)
    except msgspec.ValidationError as error:
        raise _unreadable(sort, fields, str(error)) from error
    for member, check in _CHECKS.items():
        if member in sort.value.__struct_fields__ and (item := getattr(value, member)) is not None:
            _require(sort, member, item, check(item))
    _require(sort, *_whole(value))
    return value


def as_member(sort: Sort, name: str, value: Any) -> Any:
    """What a member is compared with, which may be its text. Raises `BadRequest`."""
    kind = next(field.type for field in msgspec.structs.fields(sort.value) if field.name == name)
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{name} {value!r} of {sort.one}: {str(error).lower()}", param=name) from error


def _unreadable(sort: Sort, fields: Mapping[str, Any], problem: str) -> BadRequest:
    reason, _, path = problem.partition(" - at `$.")
    member, _, inner = path.rstrip("`").split("[")[0].partition(".")
    if inner and isinstance(fields[member], Mapping):
        return BadRequest(
            f"{member}.{inner} {fields[member].get(inner)!r} of {sort.one}: {reason.lower()}", param=member
        )
    if not member:
        missing = reason.rpartition("field `")[2].rstrip("`")
        return BadRequest(f"{sort.one} needs {missing!r}; it has {_listed(sort.members)}", param=missing)
    return BadRequest(f"{member} {fields[member]!r} of {sort.one}: {reason.lower()}", param=member)


def _require(sort: Sort, member: str, value: object, problem: str) -> None:
    if problem:
        raise BadRequest(f"{member} {value!r} of {sort.one}: {problem}", param=member)


# --- what a member may hold: each answers what is wrong, or nothing ---------------------------------------------------


def _name(text: str) -> str:
    if not text.strip() or text != text.strip() or "/" in text or not text.isprintable():
        return "a name is printable text without slashes, and no space at its ends"
    return _length(text)


def _plain(text: str) -> str:
    return _length(text) if text.isprintable() else "only printable characters are kept"


def _length(text: str) -> str:
    return "" if len(text) <= NAME_CHARACTERS else f"at most {NAME_CHARACTERS} characters are kept"


def _patterns(patterns: Sequence[str]) -> str:
    if len(patterns) > PATTERNS:
        return f"at most {PATTERNS} patterns"
    for pattern in patterns:
        if not pattern or _plain(pattern) or pattern.count("*") > STARS:
            return f"{pattern!r} is no pattern: a model's name, in which up to {STARS} `*` stand for anything"
    return ""


def _scopes(scopes: Sequence[str]) -> str:
    return "" if len(set(scopes)) == len(scopes) else "a scope is listed twice"


def _tags(tags: Mapping[str, str]) -> str:
    fine = all(name and not _plain(name) and not _plain(value) for name, value in tags.items())
    return "" if fine and len(tags) <= TAGS else f"up to {TAGS} names with printable texts"


def _instant(seconds: float) -> str:
    return "" if math.isfinite(seconds) and 0 <= seconds < 1e11 else "an instant is in Unix seconds"


def _count(amount: int) -> str:
    return "" if 0 <= amount <= MOST else f"from 0 to {MOST}"


def _zone(name: str) -> str:
    try:
        if name != "UTC":
            zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return "there is no such time zone; write one like UTC or Europe/Berlin"
    return ""


_MONEY = ("input", "cached_input", "cache_write", "output", "reasoning", "request", "second", "kwh")
_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "name": _name,
    "email": _plain,
    "subject": _plain,
    "model": lambda text: _plain(text) if text else "a model's name, or nothing for all",
    "engine": lambda text: _plain(text) if text else "an engine's name, or * for all",
    "scopes": _scopes,
    "models": _patterns,
    "tags": _tags,
    "expires_s": _instant,
    "from_s": _instant,
    "until_s": _instant,
    "amount": _count,
    "zone": _zone,
    "watts": lambda watts: "" if math.isfinite(watts) and watts >= 0 else "a number of watts",
    **dict.fromkeys(_MONEY, _count),
}


def _whole(value: Entity) -> tuple[str, object, str]:
    """What only several members together can show: the member to blame, its value, and what is wrong or nothing."""
    match value:
        case Limit(resource="concurrency", per=per) if per:
            return "per", per, "requests at once are not counted per time; leave it out"
        case Limit(resource="requests" | "tokens", per=""):
            return "per", "", "minute or day"
        case Limit(amount=0):
            return "amount", 0, "at least 1; disable what may do nothing"
        case Price(from_s=start, until_s=float(end)) if end <= start:
            return "until_s", end, f"has to come after from_s {start!r}"
    return "", None, ""


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
