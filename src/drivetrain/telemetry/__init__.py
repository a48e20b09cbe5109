"""What Drivetrain tells about itself: metrics, lifecycle events, logs. Others hand it values; it sends them there."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from drivetrain.governance import Attempt, Comparison, Resource
from drivetrain.telemetry import cells
from drivetrain.telemetry.logs import Logs, in_request, request_id
from drivetrain.telemetry.metrics import Metrics
from drivetrain.telemetry.notices import EVENTS, Naming, Notices, last_event_id
from drivetrain.types import Notice

__all__ = [
    "EVENTS",
    "Logs",
    "Metrics",
    "Naming",
    "Notices",
    "Telemetry",
    "in_request",
    "last_event_id",
    "metrics_folder",
    "prepare",
    "request_id",
]

log = logging.getLogger("drivetrain.events")


def prepare(home: Path) -> None:
    """Counters start at zero. For a server that starts, before its workers do."""
    cells.clear(metrics_folder(home))


class Telemetry:
    """The three in one, for the gateway, the engines and the library of one process."""

    def __init__(
        self,
        home: Path,
        logs: Logs,
        *,
        account: Callable[[Attempt], None],
        keep: Callable[[Comparison], None] = lambda _: None,
    ) -> None:
        """`account` keeps the row of an attempt, `keep` what comes besides: the ledger's `append` and `keep`."""
        self.logs = logs
        self.metrics = Metrics(metrics_folder(home))
        self.notices = Notices(time.time)
        self._account = account
        self._keep = keep

    def know(self, *, models: Iterable[str] = (), engines: Iterable[str] = ()) -> None:
        """Names that may label a metric: what the configuration and the library hold. Again, as they change."""
        self.metrics.know(models=models, engines=engines)

    def attempt(self, attempt: Attempt) -> None:
        """An attempt is over: count it, and keep its row. Cheap, never waits; from the event loop."""
        self.metrics.observe(attempt)
        self._account(attempt)

    def compared(self, comparison: Comparison) -> None:
        """The answer of a shadow is there: keep how it compared. Cheap, never waits; from the event loop."""
        self._keep(comparison)

    def drained(self, attempts: Sequence[Attempt], backlog: int, lost: int) -> None:
        """Rows that the ledger has taken up, and how it fares: for its thread to call. Writes the access lines."""
        self.logs.access(attempts)
        self.metrics.put("ledger_backlog_rows", backlog)
        self.metrics.put("ledger_lost_rows", lost)

    def notify(self, notice: Notice) -> None:
        """A lifecycle event: to listeners, counters and the log. From any thread; never blocks."""
        notice = self.notices.publish(notice).notice
        self.metrics.notice(notice)
        # Progress is for listeners: a log wants beginnings and ends.
        level = logging.WARNING if notice.error else logging.DEBUG if _is_progress(notice) else logging.INFO
        if log.isEnabledFor(level):
            told = {"model": notice.model, "engine": notice.engine, "error": notice.error}
            log.log(level, notice.name, extra={name: value for name, value in told.items() if value is not None})

    def enter(self) -> None:
        """A request is being answered."""
        self.metrics.add("requests_in_flight", 1)

    def leave(self) -> None:
        self.metrics.add("requests_in_flight", -1)

    def enqueue(self) -> None:
        """A request waits for its turn."""
        self.metrics.add("requests_queued", 1)

    def dequeue(self) -> None:
        self.metrics.add("requests_queued", -1)

    def refused(self, resource: Resource) -> None:
        """A limit or budget did not let a request in."""
        self.metrics.refused(resource)

    def key_refused(self, status: int) -> None:
        """A key was no key (401), or may not do what was asked (403)."""
        self.metrics.key_refused(status)

    def store_away(self, *, away: bool) -> None:
        """Whether this process reaches the database."""
        self.metrics.put("store_away", away)

    def shared_state_away(self, *, away: bool) -> None:
        """Whether this process reaches what replicas count together in."""
        self.metrics.put("shared_state_away", away)

    def close(self) -> None:
        self.metrics.close()


def metrics_folder(home: Path) -> Path:
    """Where the processes of a server share their figures."""
    return home / "state" / "metrics"


def _is_progress(notice: Notice) -> bool:
    return notice.name == "download.progress" or (notice.name == "model.loading" and notice.fraction is not None)
