"""Where the commands on governance work: the store of a home, whether a server runs on it or not.

Things are found by their names here, and shown by them; the store knows them by their ids.
"""

import getpass
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from drivetrain import config as configuration
from drivetrain.cli.command import Call, Missing
from drivetrain.config import Config
from drivetrain.config.problems import suggestion
from drivetrain.errors import NotFound
from drivetrain.governance import Attempt, Budget, Change, Key, Limit, Project, Rule, Subject, Team
from drivetrain.rollouts.plan import Prompt, Rollout
from drivetrain.store import AttemptQuery, Store, pepper

if TYPE_CHECKING:
    from drivetrain.store.administration import Administration
    from drivetrain.store.audit import Verdict

DEFAULT = "default"  # the organisation, team and project that there are without anybody having made them
PAGE = 1_000
T = TypeVar("T")


class Office:
    def __init__(self, store: Store, admin: "Administration", config: Config) -> None:
        from drivetrain.store.prompts import Prompts
        from drivetrain.store.rollouts import Rollouts

        self.store = store
        self.rollouts = Rollouts(store)
        self.prompts = Prompts(store)
        self.config = config
        self._admin = admin
        self._by_id = cache(self._all_by_id)  # for one command, which is short

    # --- finding ------------------------------------------------------------------------------------------------------

    def all(self, kind: str, **filters: str) -> list[Any]:
        """In the order in which they were made."""
        return _every(lambda after: self._admin.list(kind, filters, after=after, limit=PAGE), attrgetter("id"))

    def all_rollouts(self, **exact: str) -> list[Rollout]:
        """In the order in which they were made."""
        return _every(lambda after: self.rollouts.list(after=after, limit=PAGE, **exact), attrgetter("id"))

    def in_force(self) -> Mapping[str, Rollout]:
        """By the names of models."""
        from drivetrain.store.rollouts import plan

        with self.store.reading() as connection:
            return plan(connection).rollouts

    def all_prompts(self, name: str | None) -> list[Prompt]:
        """Every version, by name."""
        return _every(lambda after: self.prompts.list(name=name, after=after, limit=PAGE), attrgetter("reference"))

    def find(self, kind: str, word: str) -> Any:
        """By id, name, or path of names. Raises `Missing`, which tells similar names."""
        try:
            return self._admin.get(kind, word)
        except NotFound as error:
            names = {thing.name for thing in self.all(kind) if hasattr(thing, "name")}
            raise Missing(f"there is no {kind} {word!r}{suggestion(word, names)}") from error

    def place(self, team: str | None, project: str | None) -> dict[str, str]:
        """Team and project that were named, as their ids; what is not named need not be there yet."""
        if team is None:
            return {} if project in (None, DEFAULT) else {"project": self.find("project", str(project)).id}
        owner = self.find("team", team)
        if project is None:
            return {"team": owner.id}
        projects = self.all("project", team=owner.id)
        found = [one for one in projects if project in (one.name, one.id)]
        if not found:
            hint = suggestion(project, {one.name for one in projects})
            raise Missing(f"team {owner.name!r} has no project {project!r}{hint}")
        return {"project": found[0].id}

    def name(self, kind: str, id: str) -> str:
        """What is gone has its id left."""
        thing = self._by_id(kind).get(id)
        return thing.name if thing is not None else id

    def team_of(self, key: Key) -> Team:
        project: Project = self._by_id("project")[key.project]
        team: Team = self._by_id("team")[project.team]
        return team

    def _all_by_id(self, kind: str) -> Mapping[str, Any]:
        return {thing.id: thing for thing in self.all(kind)}

    def bearer(self, rule: Limit | Budget) -> str:
        """`team 'search'`"""
        return f"{rule.subject} {self.name(rule.subject, rule.subject_id)!r}"

    def holder(self, row: Attempt) -> str:
        """Whose request it was."""
        if not row.key_id:
            return "none: nobody had to show one"
        team = f" of team {self.name('team', row.team_id)!r}" if row.team_id else ""
        return f"{self.name('key', row.key_id)!r}{team}"

    def binding(self, key: Key) -> list[Limit | Budget]:
        """Limits and budgets of a key and of all that it belongs to."""
        chain = {kind: counted(one) if isinstance(one, Key) else one.id for kind, one in self.chain(key)}
        rules: list[Limit | Budget] = [*self.all("limit"), *self.all("budget")]
        return [rule for rule in rules if chain.get(rule.subject) == rule.subject_id]

    def chain(self, key: Key) -> list[tuple[Subject, Any]]:
        """The key and what is above it, from the nearest to the widest."""
        team = self.team_of(key)
        ids: dict[Subject, str] = {"user": key.user, "project": key.project, "team": team.id, "org": team.org}
        return [("key", key), *((kind, self._by_id(kind)[id]) for kind, id in ids.items() if id)]

    # --- changing -----------------------------------------------------------------------------------------------------

    @property
    def actor(self) -> str:
        return actor()

    def create(self, kind: str, fields: Mapping[str, Any]) -> Any:
        return self._admin.create(kind, fields, actor=actor())

    def change(self, kind: str, thing: Any, fields: Mapping[str, Any]) -> Any:
        """Raises `Conflict` if somebody else has changed it since it was found."""
        return self._admin.update(kind, thing.id, thing.version, fields, actor=actor())

    def remove(self, kind: str, thing: Any) -> None:
        self._admin.delete(kind, thing.id, thing.version, actor=actor())

    def drain(self, engine: str, *, out: bool) -> None:
        """Take an engine out of service, or back in."""
        self._admin.drain(engine, out=out, actor=actor())

    def create_key(self, fields: Mapping[str, Any]) -> tuple[Key, str]:
        return self._admin.create_key(fields, actor=actor())

    def rotate_key(self, key: Key, grace_s: float | None) -> tuple[Key, str]:
        grace_s = self.config.keys.grace_s if grace_s is None else grace_s
        return self._admin.rotate_key(key.id, key.version, grace_s=grace_s, actor=actor())

    def revoke_key(self, key: Key) -> Key:
        return self._admin.revoke_key(key.id, key.version, actor=actor())

    # --- the past -----------------------------------------------------------------------------------------------------

    def attempts(self, request_id: str, limit: int) -> list[Attempt]:
        return self.store.attempts(AttemptQuery(request_id=request_id, limit=limit))

    def spent(self, budget: Budget, from_s: float, until_s: float) -> int:
        """Micro-dollars in the ledger."""
        name = f"{budget.subject}:{budget.subject_id}:{budget.id}"
        rule = Rule(id=name, owner="", resource="money", amount=budget.amount, model=budget.model)
        return self.store.spent(rule, from_s, until_s)

    def audit(self, since_s: float | None, kind: str | None, limit: int) -> list[Change]:
        """So many of the newest lines, oldest first."""
        newest: deque[Change] = deque(maxlen=limit)
        revision = 0
        while page := self._admin.audit(revision, limit=PAGE, kind=kind):
            newest.extend(change for change in page if since_s is None or change.at_s >= since_s)
            revision = page[-1].revision
        return list(newest)

    def verify_audit(self) -> "Verdict":
        return self._admin.verify_audit()


def _every(page: Callable[[str], Sequence[T]], place: Callable[[T], str]) -> list[T]:
    """Of all pages; `page` gives the one behind a place."""
    found: list[T] = []
    while more := page(place(found[-1]) if found else ""):
        found += more
    return found


@contextmanager
def office(call: Call) -> Iterator[Office]:
    """The office of a home. Its store is made where there is none."""
    from drivetrain.store.administration import Administration  # SQLAlchemy takes long to import

    config = configuration.load(configuration.find(call.home), call.environ)
    with opened(call, config) as store:
        yield Office(store, Administration(store, pepper.read(config.keys.pepper, call.home / "state")), config)


@contextmanager
def opened(call: Call, config: Config) -> Iterator[Store]:
    store = Store.open(config.store.url, call.home)
    try:
        yield store
    finally:
        store.close()


def counted(key: Key) -> str:
    """The id under which a key is counted, which stays when it is rotated: that of the first of its line."""
    return key.rotated_from or key.id


def actor() -> str:
    """Who changes something, for the audit."""
    try:
        return f"cli {getpass.getuser()}"
    except (KeyError, OSError):
        return f"cli {os.getuid()}"


def told(value: Any) -> dict[str, Any]:
    """For JSON."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found
