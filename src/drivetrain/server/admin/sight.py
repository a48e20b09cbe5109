"""How far an administrator sees: everything from the default organisation, its own organisation from any other.

What is out of sight is answered as if it were not there. Nobody hands out what they do not have: scopes that the
administrator's own key lacks, bounds that were set on the organisation from outside it, answers that are not billed.
"""

import re
from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Any, Protocol

from drivetrain.errors import Forbidden, NotFound
from drivetrain.governance import Budget, Key, Limit, Org, Price, Principal, Project, Team, Terms, User
from drivetrain.server.admin.kinds import Entity, Kind

ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)
PAGE = 1000
DEFAULT = "default"  # the organisation that is there without anybody having made it


class Office(Protocol):
    """The part of the store that looks things up. Blocks: call it from a thread."""

    def list(
        self, kind: str, filters: Mapping[str, Any] | None = None, *, after: str = "", limit: int = PAGE
    ) -> Sequence[Any]: ...
    def get(self, kind: str, id: str) -> Any:
        """Raises `NotFound`."""


class Sight:
    """What one administrator sees, for the length of one request."""

    def __init__(self, office: Office, who: Principal) -> None:
        self._office = office
        self._who = who
        self._ids: dict[str, set[str]] = {}

    @cached_property
    def everywhere(self) -> bool:
        """A key always belongs to an organisation; who comes without one was let in by the configuration."""
        own = self._who.org
        return not own or any(org.id == own for org in self._office.list("org", {"name": DEFAULT}))

    # --- reading ------------------------------------------------------------------------------------------------------

    def found(self, kind: str, id: str) -> Any:
        """By its id, never by its name: what names mean is not told to whom they do not belong. Raises `NotFound` for
        what is not there, or out of sight."""
        entity = self._office.get(kind, id) if ID.fullmatch(id) else None
        if entity is None or entity.id != id or not (self.everywhere or self._org_of(entity) in (None, self._who.org)):
            raise NotFound(f"there is no {kind} {id[:100]!r}; list them to see their ids")
        return entity

    def listed(self, kind: Kind, filters: Mapping[str, Any], *, after: str, limit: int) -> Sequence[Any]:
        """Those after the id `after`, `limit` of them at most."""
        if self.everywhere or kind == "price":
            return self._office.list(kind, filters, after=after, limit=limit)
        above = {name: filters[name] for name in ("org", "team", "project", "user") if name in filters}
        if any(not ID.fullmatch(id) for id in above.values()) or above.get("org", self._who.org) != self._who.org:
            return ()
        if kind in ("limit", "budget"):
            return self._rules(kind, filters, after=after, limit=limit)
        own = {"id": self._who.org} if kind == "org" else {"org": self._who.org}
        return self._office.list(kind, {**filters, **own}, after=after, limit=limit)

    def _rules(self, kind: Kind, filters: Mapping[str, Any], *, after: str, limit: int) -> Sequence[Any]:
        seen: list[Any] = []
        while page := self._office.list(kind, filters, after=after):
            seen += [rule for rule in page if self.owns(rule.subject, rule.subject_id)]
            after = page[-1].id
            if len(seen) >= limit or len(page) < PAGE:
                break
        return seen[:limit]

    def owns(self, subject: str, id: str) -> bool:
        """Whether the subject of a rule is in sight."""
        return self.everywhere or (id == self._who.org if subject == "org" else id in self._own(subject))

    def _own(self, kind: str) -> Set[str]:
        """Every id of the kind in one's own organisation."""
        if kind not in self._ids:
            self._ids[kind], last = set(), ""
            while page := self._office.list(kind, {"org": self._who.org}, after=last):
                self._ids[kind] |= {entity.id for entity in page}
                last = page[-1].id
        return self._ids[kind]

    def _org_of(self, entity: Entity) -> str | None:
        """None: nobody's in particular."""
        match entity:
            case Org():
                return entity.id
            case Team() | User():
                return entity.org
            case Project():
                return self._org_of(self._office.get("team", entity.team))
            case Key():
                return self._org_of(self._office.get("project", entity.project))
            case Limit() | Budget():
                return self._org_of(self._office.get(entity.subject, entity.subject_id))
            case Price():
                return None

    # --- writing ------------------------------------------------------------------------------------------------------

    def check_new(self, kind: Kind, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is to be made, with its place filled in. Raises `NotFound` for a place out of sight, `Forbidden` for
        what this one may not hand out."""
        self._check_grant(fields.get("scopes", ()))
        if self.everywhere:
            return fields
        self._check_terms(fields.get("terms"), Terms())
        if kind in ("org", "price") or fields.get("subject") == "org":
            raise self._forbidden(f"make a {kind} there" if kind == "org" else f"make such a {kind}")
        if kind in ("team", "user"):
            fields = {"org": self._who.org, **fields}
        if kind == "key" and "project" not in fields:
            fields = {"project": self._who.project, **fields}
        self._check_places(fields)
        return fields

    def _check_places(self, fields: Mapping[str, Any]) -> None:
        for kind in ("org", "team", "project", "user"):
            if id := fields.get(kind):
                self.found(kind, id)
        if "subject_id" in fields:
            self.found(fields["subject"], fields["subject_id"])

    def check_change(self, entity: Entity, fields: Mapping[str, Any] = {}) -> None:
        """Raises `Forbidden` for what this one may see and not write. Also before a deletion."""
        self._check_grant(fields.get("scopes", ()))
        if self.everywhere:
            return
        if isinstance(entity, Org | Price) or (isinstance(entity, Limit | Budget) and entity.subject == "org"):
            raise self._forbidden("change this")
        if not isinstance(entity, Limit | Budget | Price):
            self._check_terms(fields.get("terms"), entity.terms)

    def _check_terms(self, terms: Terms | None, before: Terms) -> None:
        """Whoever pays by what was answered must not choose to pay nothing for it."""
        if terms is not None and terms.on_disconnect == "free" != before.on_disconnect:
            raise Forbidden(
                f"an administrator of organisation {self._who.org!r} may not set on_disconnect 'free', by which answers"
                f" are not billed whose caller left: ask one of {DEFAULT!r}",
                param="terms",
            )

    def check_secret(self, key: Key) -> None:
        """Raises `Forbidden` for a key that can do more than its new secret's reader may."""
        self._check_grant(key.scopes)

    def check_whole(self, what: str) -> None:
        """Raises `Forbidden` for what belongs to no single organisation."""
        if not self.everywhere:
            raise self._forbidden(f"see {what}")

    def _check_grant(self, scopes: Sequence[str]) -> None:
        beyond = sorted(set(scopes) - self._who.scopes)
        if beyond:
            raise Forbidden(f"nobody can give scopes that they lack: {', '.join(beyond)}", param="scopes")

    def _forbidden(self, what: str) -> Forbidden:
        return Forbidden(f"an administrator of organisation {self._who.org!r} may not {what}: ask one of {DEFAULT!r}")
