"""Affinity: requests that begin alike go to the engine that has seen that beginning, as long as it is not too busy.

A ring tells where a beginning is at home, so nothing is remembered of prompts, and every replica knows the same. An
engine takes a request for that reason only up to `load_factor` times the mean load, or while nobody has less in hand;
then the next one on the ring does (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016).

Prompts nest: many conversations begin with one system prompt. A rare system prompt is at home at one engine, with all
its conversations; a common one at several, and each of its conversations at one of them. So a conversation stays where
it is while its system prompt is in as few caches as its traffic needs.
"""

from collections.abc import Iterator
from itertools import islice
from math import ceil

from drivetrain.router.case import Case
from drivetrain.router.field import Seen, load
from drivetrain.router.fit import late
from drivetrain.router.hat import Reasoned, sooner
from drivetrain.router.ring import jump
from drivetrain.router.roster import Group
from drivetrain.router.standing import Facts
from drivetrain.router.terms import Terms

HOMES = 2  # for a system prompt with an engine's share of the requests
MOST_HOMES = 8  # of one that is not at home everywhere
PATIENCE = 8.0  # times as soon is another engine worth leaving the cache for: less may be chance
LOOKS = 3  # engines that are compared
FAR = 16  # engines that are looked at; where they all have enough in hand, the cache is not what matters


def kept(group: Group, case: Case) -> Reasoned | None:
    """Who is to go first, and what decided. None: nobody is worth it."""
    facts, terms, whole, those = case.facts, case.terms, group.whole, group.those
    found: Seen | None = None
    looks, more = 0, ""
    most = _most(whole, terms)
    for place in islice(order(whole, facts, terms), FAR):
        target = whole.targets[place]
        if those is not None and id(target) not in those:
            continue
        standing = case.standings(target)
        if not standing.able or (standing.share < 1 and case.draw() >= standing.share):
            continue  # what warms up gets more and more of its prompts back
        if standing.outstanding + 1 > most * target.weight and standing.state == "closed":
            more = ", spilled over"
            continue
        if facts.deadline_s is not None and late(standing, facts):
            continue
        seen = (target, standing)
        if found is None:
            found = seen
        elif sooner(found, seen, facts) > PATIENCE:
            return seen, _words(seen, terms, ", its home is slow")
        looks += 1
        if looks == LOOKS or found[1].speed is None or found[1].state == "trial":
            break
    return None if found is None else (found, _words(found, terms, more))


def _most(group: Group, terms: Terms) -> float:
    """Work per weight, this request included, up to which an engine takes it because it is at home there."""
    work = terms.work(group.targets)
    if not work.weight:
        return 0.0
    return max(terms.wish.load_factor * (work.outstanding + 1) / work.weight, work.least) + 1e-9


def order(group: Group, facts: Facts, terms: Terms) -> Iterator[int]:
    """The places of a group's targets, each once, from where the request is at home."""
    many = len(group.targets)
    homes = min(many, ceil(HOMES * terms.share * many)) if facts.shared != facts.own else 1
    if homes <= 1:
        return group.ring.walk(facts.shared)
    if homes > MOST_HOMES:
        return group.ring.walk(facts.own)
    home = next(islice(group.ring.walk(facts.shared), jump(facts.own, homes), None))
    return group.ring.walk(facts.own, home)


def _words(seen: Seen, terms: Terms, more: str) -> str:
    return f"same {terms.wish.affinity}{more}, load {load(seen):.3g}"
