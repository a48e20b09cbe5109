"""How far an answer may go for the money that was set aside for it, where a hard budget pays.

What a request lets expect is set aside before it begins. For an answer that turns out longer more is set aside while it
is written, a slice at a time; where the budget has no more, it ends there, as one that has reached its limit of tokens.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from drivetrain.config.schema import Policy
from drivetrain.gateway.admission import Ticket
from drivetrain.gateway.meter import Meter
from drivetrain.policies import demand, prices
from drivetrain.types import ChoiceFinished, Event, Finished, Request, Usage

TIMED = 64  # tokens between two looks where time has a price


class Purse:
    """Of one attempt. Look into it when there are more `meter.deltas` than `until`."""

    __slots__ = ("_meter", "_request", "_slice", "_ticket", "until")

    def __init__(self, request: Request, policy: Policy, meter: Meter, ticket: Ticket) -> None:
        self._request = request
        self._meter = meter
        self._ticket = ticket
        self._slice = policy.reserve_output_tokens
        limit = demand.answer_tokens(request, output_tokens=0)  # which the engine keeps to
        self.until = limit or demand.answer_tokens(request, output_tokens=policy.reserve_output_tokens) - 1
        if meter.price is not None and (meter.price.second or meter.price.watts):
            self.until = self._slice = min(self.until, TIMED)

    async def spend(self, events: Sequence[Event]) -> Sequence[Event]:
        """The batch that has come this far: as it is if there is money to go on, else with the answer's end, and
        `meter.cut` is set."""
        while self._slice:
            if await self._ticket.affords(self._cost(self._slice)):
                self.until = self._meter.deltas + self._slice - 1
                return events
            self._slice //= 4
        return [*events, *self._end()]

    def _cost(self, more: int) -> int:
        """Micro-dollars, if the answer goes on for so many tokens at its present speed."""
        meter, expected = self._meter, demand.estimate(self._request, output_tokens=1)
        if meter.price is None:
            return 0
        usage = Usage(prompt=expected.prompt, completion=meter.deltas + more)
        seconds = meter.elapsed_s * (1 + more / max(meter.deltas, 1))
        return prices.cost(meter.price, usage, seconds).micro_usd

    def _end(self) -> Sequence[Event]:
        asked, meter = self._request, self._meter
        meter.cut = True
        answers = asked.sampling.n * (len(asked.completion.prompts) if asked.completion else 1)
        end: list[Event] = [ChoiceFinished(index=index, reason="length") for index in range(max(1, answers))]
        end.append(Finished(usage=replace(meter.usage(asked), estimated=True)))
        meter.see(end)
        return end


def purse(request: Request, policy: Policy, meter: Meter, ticket: Ticket) -> Purse | None:
    """None, as mostly: no hard budget pays."""
    for rule in ticket.hold.rules if ticket.hold is not None else ():
        if rule.resource == "money" and rule.hard:
            return Purse(request, policy, meter, ticket)
    return None
