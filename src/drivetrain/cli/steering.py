"""Rollouts on their way, looked at every few seconds: moved on or rolled back by what the ledger knows of them.

Of several replicas, one does it. Who only believes to do no harm: a move is refused for a rollout that has moved since.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync

from drivetrain.background import each
from drivetrain.config.schema import Rollouts as Terms
from drivetrain.errors import Conflict, NotFound, StoreAway
from drivetrain.rollouts.experiments import compared
from drivetrain.rollouts.plan import Plan, Rollout
from drivetrain.rollouts.step import step
from drivetrain.store import Store
from drivetrain.store.exporting import Lead
from drivetrain.types import Notice

if TYPE_CHECKING:
    from drivetrain.store.evidence import Sighting

ACTOR = "drivetrain"  # who moves rollouts, for the audit
log = logging.getLogger("drivetrain.rollouts")


class Steering:
    """One for each server. `run` it in the background."""

    def __init__(self, store: Store, plan: Callable[[], Plan], terms: Callable[[], Terms]) -> None:
        self._store = store
        self._plan = plan
        self._terms = terms
        self._lead = Lead(store, "rollouts")
        self._pilot: Pilot | None = None
        self._away = False

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await anyio.sleep(self._terms().every_s)
                running = _running(self._plan())
                await run_sync(self._try_to_steer, running)
        finally:
            with anyio.CancelScope(shield=True):
                await run_sync(self._lead.release)

    def _try_to_steer(self, running: Sequence[Rollout]) -> None:
        if not running:
            self._lead.release()
            return
        try:
            if self._leads():
                self._pilot = self._pilot or Pilot(self._store)
                self._pilot.look(running, time.time())
        except StoreAway as error:
            if not self._away:
                log.warning("rollouts stay where they are: %s", error.message)
            self._away = True
        else:
            self._away = False

    def _leads(self) -> bool:
        if self._lead.held():
            return True
        self._lead.release()
        self._pilot = None  # somebody else may have moved them
        return self._lead.take()


class Pilot:
    """Looks at rollouts, and moves them. Remembers what it has read of them."""

    def __init__(self, store: Store) -> None:
        from drivetrain.store.evidence import Sighting  # SQLAlchemy takes long to import
        from drivetrain.store.rollouts import Rollouts

        self._store = store
        self._rollouts = Rollouts(store)
        self._sighting = Sighting
        self._seen: dict[str, Sighting] = {}  # by id of the rollout

    def look(self, running: Sequence[Rollout], now_s: float) -> None:
        """Move those that are to be moved. Blocks; raises `StoreAway`."""
        self._seen = {one.id: self._sight(one) for one in running}
        each(self._seen.values(), partial(self._look_at, now_s))

    def _look_at(self, now_s: float, sighting: "Sighting") -> None:
        sighting.read()
        if sighting.whole:
            self._steer(sighting.rollout, sighting, now_s)

    def _sight(self, rollout: Rollout) -> "Sighting":
        known = self._seen.get(rollout.id)
        if known is not None and (known.rollout.stage, known.rollout.since_s) == (rollout.stage, rollout.since_s):
            known.rollout = rollout  # its guards may be others
            return known
        return self._sighting(self._store, rollout)

    def _steer(self, rollout: Rollout, sighting: "Sighting", now_s: float) -> None:
        taken = step(rollout, sighting.evidence(), now_s)
        if taken.move is None:
            return
        told = {"guards": taken.verdicts, "arms": compared(rollout, sighting.seen()).arms}
        try:
            self._rollouts.move(rollout.id, rollout.version, taken.move, why=taken.why, actor=ACTOR, evidence=told)
        except (Conflict, NotFound) as error:  # somebody was faster: the plan will tell
            log.info("rollout %s stays: %s", rollout.id, error.message)


def _running(plan: Plan) -> list[Rollout]:
    return [one for one in plan.rollouts.values() if one.state == "running" and one.kind == "rollout"]


def moves(before: Plan, after: Plan) -> Iterator[Notice]:
    """What to tell listeners when another plan is in force."""
    for model in sorted(before.rollouts.keys() | after.rollouts.keys()):
        was, now = before.rollouts.get(model), after.rollouts.get(model)
        if (was and (was.id, was.version)) != (now and (now.id, now.version)):
            yield Notice(name="rollout.moved", model=model)
