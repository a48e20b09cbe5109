"""The class of a request: how urgent it is, how many slots are kept from it, and whose turn it is when one comes free.

Turns go to the highest class that waits. So that the lower ones move at all, a class that was passed `AHEAD` times in a
row has the next turn; ageing is counted in turns, not in seconds, and so costs the higher classes the same share of the
slots however long the line of the lower ones is.
"""

from collections.abc import Mapping, Sequence
from typing import Final, get_args

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from drivetrain.config.schema import Reserved
from drivetrain.errors import BadRequest
from drivetrain.governance import Priority, Rule
from drivetrain.types import Source

CLASSES: Final[tuple[Priority, ...]] = get_args(Priority)  # from the least urgent
RANKS: Final[Mapping[Priority, int]] = {name: rank for rank, name in enumerate(CLASSES)}
AHEAD = 8  # so many of higher classes go ahead of one that waits in a lower one; then it is its turn
TIERS: Final[Mapping[str, Priority]] = {"priority": "interactive", "flex": "bulk"}  # OpenAI's words; others: default
HEADER = "x-drivetrain-priority"
MEMBER = "priority"  # of a body, where it is a text; a number there is vLLM's own
SAID: Final = tuple(name for name in CLASSES if name != "system")  # what a body may ask for
TIER = "service_tier"
DIALECTS = "openai."  # that have it

_text = msgspec.json.Decoder(str).decode


def class_of(header: bytes | None, source: Source | None, highest: Priority) -> Priority:
    """What a request asks for, in its header, in its body's `priority` or, where its dialect has that, `service_tier`;
    but never more than its key may have.

    Raises `BadRequest` for a class that there is not.
    """
    if header is not None:
        return least(_named(header.decode("latin-1"), HEADER, CLASSES), highest)
    if source is not None and (said := _said(source)) is not None:
        return least(_named(said, MEMBER, SAID), highest)
    if source is None or TIER not in source.fields or not source.dialect.startswith(DIALECTS):
        return least("default", highest)
    return least(_of_tier(source.fields[TIER]), highest)


def least(one: Priority, other: Priority) -> Priority:
    """The less urgent of two."""
    return one if RANKS[one] <= RANKS[other] else other


def for_engines(source: Source | None) -> Source | None:
    """Without the class that its caller wrote in the body, which is for us."""
    return source if source is None or _said(source) is None else source.without((MEMBER,))


def _said(source: Source) -> str | None:
    """The class in a body, as it is written there."""
    if MEMBER not in source.fields:
        return None
    try:
        return _text(source.fields[MEMBER])
    except msgspec.DecodeError:
        return None


def _named(text: str, where: str, known: Sequence[Priority]) -> Priority:
    told = text.strip().lower()
    for name in known:
        if name == told:
            return name
    raise BadRequest(f"{where} takes one of {', '.join(reversed(known))}; got {told[:100]!r}", param=where)


def _of_tier(tier: Raw) -> Priority:
    """A tier that is none of ours is for the engine to judge."""
    try:
        return TIERS.get(_text(tier), "default")
    except msgspec.DecodeError:
        return "default"


def ceilings(rule: Rule, reserved: Reserved) -> Sequence[tuple[Priority, Rule]]:
    """What is kept free of a limit on requests at once: for each class with slots of its own, the class and how many
    all below it may have together. One slot at least is always left to them."""
    found: list[tuple[Priority, Rule]] = []
    kept = 0
    for name in reversed(CLASSES[1:]):
        if percent := _percent(reserved, name):
            kept += -(-rule.amount * percent // 100)
            amount = max(1, rule.amount - kept)
            found.append((name, replace(rule, id=f"{rule.id}:below:{name}", amount=amount)))
    return found


def _percent(reserved: Reserved, name: Priority) -> int:
    match name:
        case "system":
            return reserved.system
        case "interactive":
            return reserved.interactive
        case "default":
            return reserved.default
        case "bulk":
            return 0


def turn(waiting: Sequence[int], passed: Sequence[int], lowest: int = 0) -> int | None:
    """The rank whose turn it is, of those from `lowest` on; None if nobody waits there. Both by rank: how many wait,
    and how many turns of higher classes they have seen in a row."""
    ranks = [rank for rank in range(lowest, len(waiting)) if waiting[rank]]
    if not ranks:
        return None
    due = [rank for rank in ranks if passed[rank] >= AHEAD]
    return max(due, key=lambda rank: (passed[rank], rank)) if due else ranks[-1]


def passing(waiting: Sequence[int], passed: Sequence[int], served: int, lowest: int = 0) -> list[int]:
    """`passed` after a turn of the rank `served`. Who is below `lowest` has as many slots as its class may have, and
    was not passed."""
    after = [0] * len(passed)
    for rank, seen in enumerate(passed):
        if waiting[rank] and rank != served:
            after[rank] = seen + 1 if lowest <= rank < served else seen
    return after


def wait_s(ahead: int, slots: int, service_s: float) -> float:
    """How long somebody waits with so many ahead, for one of some slots that are taken for so long each. Never less
    than a second: who comes back sooner only makes it longer for the others."""
    return max(1.0, (ahead + 1) * service_s / max(1, slots))
