"""A day of requests: regions that wake one after the other, conversations, bursts, and a rush of one greedy tenant.

The same for every strategy, and for every run with the same seed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import cos, log, pi
from random import Random
from typing import NamedTuple

from drivetrain.governance import Priority

HOUR_S = 3600.0
REGIONS = {"eu": (0.5, 0.0), "us": (0.3, 7.0), "ap": (0.2, -7.0)}  # share of tenants and engines; hours behind
PEAK_HOUR = 14.0
SWING = 0.7  # of the rate, around its mean
BURSTS, BURST_S, BURST_SHARE = 6, 600.0, 0.03  # of the conversations begin in bursts of one tenant each
TENANTS, ZIPF = 200, 0.9
CLASSES: Sequence[tuple[Priority, float]] = (("interactive", 0.2), ("default", 0.6), ("bulk", 0.2))
MEAN_TURNS, MOST_TURNS = 3.0, 20
GREEDY = "greedy"
GREEDY_PROMPTS = 64
RUSH_HOUR = 15.0  # when the greedy tenant sends
RUSH_HOURS = 1.0
READ_PACE = 25.0  # tokens a second, until the next turn is thought of
THOUGHT_S = (10.0, 60.0)  # at least, and more on average
VISIBLE = 0.25  # of an answer is sent back with the next turn; the rest was reasoning
MOST_MEANS = 6  # times the mean answer, at most


class Asked(NamedTuple):
    """One request, as it comes to the gateway."""

    at_s: float
    tenant: str
    priority: Priority
    region: str
    shared: int  # of its system prompt
    shared_tokens: int
    own: int  # of its conversation; odd, as `shared` is: 0 would be none
    prompt_tokens: int  # the system prompt's included
    output_tokens: int
    limit: int  # of the answer, as the request names it; 0: it names none


class Tenant(NamedTuple):
    name: str
    priority: Priority
    region: str
    prompts: Sequence[tuple[int, int]]  # its system prompts, and how long they are


class Plan(NamedTuple):
    """How much comes, and how long the answers are."""

    requests: int
    hours: float  # that the day is squeezed into
    mean_output: float
    rush: int  # requests of the greedy tenant


def day(plan: Plan, chance: Random) -> list[Asked]:
    """In the order in which they come."""
    tenants = [_tenant(number, chance) for number in range(TENANTS)]
    bounds = list(accumulate(1 / (place + 1) ** ZIPF for place in range(TENANTS)))
    clocks = {region: _clock(behind) for region, (_, behind) in REGIONS.items()}
    bursts = [(chance.random() * 24, chance.choice(tenants)) for _ in range(BURSTS)]
    found: list[Asked] = []
    while len(found) < plan.requests - plan.rush:
        tenant = tenants[bisect_right(bounds, chance.random() * bounds[-1])]
        if chance.random() < BURST_SHARE:
            begin, tenant = chance.choice(bursts)
            hour = begin + chance.random() * BURST_S / HOUR_S
        else:
            hour = bisect_right(clocks[tenant.region], chance.random() * clocks[tenant.region][-1]) / 60
            hour += chance.random() / 60
        found += _conversation(tenant, hour * HOUR_S * plan.hours / 24, plan, chance)
    found += _rush(plan, chance)
    found.sort()
    return found


def _tenant(number: int, chance: Random) -> Tenant:
    (priority,) = chance.choices([name for name, _ in CLASSES], [share for _, share in CLASSES])
    (region,) = chance.choices(list(REGIONS), [share for share, _ in REGIONS.values()])
    prompts = [(chance.getrandbits(64) | 1, round(chance.lognormvariate(log(900), 0.8))) for _ in range(1 + number % 3)]
    return Tenant(f"tenant-{number}", priority, region, prompts)


def _clock(behind: float) -> list[float]:
    """The rate of each minute of a day, summed up."""
    return list(
        accumulate(1 + SWING * cos(2 * pi * (minute / 60 - PEAK_HOUR - behind) / 24) for minute in range(24 * 60))
    )


def _conversation(tenant: Tenant, begin_s: float, plan: Plan, chance: Random) -> Iterator[Asked]:
    shared, shared_tokens = chance.choice(tenant.prompts)
    own, said, at_s = chance.getrandbits(64) | 1, 0, begin_s
    end_s = plan.hours * HOUR_S
    for _ in range(_turns(chance)):
        if at_s >= end_s:
            return
        said += round(chance.lognormvariate(log(150), 0.9)) + 1
        output = _output(plan, chance)
        limit = 2 * output if chance.random() < 0.3 else 0
        yield Asked(
            at_s,
            tenant.name,
            tenant.priority,
            tenant.region,
            shared,
            shared_tokens,
            own,
            shared_tokens + said,
            output,
            limit,
        )
        said += round(VISIBLE * output)
        at_s += output / READ_PACE + THOUGHT_S[0] + chance.expovariate(1 / THOUGHT_S[1])


def _turns(chance: Random) -> int:
    return min(MOST_TURNS, 1 + int(log(1 - chance.random()) / log(1 - 1 / MEAN_TURNS)))


def _output(plan: Plan, chance: Random) -> int:
    """Log-normal, with the wanted mean."""
    output = plan.mean_output * chance.lognormvariate(-0.32, 0.8)
    return max(8, min(round(output), round(MOST_MEANS * plan.mean_output)))


def _rush(plan: Plan, chance: Random) -> Iterator[Asked]:
    """One tenant sends within an hour what would take most of the pool by itself; each request stands alone."""
    prompts = [(chance.getrandbits(64) | 1, 400) for _ in range(GREEDY_PROMPTS)]
    begin_s = RUSH_HOUR * HOUR_S * plan.hours / 24
    for _ in range(plan.rush):
        at_s = begin_s + chance.random() * RUSH_HOURS * HOUR_S * plan.hours / 24
        shared, shared_tokens = chance.choice(prompts)
        tokens = shared_tokens + round(chance.lognormvariate(log(400), 0.8)) + 1
        own = chance.getrandbits(64) | 1
        yield Asked(at_s, GREEDY, "default", "eu", shared, shared_tokens, own, tokens, _output(plan, chance), 0)
