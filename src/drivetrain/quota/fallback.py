"""What counts while the shared state is away: each rule as its `on_loss` says."""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from drivetrain.errors import StoreAway
from drivetrain.governance import Rule
from drivetrain.quota import Demand, Hold, Refusal, Standing
from drivetrain.quota.memory import MemoryQuota
from drivetrain.quota.seeds import Seed


class Fallback:
    """Owns the share of this process, from one loss of the shared state to its return. `used` is how much of each rule
    was used when it was last heard of."""

    def __init__(
        self,
        *,
        seed: Seed | None,
        clock: Callable[[], float],
        replicas: int,
        used: Mapping[str, int],
        patience_s: float,
    ) -> None:
        self._seed = seed
        self._replicas = replicas
        self._used = used
        asked = self._spent if seed is not None else None
        self._memory = MemoryQuota(asked, clock, patience_s=patience_s, prior=self._prior)

    async def reserve(self, rules: Sequence[Rule], demand: Demand) -> Hold | Refusal:
        """A hold of the rules that are shared out, or a refusal by the rule as it was written."""
        for rule in rules:
            if rule.on_loss == "closed" and rule.hard:
                return Refusal(rule=rule, wait_s=None, degraded=True)
        shared = {rule.id: rule for rule in rules if rule.on_loss != "open"}
        answer = await self._memory.reserve([self._share(rule) for rule in shared.values()], demand)
        if isinstance(answer, Refusal):
            return Refusal(rule=shared[answer.rule.id], wait_s=answer.wait_s, degraded=True)
        standings = [
            Standing(rule=shared[each.rule.id], remaining=each.remaining, reset_s=each.reset_s)
            for each in answer.standings
        ]
        return Hold(id=answer.id, rules=answer.rules, demand=demand, at_s=answer.at_s, standings=standings)

    async def cover(self, rules: Sequence[Rule], micro_usd: int) -> Hold | Refusal:
        """More money for a request that is inside already."""
        money = [rule for rule in rules if rule.resource == "money"]
        return await self.reserve(money, Demand(micro_usd=micro_usd))

    def adopt(self, rules: Sequence[Rule]) -> Hold | None:
        """A request that was let in before: it has its slots, whatever the share is."""
        slots = [self._share(rule) for rule in rules if rule.resource == "concurrency" and rule.on_loss == "share"]
        return self._memory.force(slots, Demand()) if slots else None

    def settle(self, hold: Hold, spent: Demand) -> None:
        self._memory.settle(hold, spent)

    async def retry(self) -> None:
        await self._memory.retry()

    def _share(self, rule: Rule) -> Rule:
        return msgspec.structs.replace(rule, amount=max(1, rule.amount // self._replicas))

    def _part(self, amount: int) -> int:
        return math.ceil(amount / self._replicas)

    def _prior(self, rule: Rule) -> int:
        """Slots are adopted, each with its request; what was spent, the ledger knows better, if there is one."""
        if rule.resource == "concurrency" or (rule.resource == "money" and self._seed is not None):
            return 0
        return self._part(self._used.get(rule.id, 0))

    async def _spent(self, rule: Rule, from_s: float, until_s: float) -> int:
        if self._seed is None:
            return 0
        try:
            return self._part(await self._seed(rule, from_s, until_s))
        except StoreAway:
            if rule.id not in self._used or rule.rolling:
                raise
            return self._part(self._used[rule.id])
