"""What the admin API speaks of: for each kind its path, what may be sent, what is told, what a list can be narrowed to.

Bodies name the members of `governance`; what is left out keeps its default, or its value. `terms` are given whole: what
they do not name is not laid down any more.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from drivetrain.governance import (
    Budget,
    Key,
    Limit,
    OnLoss,
    Org,
    Price,
    Priority,
    Project,
    Scope,
    Subject,
    Team,
    Terms,
    User,
)
from drivetrain.types import Value

Kind = Literal["org", "team", "project", "user", "key", "limit", "budget", "price"]
Entity = Org | Team | Project | User | Key | Limit | Budget | Price
Period = Literal["hour", "day", "week", "month", "total"]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ancestor of what is sent: a member that nobody knows is an error."""

    def fields(self) -> Mapping[str, Any]:
        """What was said, but for the version."""
        said = {name: getattr(self, name) for name in self.__struct_fields__ if name != "version"}
        return {name: value for name, value in said.items() if value is not UNSET}


class Change(Body, frozen=True):
    version: int | UnsetType = UNSET  # the one that was read; or `If-Match: "3"`


class NewOrg(Body, frozen=True):
    name: str
    terms: Terms | UnsetType = UNSET


class OrgChange(Change, frozen=True):
    name: str | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class NewTeam(Body, frozen=True):
    name: str
    org: str | UnsetType = UNSET  # id; left out: one's own
    models: tuple[str, ...] | UnsetType | None = UNSET
    terms: Terms | UnsetType = UNSET


class TeamChange(Change, frozen=True):
    name: str | UnsetType = UNSET
    models: tuple[str, ...] | UnsetType | None = UNSET
    disabled: bool | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class NewProject(Body, frozen=True):
    name: str
    team: str  # id
    terms: Terms | UnsetType = UNSET


class ProjectChange(Change, frozen=True):
    name: str | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class NewUser(Body, frozen=True):
    name: str
    org: str | UnsetType = UNSET  # id; left out: one's own
    email: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    scopes: tuple[Scope, ...] | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class UserChange(Change, frozen=True):
    name: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    scopes: tuple[Scope, ...] | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class NewKey(Body, frozen=True):
    name: str
    project: str | UnsetType = UNSET  # id; left out: the default one
    user: str | UnsetType = UNSET
    scopes: tuple[Scope, ...] | UnsetType = UNSET
    models: tuple[str, ...] | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    expires_s: float | UnsetType | None = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class KeyChange(Change, frozen=True):
    name: str | UnsetType = UNSET
    scopes: tuple[Scope, ...] | UnsetType = UNSET
    models: tuple[str, ...] | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    expires_s: float | UnsetType | None = UNSET
    disabled: bool | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    terms: Terms | UnsetType = UNSET


class Rotation(Change, frozen=True):
    """Of a key: by another, which works at once; the old one goes on for a while. Also the body of a revocation."""

    grace_s: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] | UnsetType = UNSET


class KeyWithSecret(Key, frozen=True, kw_only=True):
    """A new key, and what it takes to use it, which is told this once."""

    secret: str


class NewLimit(Body, frozen=True):
    subject: Subject
    subject_id: str
    resource: Literal["requests", "tokens", "concurrency"]
    amount: int
    per: Literal["", "minute", "day"] | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    on_loss: OnLoss | UnsetType = UNSET


class LimitChange(Change, frozen=True):
    amount: int | UnsetType = UNSET
    on_loss: OnLoss | UnsetType = UNSET


class NewBudget(Body, frozen=True):
    subject: Subject
    subject_id: str
    amount: int  # micro-dollars
    per: Period
    rolling: bool | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    hard: bool | UnsetType = UNSET
    model: str | UnsetType | None = UNSET
    on_loss: OnLoss | UnsetType = UNSET


class BudgetChange(Change, frozen=True):
    amount: int | UnsetType = UNSET
    hard: bool | UnsetType = UNSET
    on_loss: OnLoss | UnsetType = UNSET


class NewPrice(Body, frozen=True):
    """Micro-dollars, per million tokens where tokens are meant."""

    engine: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    from_s: float | UnsetType = UNSET
    until_s: float | UnsetType | None = UNSET
    input: int | UnsetType = UNSET
    cached_input: int | UnsetType | None = UNSET
    cache_write: int | UnsetType | None = UNSET
    output: int | UnsetType = UNSET
    reasoning: int | UnsetType | None = UNSET
    request: int | UnsetType = UNSET
    second: int | UnsetType = UNSET
    watts: float | UnsetType = UNSET
    kwh: int | UnsetType = UNSET


class PriceChange(Change, frozen=True):
    from_s: float | UnsetType = UNSET
    until_s: float | UnsetType | None = UNSET
    input: int | UnsetType = UNSET
    cached_input: int | UnsetType | None = UNSET
    cache_write: int | UnsetType | None = UNSET
    output: int | UnsetType = UNSET
    reasoning: int | UnsetType | None = UNSET
    request: int | UnsetType = UNSET
    second: int | UnsetType = UNSET
    watts: float | UnsetType = UNSET
    kwh: int | UnsetType = UNSET


class Collection(Value, frozen=True, kw_only=True):
    """One kind, as the admin API has it."""

    kind: Kind
    path: str
    shape: type[Any]  # of what is told
    new: type[Body]
    change: type[Change]
    filters: tuple[str, ...]


def _collection(kind: Kind, shape: type[Any], new: type[Body], change: type[Change], *filters: str) -> Collection:
    return Collection(kind=kind, path=f"{kind}s", shape=shape, new=new, change=change, filters=filters)


COLLECTIONS: tuple[Collection, ...] = (
    _collection("org", Org, NewOrg, OrgChange, "name", "disabled"),
    _collection("team", Team, NewTeam, TeamChange, "name", "org", "disabled"),
    _collection("project", Project, NewProject, ProjectChange, "name", "team", "disabled"),
    _collection("user", User, NewUser, UserChange, "name", "org", "email", "subject", "disabled"),
    _collection("key", Key, NewKey, KeyChange, "name", "project", "user", "public_id", "rotated_from", "disabled"),
    _collection("limit", Limit, NewLimit, LimitChange, "subject", "subject_id", "resource"),
    _collection("budget", Budget, NewBudget, BudgetChange, "subject", "subject_id", "per"),
    _collection("price", Price, NewPrice, PriceChange, "engine", "model"),
)
