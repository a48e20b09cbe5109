"""What the ledger knows of the arms of a rollout, read a little further each time, and never more than a page at once.

Blocking; for a thread of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, exists, func, not_, or_, select, text

from drivetrain.errors import EngineRefused
from drivetrain.rollouts.evidence import Evidence, Seen, Tally
from drivetrain.rollouts.plan import SHADOW, SPILL, Rollout
from drivetrain.store.database import Store
from drivetrain.store.tables import attempts, comparisons, rollout_history

PAGE = 5_000  # rows that are read with one statement
MOST = 50_000  # rows of one reading; what is left comes with the next
_OUTCOMES = ("ok", "error", "absorbed")  # of attempts that tell something about an arm
_BEGINNINGS = ("create", "advance", "resume")  # moves with which a stage begins
_ROWS = attempts.c
_COMPARED = comparisons.c


class Sighting:
    """Of one rollout, as it stands in one stage; of an experiment, since it began. Belongs to one thread at a time."""

    def __init__(self, store: Store, rollout: Rollout) -> None:
        self.rollout = rollout
        self.whole = True  # all that there is was read
        self._store = store
        self._arms: Mapping[str, tuple[str, float]] = {}  # by label: arm, and from when on its rows count
        self._tallies: dict[str, Tally] = defaultdict(Tally)
        self._seq = 0
        self._compared = 0

    def read(self, most: int = MOST) -> None:
        """What came since the last reading, but no more than `most` rows. Raises `StoreAway`."""
        self.whole = True
        with self._store.reading() as connection:
            for row in self._pages(connection, self.question(connection), most):
                self._seq = row.seq
                arm, since_s = self._arms[row.rollout]
                if row.started_s >= since_s:
                    _count(self._tallies[arm], row)
            for row in self._pages(connection, self._comparisons(), most):
                self._compared = row.seq
                self._tallies[row.arm].compared(row.value)

    def evidence(self) -> Evidence:
        """For a step of a rollout."""
        baseline, arm = self.rollout.arms[:2]
        return Evidence(baseline=self._tallies[baseline.name].seen(), arm=self._tallies[arm.name].seen())

    def seen(self) -> Mapping[str, Seen]:
        """By the names of the arms."""
        return {arm.name: self._tallies[arm.name].seen() for arm in self.rollout.arms}

    def _pages(self, connection: Connection, asked: Select[Any], most: int) -> Iterator[Row[Any]]:
        column = asked.selected_columns["seq"]
        after, left = (self._compared if column.table is comparisons else self._seq), most
        while page := connection.execute(asked.where(column > after).limit(min(PAGE, left))).all():
            yield from page
            after, left = page[-1].seq, left - len(page)
            if left <= 0:
                break
        self.whole &= left > 0

    def question(self, connection: Connection) -> Select[Any]:
        """For rows of the ledger."""
        since = self._arms = self._arms or _labels(connection, self.rollout)
        columns = (_ROWS.rollout, _ROWS.started_s, _ROWS.outcome, _ROWS.first_token_s, _ROWS.total_s)
        asked = select(_ROWS.seq, *columns, _ROWS.completion_tokens, _ROWS.cost_micro_usd)
        of_these = (text("rollout <> ''"), _ROWS.rollout.in_(since))  # as the index says it
        first_s = min(since_s for _, since_s in since.values())
        told = or_(_ROWS.rollout.not_in(_spilled(self.rollout)), _ROWS.position == 1, _answers_refused(self.rollout))
        refused = (_ROWS.outcome == "rejected", _ROWS.engine != "")  # by an engine, though the baseline had answered it
        refused_copy = and_(_ROWS.rollout.endswith(SHADOW), *refused)
        open_ = and_(_ROWS.outcome == "absorbed", _ROWS.why == EngineRefused.code)  # the baseline's answer will tell
        relevant = (or_(_ROWS.outcome.in_(_OUTCOMES), refused_copy), not_(open_), _ROWS.started_s >= first_s, told)
        return asked.where(*of_these, *relevant).order_by(_ROWS.seq)

    def _comparisons(self) -> Select[Any]:
        asked = select(_COMPARED.seq, _COMPARED.arm, _COMPARED.value)
        these = (_COMPARED.rollout == self.rollout.id, _COMPARED.at_s >= self.rollout.since_s)
        return asked.where(*these).order_by(_COMPARED.seq)


def _labels(connection: Connection, rollout: Rollout) -> Mapping[str, tuple[str, float]]:
    """Which rows are whose: while no caller gets the new arm, its copies of requests tell about it; while all do, the
    baseline is what it was in the stage before. A request that went to the baseline's engines at once, because those of
    the new arm were set aside, or that they answered after those had refused it, is the new arm's failure."""
    since_s = {arm.name: (f"{rollout.id}:{arm.name}", rollout.since_s) for arm in rollout.arms}
    if rollout.stages:
        stage = rollout.stages[rollout.stage]
        baseline, arm = rollout.arms[0].name, rollout.arms[1].name
        if stage.percent <= 0:
            since_s[arm] = (f"{rollout.id}:{arm}{SHADOW}", rollout.since_s)
        if stage.percent >= 100:
            since_s[baseline] = (since_s[baseline][0], _before(connection, rollout))
    spilled = dict.fromkeys(_spilled(rollout), (rollout.arms[1].name, rollout.since_s))
    return {label: (arm, from_s) for arm, (label, from_s) in since_s.items()} | spilled


def _spilled(rollout: Rollout) -> Sequence[str]:
    """The label of requests of the new arm that the baseline's engines took over. Of several arms nobody can tell."""
    return [f"{rollout.id}:{rollout.arms[0].name}{SPILL}"] if rollout.kind == "rollout" else []


def _answers_refused(rollout: Rollout) -> ColumnElement[bool]:
    """Whether the baseline gave an answer to what the new arm had refused as the caller's mistake: it was none. In the
    same visit, for callers may call several requests by one id."""
    earlier = attempts.alias().c
    visit = (earlier.request_id == _ROWS.request_id, earlier.received_s == _ROWS.received_s)
    before = (earlier.rollout == f"{rollout.id}:{rollout.arms[1].name}", earlier.position < _ROWS.position)
    refused = (earlier.why == EngineRefused.code, earlier.outcome == "absorbed")
    return and_(_ROWS.outcome == "ok", exists().where(*visit, *before, *refused))


def _before(connection: Connection, rollout: Rollout) -> float:
    """When the last stage began that left callers at the baseline."""
    columns = rollout_history.c
    whole = next(number for number, stage in enumerate(rollout.stages) if stage.percent >= 100)
    begins = (columns.stage < whole, columns.move.in_(_BEGINNINGS))
    asked = select(func.max(columns.at_s)).where(columns.rollout == rollout.id, *begins)
    found = connection.execute(asked).scalar_one_or_none()
    return rollout.created_s if found is None else float(found)


def _count(tally: Tally, row: Row[Any]) -> None:
    if row.rollout.endswith(SPILL):
        tally.add(failed=True, at_s=row.started_s)
        return
    failed = row.outcome != "ok"
    writing_s = row.total_s - row.first_token_s if row.first_token_s is not None else 0.0
    speed = (row.completion_tokens - 1) / writing_s if row.completion_tokens > 1 and writing_s > 0 else None
    tally.add(
        failed=failed,
        first_token_s=None if failed else row.first_token_s,
        tokens_per_s=None if failed else speed,
        cost_micro_usd=float(row.cost_micro_usd),
        at_s=row.started_s,
    )
