"""The choice where a policy looks at one thing above all: the first token, the pace, or the price. Pure.

All targets are looked at, or four that are drawn from more than eight. For the first token and the pace the one goes
first that is expected to be soonest, behind its work in hand. For the price two are drawn, each as often as the square
of its price is low, and the one with less work for its share goes first: so a cheap engine gets most of the requests,
never all, and gives some up when it is much slower than the others.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from drivetrain.config.schema import Goal
from drivetrain.router.estimates import FIXED_TOKENS
from drivetrain.router.field import Seen, load
from drivetrain.router.hat import NEAR_S, Draw
from drivetrain.router.standing import Facts
from drivetrain.router.terms import Terms

START_TOKENS = 32  # of an answer, that a caller waits for who wants it to begin soon
CHEAPEST = 1 / 30  # of the dearest price: whoever costs less counts as costing so much
SLOW = 4.0  # times as slow as the soonest, from which on the price is not all that counts


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
    usual_s = min(filter(None, times), default=1.0)  # of one that is not measured
    behind = [(time_s or usual_s) * (1 + load(each)) for each, time_s in zip(seen, times, strict=True)]
    return dear(seen, behind, terms) if goal == "cost" else behind


def dear(seen: Sequence[Seen], behind: Sequence[float], terms: Terms) -> list[float]:
    """The squares of what the request costs, in those of the dearest, more where it takes very long."""
    prices = [terms.micro_usd(target) for target, _ in seen]
    most, soonest_s = max(prices, default=0.0) or 1.0, min(behind, default=0.0)
    return [
        max(price / most, CHEAPEST) ** 2 * max(1.0, time_s / (SLOW * soonest_s + NEAR_S)) ** 2
        for price, time_s in zip(prices, behind, strict=True)
    ]


def chosen(seen: Sequence[Seen], facts: Facts, terms: Terms, draw: Draw) -> tuple[Seen, str]:
    """The one to go first, of at least one, and why. An engine on trial goes before all others."""
    for each in seen:
        if each[1].state == "trial":
            return each, f"{terms.words(each[0])}, trial after failures"
    found = scores(seen, facts, terms)
    if terms.wish.goal == "cost":
        return _cheap(seen, found, terms, draw)
    score, place = min((score, place) for place, score in enumerate(found))
    words = {"latency": f"begins in {score:.3g} s", "throughput": f"{score:.3g} s for a token"}
    told = words.get(terms.wish.goal, f"done in {score:.3g} s")
    return seen[place], f"{terms.words(seen[place][0])}, {told}, load {load(seen[place]):.3g}"


def _cheap(seen: Sequence[Seen], found: Sequence[float], terms: Terms, draw: Draw) -> tuple[Seen, str]:
    chances = [each[0].weight / score for each, score in zip(seen, found, strict=True)]
    bounds = list(accumulate(chances))
    drawn = [min(bisect_right(bounds, draw() * bounds[-1]), len(seen) - 1) for _ in range(2)]
    best = min(drawn, key=lambda place: seen[place][1].outstanding / chances[place])
    target = seen[best][0]
    cost = f"${terms.micro_usd(target) / 1e6:.3g} expected"
    return seen[best], f"{terms.words(target)}, {cost}, load {load(seen[best]):.3g}"
