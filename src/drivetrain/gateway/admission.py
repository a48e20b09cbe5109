"""The owner of the counts behind the policies: who is running, who waits, what a minute has already used."""

import asyncio
import time
from collections import deque

from drivetrain import policies
from drivetrain.config.schema import Policy
from drivetrain.errors import Busy, RateLimited
from drivetrain.gateway.meter import Meter
from drivetrain.types import EmbedRequest, Request


class Gate:
    """One policy's state. Its slots are passed on in the order in which callers came."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._requests_s = 0.0  # theoretical arrival times, see `policies`
        self._tokens_s = 0.0

    async def enter(self) -> None:
        """Take a slot; pair it with `leave` in a `finally`.

        Raises `RateLimited` with the exact time to wait, or `Busy` if the queue is full or slow.
        """
        self._count_request()
        await self._take_slot()

    @property
    def full(self) -> bool:
        """Whether who comes now has to wait, or is refused."""
        return self.policy.limits.concurrency is not None and self.running >= self.policy.limits.concurrency

    def spent(self, meter: Meter, request: Request | EmbedRequest) -> None:
        """Charge an answer's tokens, known only now."""
        if (per_minute := self.policy.limits.tokens_per_minute) is not None:
            usage = meter.usage(request)
            cost = usage.prompt + usage.completion
            self._tokens_s = policies.charge(self._tokens_s, time.monotonic(), per_minute=per_minute, cost=cost)

    def _count_request(self) -> None:
        now_s, limits = time.monotonic(), self.policy.limits
        if limits.tokens_per_minute is not None and (wait_s := policies.debt_s(self._tokens_s, now_s)):
            raise self._refusal(f"{limits.tokens_per_minute} tokens", wait_s)
        if limits.requests_per_minute is not None:
            verdict = policies.take(self._requests_s, now_s, per_minute=limits.requests_per_minute)
            if not verdict.allowed:
                raise self._refusal(f"{limits.requests_per_minute} requests", verdict.wait_s)
            self._requests_s = verdict.arrival_s

    def _refusal(self, what: str, wait_s: float) -> RateLimited:
        return RateLimited(
            f"policy {self.name!r} allows {what} per minute; try again in {wait_s:.1f} s", retry_after_s=wait_s
        )

    async def _take_slot(self) -> None:
        limit = self.policy.limits.concurrency
        if limit is None or self.running < limit:
            self.running += 1
            return
        queue = self.policy.queue
        if len(self.waiting) >= queue.size:
            raise Busy("server busy, please try again.  maximum pending requests exceeded", retry_after_s=1.0)
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(queue.timeout_s):
                await turn
        except TimeoutError:
            self._give_up(turn)
            raise Busy(f"no slot of policy {self.name!r} within {queue.timeout_s:g} s", retry_after_s=1.0) from None
        except asyncio.CancelledError:
            self._give_up(turn)
            raise

    def _give_up(self, turn: "asyncio.Future[None]") -> None:
        if turn in self.waiting:
            self.waiting.remove(turn)
        elif turn.done() and not turn.cancelled():
            self.leave()  # the slot came at the same moment: pass it on

    def leave(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the slot changes hands, `running` stays
                return
        self.running -= 1


class Admission:
    """One gate per policy and public model name: a policy's limits hold for each model that uses it."""

    def __init__(self) -> None:
        self._gates: dict[tuple[str, str], Gate] = {}

    def gate(self, model: str, name: str, policy: Policy) -> Gate:
        gate = self._gates.get((name, model))
        if gate is None:
            gate = self._gates[name, model] = Gate(name, policy)
        elif gate.policy is not policy:  # the configuration changed; who is inside stays counted
            gate.policy = policy
        return gate
