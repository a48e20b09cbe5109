"""Copies of requests that go to a new arm of a rollout after their callers have been answered, and how the answers
compare. No caller sees or waits for one; they have a budget of their own, and are charged to nobody. What they may
cost, and how many may run at once, is counted by the quota: of all processes together, where those share one.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from drivetrain.background import survived
from drivetrain.config.schema import Cache, Hedge, Limits, Queue
from drivetrain.config.schema import Retries as RetryRule
from drivetrain.errors import DrivetrainError
from drivetrain.gateway.admission import Admission
from drivetrain.gateway.arms import Arms
from drivetrain.gateway.attempt import Attempts
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.house import House
from drivetrain.gateway.meter import Call
from drivetrain.gateway.retries import Retries
from drivetrain.gateway.visit import Visit
from drivetrain.gateway.way import Leg
from drivetrain.governance import SCOPES, Attempt, Comparison, Principal, Resource, Rule
from drivetrain.rollouts.plan import Compare, Rollout, Shadow, shadowed
from drivetrain.router import Candidate
from drivetrain.types import Choice, Event, Fold, Request, Response, fold

AFTER = 1000  # positions of copies in a request's trace are beyond those of its attempts
MICRO = 1_000_000
LONGEST = 20_000  # characters of each answer whose similarity is looked at

Choose = Callable[[Entry, Request, Call], Candidate]


class Told(Protocol):
    """Where rows and comparisons go."""

    def attempt(self, attempt: Attempt) -> None: ...
    def compared(self, comparison: Comparison) -> None:
        """A copy of a request was answered."""


class Copy(NamedTuple):
    """A request that is being answered, and is to be copied then."""

    rollout: Rollout
    shadow: Shadow
    model: str  # public name
    request: Request
    call: Call


class _Due(NamedTuple):
    copy: Copy
    heard: Sequence[Event]  # the caller's answer
    row: Attempt  # of it


class Shadows:
    """Owns the copies. `run` sends them, until it is cancelled."""

    def __init__(
        self,
        arms: Arms,
        resolve: Callable[[str], Entry],
        attempts: Attempts,
        house: House,
        told: Told,
        choose: Choose,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._arms = arms
        self._resolve = resolve
        self._attempts = attempts
        admission = Admission(house.admission.quota, _Unheard())
        self._house = house._replace(admission=admission, record=_Aside(told), retries=Retries())
        self._told = told
        self._choose = choose
        self._draw = draw
        self._under_way: dict[str, int] = {}  # by rollout
        self._due: asyncio.Queue[_Due] = asyncio.Queue()

    def of(self, entry: Entry, request: Request, call: Call) -> Copy | None:
        """A copy of this request, if one is to be made. `entry`: that of the arm that answers it."""
        rollout = self._arms.rollout(entry.name)
        shadow = shadowed(rollout) if rollout is not None else None
        if rollout is None or shadow is None or entry.rollout != f"{rollout.id}:{rollout.arms[0].name}":
            return None
        if self.under_way(rollout.id) >= shadow.concurrency or self._draw() * 100 >= shadow.percent:
            return None
        return Copy(rollout, shadow, entry.name, request, call)

    def copied(self, model: str) -> bool:
        """Whether requests of this public name may be copied now."""
        rollout = self._arms.rollout(model)
        return rollout is not None and shadowed(rollout) is not None

    def under_way(self, rollout: str) -> int:
        """How many copies wait or are being answered in this process."""
        return self._under_way.get(rollout, 0)

    def answered(self, copy: Copy, heard: Sequence[Event], row: Attempt) -> None:
        """The caller has the whole answer: the copy may go. Never waits."""
        running = self.under_way(copy.rollout.id)
        if running < copy.shadow.concurrency:
            self._under_way[copy.rollout.id] = running + 1
            self._due.put_nowait(_Due(copy, heard, row))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                due = await self._due.get()
                group.create_task(survived(f"a copy for rollout {due.copy.rollout.id}", partial(self._send, due)))

    async def _send(self, due: _Due) -> None:
        copy = due.copy
        try:
            response, own = await self._answer(copy)
        except DrivetrainError:
            return  # its row tells
        finally:
            self._under_way[copy.rollout.id] -= 1
        value = alike(copy.shadow.compare, fold(due.heard), response)
        self._told.compared(_comparison(copy, due.row, own, value))

    async def _answer(self, copy: Copy) -> tuple[Response, Attempt]:
        entry = self._arms.mirror(plain(self._resolve(copy.model)), copy.rollout, copy.request, copy.call)
        call = Call(
            id=copy.call.id,
            dialect=copy.call.dialect,
            received_s=time.time(),
            who=nobody(copy.rollout, copy.shadow),
            session=copy.call.session,
            alone=True,
            priority="bulk",
        )
        visit, folded = Visit(self._house, copy.request, call), Fold()
        visit.begin(Leg(entry=entry, candidate=self._choose(entry, copy.request, call)), list)
        with visit:
            meter = await visit.reach()
            async with aclosing(self._attempts.generate(copy.request, visit, visit.leg, meter)) as batches:
                async for events in batches:
                    folded.extend(events)
        if visit.answered is None:
            raise RuntimeError("an answer that has ended has a row")
        return folded.response(), visit.answered


class _Unheard:
    """Nobody is told that a copy was not let in: no caller was turned away."""

    def enqueue(self) -> None: ...
    def dequeue(self) -> None: ...
    def refused(self, resource: Resource) -> None: ...


class _Aside:
    """Keeps copies apart from the requests of callers: they are none, and are not counted as such."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def attempt(self, attempt: Attempt) -> None:
        rollout = attempt.rollout.partition(":")[0]
        if not rollout:
            return  # its budget is used up, or nobody could be asked
        place = attempt.position + AFTER
        self._told.attempt(replace(attempt, model=model_of(rollout), position=place, final=False))

    def enter(self) -> None: ...
    def leave(self) -> None: ...


def model_of(rollout: str) -> str:
    """The name under which the ledger has what copies took: that of no model."""
    return f"shadow:{rollout}"


def nobody(rollout: Rollout, shadow: Shadow) -> Principal:
    """Who asks for a copy: somebody with a budget, which counts what the ledger has of its rollout, and with slots."""
    place, owner = f"policy:shadow:{model_of(rollout.id)}", f"shadow of rollout {rollout.id}"
    budget = Rule(
        id=f"{place}:money:total", owner=owner, resource="money", amount=round(shadow.usd * MICRO), per="total"
    )
    slots = Rule(id=f"{place}:concurrency:", owner=owner, resource="concurrency", amount=shadow.concurrency)
    return Principal(name="shadow", scopes=SCOPES, rules=(budget, slots))


def plain(entry: Entry) -> Entry:
    """Without what its policy sets for callers: no limits, no budgets, one attempt, and no wait for a slot."""
    policy = replace(
        entry.policy,
        limits=Limits(),
        budgets=(),
        queue=Queue(size=0),
        retries=RetryRule(max=0),
        hedge=Hedge(),
        cache=Cache(),
    )
    return replace(entry, policy_name="shadow", policy=policy)


def alike(how: Compare, one: Response, other: Response) -> float:
    """How much two answers have in common: from 0 to 1."""
    first, second = one.choices[0], other.choices[0]
    match how:
        case "exact":
            return float(_said(first) == _said(second))
        case "json":
            return float(_object(first) == _object(second) is not None)
        case "similarity":
            return similarity(first, second)


def similarity(first: Choice, second: Choice) -> float:
    """Of words, and of words in a row: twice those that both have, by all that there are."""
    if _said(first) == _said(second):
        return 1.0
    one, other = (_pieces(f"{choice.text[:LONGEST]} {_said(choice)[1] or ''}") for choice in (first, second))
    return 2 * (one & other).total() / max(1, one.total() + other.total())


def _pieces(text: str) -> Counter[tuple[str, ...]]:
    words = text.lower().split()
    return Counter([*((word,) for word in words), *pairwise(words)])


def _said(choice: Choice) -> tuple[str, Sequence[tuple[str, Any]]]:
    """Ids of calls are made up anew for each answer."""
    return choice.text.strip(), [(call.name, _json(call.arguments)) for call in choice.tool_calls]


def _object(choice: Choice) -> Any:
    """The JSON in an answer, or what it wants to call; None if it is neither."""
    return _json(choice.text.strip().removeprefix("```json").removesuffix("```")) or _said(choice)[1] or None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def _comparison(copy: Copy, row: Attempt, own: Attempt, value: float) -> Comparison:
    return Comparison(
        request_id=copy.call.id,
        rollout=copy.rollout.id,
        arm=copy.rollout.arms[1].name,
        at_s=time.time(),
        how=copy.shadow.compare,
        value=value,
        first_token_s=own.first_token_s,
        baseline_first_token_s=row.first_token_s,
        total_s=own.total_s,
        baseline_total_s=row.total_s,
    )
