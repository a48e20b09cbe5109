"""What budgets had spent before they were counted here: asked of the ledger once, in the background if it is away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from drivetrain.errors import StoreAway
from drivetrain.governance import Rule
from drivetrain.policies import windows
from drivetrain.quota.counters import Purse, RollingPurse

PATIENCE_S = 1.0  # of the first request under a budget; then it goes on with what is known

log = logging.getLogger("drivetrain.quota")


Seed = Callable[[Rule, float, float], Awaitable[int]]
"""What the ledger has under a rule from one instant (inclusive) to another (exclusive), in micro-dollars. Raises
`StoreAway`."""


class _Question:
    __slots__ = ("late", "lock", "purse", "rule", "since_s")

    def __init__(self, rule: Rule, purse: Purse | RollingPurse) -> None:
        self.rule = rule
        self.purse = purse
        self.since_s = purse.from_s if isinstance(purse, Purse) else 0.0  # the window it is about
        self.lock = asyncio.Lock()  # one asks, the others wait for the answer
        self.late = False  # nobody waits any more


class Seeds:
    """Owns the questions to the ledger that have no answer yet."""

    def __init__(self, seed: Seed | None, patience_s: float) -> None:
        self._seed = seed
        self._patience_s = patience_s
        self.awaited: dict[str, _Question] = {}  # by the rule's id

    def expect(self, rule: Rule, purse: Purse | RollingPurse) -> None:
        if self._seed is not None:
            self.awaited[rule.id] = _Question(rule, purse)

    def forget(self, rule_id: str) -> None:
        self.awaited.pop(rule_id, None)

    async def heard(self, rules: Sequence[Rule]) -> None:
        """Return once the budgets among these rules know what was spent, or it is clear that they cannot know now."""
        for rule in rules:
            question = self.awaited.get(rule.id)
            if question is None or question.late:
                continue
            async with question.lock:
                if not question.late and self.awaited.get(rule.id) is question:
                    await self._try(question)

    async def retry(self) -> None:
        for question in [question for question in self.awaited.values() if question.late]:
            async with question.lock:
                await self._try(question)

    async def _try(self, question: _Question) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await self._ask(question)
        except (StoreAway, TimeoutError):
            if not question.late:
                log.warning("a budget of %s goes on without what the ledger has: it is away", question.rule.owner)
            question.late = True
            return
        if self.awaited.get(question.rule.id) is question:
            del self.awaited[question.rule.id]

    async def _ask(self, question: _Question) -> None:
        if self._seed is None:
            return
        rule, purse = question.rule, question.purse
        if isinstance(purse, Purse):
            purse.learn(question.since_s, await self._seed(rule, question.since_s, purse.born_s))
            return
        for at_s, micro_usd in await past(self._seed, rule, purse.born_s, purse.period_s):
            purse.learn(at_s, micro_usd)


async def past(seed: Seed, rule: Rule, until_s: float, period_s: float) -> Sequence[tuple[float, int]]:
    """What was spent in the period up to an instant, in parts, each with an instant of the bucket it was spent in.
    Halves the period only while there is something in it: a budget that was idle costs one question."""
    width_s = period_s / windows.BUCKETS
    end = windows.bucket(until_s, period_s) + 1
    spans = [(end - windows.BUCKETS - 1, end, await seed(rule, (end - windows.BUCKETS - 1) * width_s, until_s))]
    parts = []
    while spans:
        first, end, micro_usd = spans.pop()
        if micro_usd > 0 and end - first == 1:
            parts.append(((first + 0.5) * width_s, micro_usd))
        elif micro_usd > 0:
            middle = (first + end) // 2
            before = await seed(rule, first * width_s, middle * width_s)
            spans += [(first, middle, before), (middle, end, micro_usd - before)]
    return parts
