"""What administrators read: usage, traces, the audit, what limits and budgets have used, the configuration."""

import asyncio
import csv
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, get_args

import msgspec

from drivetrain.config import Config
from drivetrain.config.secrets import shown
from drivetrain.errors import BadRequest, Forbidden, NotFound
from drivetrain.governance import ANYBODY, Attempt, Change, Principal
from drivetrain.server.admin import query
from drivetrain.server.admin.sight import Office, Sight
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes
from drivetrain.store import AttemptQuery, Body, ConfigRevision, Dimension, UsageQuery, UsageRow

Open = Callable[[], "Audit"]
CSV = b"text/csv; charset=utf-8"
SUBJECTS = ("key", "user", "project", "team", "org")
FILTERS = (*SUBJECTS, "model", "engine", "outcome")
NO_STORE = ((b"cache-control", b"no-store"),)
MOST_ATTEMPTS = 1000  # of one request
Spent = Callable[[], Awaitable[Mapping[str, int]]]


class Audit(Office, Protocol):
    """The part of the store that keeps who changed what. Blocks."""

    def audit(
        self, since: int = 0, *, limit: int = 1000, kind: str | None = None, object_id: str | None = None
    ) -> Sequence[Change]: ...
    def verify_audit(self) -> Any: ...


class Ledger(Protocol):
    """The part of the store that knows what was asked and what it cost. Blocks."""

    def attempts(self, query: AttemptQuery) -> Sequence[Attempt]: ...
    def usage(self, query: UsageQuery) -> Sequence[UsageRow]: ...
    def body(self, request_id: str) -> Body | None: ...
    def config(self, revision: int) -> ConfigRevision | None: ...
    def configs(self, limit: int = 100) -> Sequence[ConfigRevision]: ...


class Reports:
    """Answers from the ledger, the audit and the configuration in force."""

    def __init__(self, audit: Open, ledger: Ledger, config: Callable[[], Config], spent: Spent | None = None) -> None:
        """`audit` gives the administration, when a thread first needs it; `spent` tells, by the id of each rule, what
        is used and reserved of it now."""
        self._audit = audit
        self._ledger = ledger
        self._config = config
        self._spent = spent

    def join(self, table: Routes, base: str) -> None:
        table.add("GET", f"{base}/usage", self.usage, scope="admin")
        table.add("GET", "/v1/usage", self.own_usage, scope="usage")
        table.under("GET", f"{base}/traces/", self.trace, scope="admin")
        table.add("GET", f"{base}/audit", self.changes, scope="admin")
        table.add("GET", f"{base}/audit/verify", self.verify, scope="admin")
        table.add("GET", f"{base}/spent", self.spent, scope="admin")
        table.add("GET", f"{base}/config", self.config, scope="admin")
        table.add("GET", f"{base}/config/revisions", self.revisions, scope="admin")
        table.under("GET", f"{base}/config/revisions/", self.revision, scope="admin")

    # --- the ledger ---------------------------------------------------------------------------------------------------

    async def usage(self, exchange: Exchange) -> None:
        """What requests came to, by key, team, model, day, …: of one's own organisation, or of all."""
        given = query.parameters(exchange, ("by", "since", "until", "format", *FILTERS))

        def work() -> Sequence[UsageRow]:
            return self._ledger.usage(self._usage_query(given, self._bounds(exchange.who)))

        await _answer_usage(exchange, given, await asyncio.to_thread(work))

    async def own_usage(self, exchange: Exchange) -> None:
        """As `usage`, for whoever asks and nobody else."""
        given = query.parameters(exchange, ("by", "since", "until", "format", "model", "engine", "outcome"))
        asked = self._usage_query(given, _own(exchange.who))
        await _answer_usage(exchange, given, await asyncio.to_thread(self._ledger.usage, asked))

    def _usage_query(self, given: Mapping[str, str], bounds: Mapping[str, str]) -> UsageQuery:
        filters = {name: given[name] for name in FILTERS if name in given}
        return UsageQuery(
            group_by=_dimensions(given.get("by", "")),
            since_s=query.instant(given.get("since"), "since"),
            until_s=query.instant(given.get("until"), "until"),
            **{**filters, **bounds},
        )

    def _bounds(self, who: Principal) -> Mapping[str, str]:
        return {} if Sight(self._audit(), who).everywhere else {"org": who.org}

    async def trace(self, exchange: Exchange, request_id: str) -> None:
        """Every attempt that was made for a request, and what was said if that was kept."""

        def work() -> tuple[Sequence[Attempt], Body | None]:
            bounds = self._bounds(exchange.who)
            rows = self._ledger.attempts(AttemptQuery(request_id=request_id, limit=MOST_ATTEMPTS))
            seen = [row for row in rows if not bounds or row.org_id == bounds["org"]]
            # Callers choose ids of requests: somebody else's may have had the same one.
            return seen, self._ledger.body(request_id) if seen and len(seen) == len(rows) else None

        rows, body = await asyncio.to_thread(work)
        if not rows:
            raise NotFound(f"no request {request_id[:100]!r} in the ledger; it is there some seconds after its end")
        ordered = sorted(rows, key=lambda row: (row.position, row.started_s))
        told = {"request_id": request_id, "attempts": ordered, "body": body}
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    # --- the audit ----------------------------------------------------------------------------------------------------

    async def changes(self, exchange: Exchange) -> None:
        """Lines of the audit after a revision, oldest first."""
        given = query.parameters(exchange, ("since", "limit", "kind", "object_id"))
        since = query.number(given.get("since", "0"), "since", 0, 2**53)
        limit = query.number(given.get("limit", str(query.USUAL)), "limit", 1, query.MOST)
        kind, object_id = given.get("kind"), given.get("object_id")

        def work() -> Sequence[Change]:
            audit = self._audit()
            Sight(audit, exchange.who).check_whole("the audit")
            return audit.audit(since, limit=limit + 1, kind=kind, object_id=object_id)

        lines = await asyncio.to_thread(work)
        more, data = len(lines) > limit, lines[:limit]
        told = {"object": "list", "data": data, "has_more": more, "next": data[-1].revision if more else None}
        await exchange.respond(200, msgspec.json.encode(told))

    async def verify(self, exchange: Exchange) -> None:
        """Whether the audit is as it was written."""

        def work() -> Any:
            audit = self._audit()
            Sight(audit, exchange.who).check_whole("the audit")
            return audit.verify_audit()

        verdict = await asyncio.to_thread(work)
        await exchange.respond(200, msgspec.json.encode(verdict))

    # --- what is in force ---------------------------------------------------------------------------------------------

    async def spent(self, exchange: Exchange) -> None:
        """By rule, what limits and budgets have used, reservations included."""
        used = await self._spent() if self._spent is not None else {}

        def work() -> Mapping[str, int]:
            sight = Sight(self._audit(), exchange.who)
            return {id: amount for id, amount in used.items() if sight.everywhere or _is_of(sight, id)}

        seen = await asyncio.to_thread(work)
        data = [{"rule": id, "used": amount} for id, amount in sorted(seen.items())]
        await exchange.respond(200, msgspec.json.encode({"object": "list", "data": data}))

    async def config(self, exchange: Exchange) -> None:
        """The configuration in force, every default included, without secrets."""
        await self._check_whole(exchange, "the configuration")
        told = shown(msgspec.to_builtins(self._config()), ())
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    async def revisions(self, exchange: Exchange) -> None:
        """Which configurations there were, newest first."""
        given = query.parameters(exchange, ("limit",))
        limit = query.number(given.get("limit", str(query.USUAL)), "limit", 1, query.MOST)
        await self._check_whole(exchange, "the configuration")
        found = await asyncio.to_thread(self._ledger.configs, limit)
        await exchange.respond(200, msgspec.json.encode({"object": "list", "data": [_heading(one) for one in found]}))

    async def revision(self, exchange: Exchange, number: str) -> None:
        """One configuration as it was written. Secrets in it that are not references can be read here."""
        asked = query.number(number, "revision", 1, 2**53)
        await self._check_whole(exchange, "the configuration")
        found = await asyncio.to_thread(self._ledger.config, asked)
        if found is None:
            raise NotFound(f"there is no revision {asked} of the configuration; /admin/v1/config/revisions lists them")
        await exchange.respond(200, msgspec.json.encode(found), headers=NO_STORE)

    async def _check_whole(self, exchange: Exchange, what: str) -> None:
        await asyncio.to_thread(lambda: Sight(self._audit(), exchange.who).check_whole(what))


def _dimensions(by: str) -> tuple[Dimension, ...]:
    wanted = tuple(part.strip() for part in by.split(",") if part.strip())
    known: tuple[Dimension, ...] = get_args(Dimension)
    found = tuple(dimension for name in wanted for dimension in known if dimension == name)
    if len(found) != len(wanted) or len(set(wanted)) != len(wanted):
        raise BadRequest(f"by={by[:100]!r}: some of {', '.join(known)}, separated by commas, each once", param="by")
    return found


def _own(who: Principal) -> Mapping[str, str]:
    """Of a key, its own; of who has none, that of the user. Raises `Forbidden` for who is neither."""
    if who is ANYBODY:
        return {}
    if not who.key_id and not who.user:
        raise Forbidden("usage is of keys and users, and you come with neither; /admin/v1/usage has that of all")
    return {"key": who.key_id} if who.key_id else {"user": who.user}


def _is_of(sight: Sight, rule: str) -> bool:
    """Rules are called `subject:subject_id:…`; those of policies belong to nobody in particular."""
    subject, _, rest = rule.partition(":")
    return subject in SUBJECTS and sight.owns(subject, rest.partition(":")[0])


def _heading(revision: ConfigRevision) -> Mapping[str, Any]:
    return {"revision": revision.revision, "at_s": revision.at_s, "actor": revision.actor, "hash": revision.hash}


async def _answer_usage(exchange: Exchange, given: Mapping[str, str], rows: Sequence[UsageRow]) -> None:
    form = given.get("format", "json")
    if form not in ("json", "csv"):
        raise BadRequest(f"format={form[:100]!r}: json or csv", param="format")
    if form == "csv":
        await exchange.respond(200, as_csv(rows, _dimensions(given.get("by", ""))), CSV)
        return
    told = {"requests": sum(row.requests for row in rows), "rows": rows}
    await exchange.respond(200, msgspec.json.encode(told))


def as_csv(rows: Sequence[UsageRow], by: Sequence[Dimension]) -> bytes:
    """RFC 4180, with a header line."""
    names = [*by, *(name for name in UsageRow.__struct_fields__ if name not in get_args(Dimension))]
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([cell(getattr(row, name)) for name in names] for row in rows)
    return file.getvalue().encode()


def cell(value: str | int) -> str | int:
    """Of CSV. Spreadsheets run what begins like a formula, and models may be called anything."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
