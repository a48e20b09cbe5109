"""What only some policies and rollouts want of a request: a kept answer, a copy for a shadow, the rest of an answer
that breaks off, a second engine beside a slow one. Looked for once, when the request has come in.
"""

from collections.abc import Sequence
from typing import NamedTuple

from drivetrain.config.schema import Policy
from drivetrain.errors import BudgetExceeded
from drivetrain.gateway.cache import Answers, Version, key_of
from drivetrain.gateway.resume import Thread, thread
from drivetrain.gateway.shadow import Copy, Shadows
from drivetrain.gateway.visit import Visit
from drivetrain.types import Event, Request


class Owners(NamedTuple):
    """Of what is kept for longer than a request."""

    answers: Answers
    shadows: Shadows
    version: Version


class Special:
    """Of one request. `see` each batch on its way to the caller, `ended` when all have gone."""

    __slots__ = ("_copy", "_entry", "_heard", "_key", "_owners", "known", "thread")

    def __init__(self, owners: Owners, request: Request, visit: Visit) -> None:
        entry, call = visit.leg.entry, visit.call
        self._owners = owners
        self._entry = entry
        self._key = key_of(entry, request, call, owners.version) if entry.policy.cache.ttl_s else None
        self.known: Sequence[Event] | None = None  # an answer that was given before
        if self._key is not None:
            self.known = owners.answers.find(entry.policy_name, self._key)
        self._copy: Copy | None = None
        if self.known is None and entry.rollout:
            self._copy = owners.shadows.of(entry, request, call)
        self._heard: list[Event] | None = [] if self._key is not None or self._copy is not None else None
        self.thread: Thread | None = thread(request, entry.policy)

    def see(self, events: Sequence[Event]) -> Sequence[Event]:
        """What of these the caller gets."""
        if self.thread is not None:
            events = self.thread.weave(events)
        if self._heard is not None:
            self._heard += events
        return events

    def anew(self) -> None:
        """What was heard so far is thrown away: the answer is begun once more."""
        if self._heard is not None:
            self._heard = []

    def ended(self, visit: Visit) -> None:
        """The caller has the whole answer."""
        row, entry = visit.answered, self._entry
        if self._heard is None or row is None or (row.model, row.rollout) != (entry.name, entry.rollout):
            return  # a fallback or another arm took over
        if row.why == BudgetExceeded.code:
            return  # it was cut short for this caller's want of money
        if self._key is not None:
            self._owners.answers.keep(entry.policy_name, entry.policy.cache, self._key, self._heard)
        if self._copy is not None:
            self._owners.shadows.answered(self._copy, self._heard, row)


def wanted(policy: Policy) -> bool:
    """Whether there may be something special about every request under this policy."""
    return bool(policy.cache.ttl_s or policy.retries.resume or policy.hedge.percent)
