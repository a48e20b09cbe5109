"""What administrators read: usage, traces, the audit, what limits and budgets have used, the configuration."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, get_args

import msgspec

from drivetrain.config import Config
from drivetrain.errors import BadRequest, Forbidden, ModelNotFound, NotFound
from drivetrain.gateway import Gateway
from drivetrain.governance import ANYBODY, Attempt, Change, Principal
from drivetrain.server.admin import query, tables
from drivetrain.server.admin.configuration import Configuration, PutBack, Revisions, no_file
from drivetrain.server.admin.sight import Office, Sight
from drivetrain.server.admin.writes import NO_STORE
from drivetrain.server.dryrun import dry_run, facts_on_record
from drivetrain.server.exchange import Exchange
from drivetrain.server.routing import Routes
from drivetrain.store import AttemptQuery, Body, Dimension, UsageQuery, UsageRow, timeline

Open = Callable[[], "Audit"]
SUBJECTS = ("key", "user", "project", "team", "org")
FILTERS = (*SUBJECTS, "model", "engine", "outcome")
MOST_ATTEMPTS = 1000  # of one request
Spent = Callable[[], Awaitable[Mapping[str, int]]]


class Audit(Office, Protocol):
    """The part of the store that keeps who changed what. Blocks."""

    def audit(
        self, since: int = 0, *, limit: int = 1000, kind: str | None = None, object_id: str | None = None
    ) -> Sequence[Change]: ...
    def verify_audit(self) -> Any: ...


class Ledger(Revisions, Protocol):
    """The part of the store that knows what was asked, what it cost, and which configurations there were. Blocks."""

    def attempts(self, query: AttemptQuery) -> Sequence[Attempt]: ...
    def usage(self, query: UsageQuery) -> Sequence[UsageRow]: ...
    def body(self, request_id: str) -> Body | None: ...


class Reports:
    """Answers from the ledger, the audit and the configuration in force."""

    def __init__(
        self,
        audit: Open,
        ledger: Ledger,
        config: Callable[[], Config],
        gateway: Gateway,
        spent: Spent | None = None,
        put_back: PutBack = no_file,
    ) -> None:
        """`audit` gives the administration, when a thread first needs it; `gateway` tells where a request would go;
        `spent` tells, by the id of each rule, what is used and reserved of it now; `put_back` makes an earlier
        configuration the one in force."""
        self._audit = audit
        self._ledger = ledger
        self._gateway = gateway
        self._spent = spent
        self._configuration = Configuration(audit, ledger, config, put_back)

    def join(self, table: Routes, base: str) -> None:
        table.add("GET", f"{base}/usage", self.usage, scope="admin")
        table.add("GET", "/v1/usage", self.own_usage, scope="usage")
        table.under("GET", f"{base}/traces/", self.trace, scope="admin")
        table.under("GET", f"{base}/explain/", self.explain, scope="admin")
        table.add("GET", f"{base}/audit", self.changes, scope="admin")
        table.add("GET", f"{base}/audit/verify", self.verify, scope="admin")
        table.add("GET", f"{base}/spent", self.spent, scope="admin")
        self._configuration.join(table, base)

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
        """A request's life, step by step, every attempt that was made for it, and what was said if that was kept."""

        def work() -> tuple[Sequence[Attempt], Body | None]:
            seen, whole = self._attempts(exchange.who, request_id)
            return seen, self._ledger.body(request_id) if whole else None

        rows, body = await asyncio.to_thread(work)
        life = timeline.life(rows)
        told = {**msgspec.structs.asdict(life), "timeline": timeline.told(life.steps), "body": body}
        del told["steps"]
        await exchange.respond(200, msgspec.json.encode(told), headers=NO_STORE)

    async def explain(self, exchange: Exchange, request_id: str) -> None:
        """What was chosen for a request then, and who would be for one like it now; members tell what the ledger does
        not know of it. `now` is null where its model is no more."""
        rows, _ = await asyncio.to_thread(self._attempts, exchange.who, request_id)
        life = timeline.life(rows)
        asked = dry_run(exchange, life.model, facts_on_record(rows))
        try:
            now = await self._gateway.explain(life.model, *asked)
        except ModelNotFound:
            now = None
        told = {"request_id": request_id, "model": life.model, "received_s": life.received_s}
        await exchange.respond(200, msgspec.json.encode({**told, "then": life.attempts, "now": now}), headers=NO_STORE)

    def _attempts(self, who: Principal, request_id: str) -> tuple[Sequence[Attempt], bool]:
        """Those of a request that somebody may see, at least one, and whether that is all of them: callers choose ids
        of requests, and somebody else's may have had the same one. Raises `NotFound`."""
        bounds = self._bounds(who)
        rows = self._ledger.attempts(AttemptQuery(request_id=request_id, limit=MOST_ATTEMPTS))
        seen = [row for row in rows if not bounds or row.org_id == bounds["org"]]
        if not seen:
            raise NotFound(f"no request {request_id[:100]!r} in the ledger; it is there some seconds after its end")
        return seen, len(seen) == len(rows)

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
        await exchange.respond(200, msgspec.json.encode(query.listing(lines, limit, by="revision")))

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


async def _answer_usage(exchange: Exchange, given: Mapping[str, str], rows: Sequence[UsageRow]) -> None:
    form, by = given.get("format", "json"), _dimensions(given.get("by", ""))
    match form:
        case "json":
            told = {"requests": sum(row.requests for row in rows), "rows": rows}
            await exchange.respond(200, msgspec.json.encode(told))
        case "csv":
            await exchange.respond(200, tables.as_csv(rows, by), tables.CSV)
        case "parquet":
            await exchange.respond(200, await asyncio.to_thread(tables.as_parquet, rows, by), tables.PARQUET)
        case _:
            raise BadRequest(f"format={form[:100]!r}: json, csv or parquet", param="format")
