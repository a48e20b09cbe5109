"""The choice where a policy looks at one thing above all: the first token, the pace, or the price. Pure.

All targets are looked at, or four that are drawn from more than eight. For the first token and the pace the one goes
first that is expected to be soonest, behind its work in hand. For the price two are drawn, each as often as the square
of its price is low, and the one with less work for its share goes first: so a cheap engine gets most of the requests,
never all, and gives some up when it is much slower than the others.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from drivetrain.config.schema import Goal
from drivetrain.router.case import Case
from drivetrain.router.estimates import FIXED_TOKENS
from drivetrain.router.field import Seen, load, why
from drivetrain.router.hat import NEAR_S, Reasoned
from drivetrain.router.standing import Facts
from drivetrain.router.terms import Terms

START_TOKENS = 32  # of an answer, that a caller waits for who wants it to begin soon
CHEAPEST = 1 / 30  # of the dearest price: whoever costs less counts as costing so much
SLOW = 4.0  # times as slow as the soonest, from which on the price is not all that counts
WORDS: Mapping[Goal, str] = {
    "balanced": "done in {:.3g} s",
    "latency": "begins in {:.3g} s",
    "throughput": "{:.3g} s for a token",
}

UNMEASURED: Mapping[Goal, str] = {
    "balanced": "time not measured yet",
    "latency": "first token not measured yet",
    "throughput": "pace not measured yet",
}


def looked_at(facts: Facts, goal: Goal) -> tuple[int, int]:
    """Of how many tokens of a prompt, and of an answer, a goal looks at the time."""
    prompt, answer = FIXED_TOKENS + facts.prompt_tokens, facts.output_tokens
    if goal == "latency":
        return prompt, min(START_TOKENS, answer)
    return (0, 1) if goal == "throughput" else (prompt, answer)


def scores(seen: Sequence[Seen], facts: Facts, terms: Terms) -> list[float]:
    """Of each, for the policy's goal: least is best."""
    goal = terms.wish.goal
    prompt, answer = looked_at(facts, goal)
    speeds = [standing.speed for _, standing in seen]
    times = [0.0 if speed is None else speed.prompt_s * prompt + speed.token_s * answer for speed in speeds]
    if not all(times):  # one that is not measured is taken for the fastest
        usual_s = min(filter(None, times), default=1.0)
        times = [time_s or usual_s for time_s in times]
    behind = [time_s * (1 + load(each)) for each, time_s in zip(seen, times, strict=True)]
    return dear(seen, behind, terms) if goal == "cost" else behind


def dear(seen: Sequence[Seen], behind: Sequence[float], terms: Terms) -> list[float]:
    """The squares of what the request costs, in those of the dearest, more where it takes very long."""
    prices = [terms.micro_usd(target) or 0.0 for target, _ in seen]
    most, long_s = max(prices, default=0.0) or 1.0, SLOW * min(behind, default=0.0) + NEAR_S
    least = CHEAPEST * most
    return [
        ((price if price > least else least) / most * (time_s / long_s if time_s > long_s else 1.0)) ** 2
        for price, time_s in zip(prices, behind, strict=True)
    ]


def chosen(seen: Sequence[Seen], case: Case) -> Reasoned:
    """The one to go first, of at least one, and why. An engine on trial goes before all others."""
    for each in seen:
        if each[1].state == "trial":
            return each, why(each)
    terms = case.terms
    found = scores(seen, case.facts, terms)
    if terms.wish.goal == "cost":
        return _cheap(seen, found, case)
    score = min(found)
    best = seen[found.index(score)]
    words = WORDS[terms.wish.goal].format(score) if _measured(best, case) else UNMEASURED[terms.wish.goal]
    return best, f"{words}, load {load(best):.3g}"


def _measured(seen: Seen, case: Case) -> bool:
    """What the goal looks at. Nobody is told a number that was made up."""
    speed = seen[1].speed
    return speed is not None and (case.terms.wish.goal != "throughput" or speed.token_s > 0)


def _cheap(seen: Sequence[Seen], found: Sequence[float], case: Case) -> Reasoned:
    chances = [target.weight / score for (target, _), score in zip(seen, found, strict=True)]
    bounds, last = list(accumulate(chances)), len(seen) - 1
    one = bisect_right(bounds, case.draw() * bounds[-1], 0, last)
    two = bisect_right(bounds, case.draw() * bounds[-1], 0, last)
    works = seen[one][1].outstanding / chances[one], seen[two][1].outstanding / chances[two]
    best = seen[two if works[1] < works[0] else one]
    micro_usd = case.terms.micro_usd(best[0]) or 0.0
    return best, f"${micro_usd / 1e6:.3g} expected, load {load(best):.3g}"
