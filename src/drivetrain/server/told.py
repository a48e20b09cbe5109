"""What an answer's headers tell of the way it came: which engine, how long it waited, its cost, what is left. Pure."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from drivetrain.gateway import Receipt
from drivetrain.governance import Resource
from drivetrain.quota import Standing
from drivetrain.server.exchange import Header

LIMITS: Mapping[Resource, tuple[bytes, bytes, bytes]] = {  # as OpenAI names them
    "requests": (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    "tokens": (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
}


def headers(receipt: Receipt) -> Sequence[Header]:
    """Nothing for a request that went nowhere, but the limit that it met."""
    told: list[Header] = []
    if receipt.engine:
        told += (
            *_way(receipt.engine, receipt.model, receipt.why),
            (b"x-drivetrain-attempts", b"%d" % receipt.attempts),
            (b"x-drivetrain-queue-ms", b"%.1f" % (receipt.queued_s * 1000)),
            (b"x-drivetrain-overhead-ms", b"%.2f" % (receipt.overhead_s * 1000)),
        )
    if receipt.cached:
        told.append((b"x-drivetrain-cache", b"hit"))
    if receipt.cost_micro_usd is not None:
        told.append((b"x-drivetrain-cost", dollars(receipt.cost_micro_usd)))
    if receipt.degraded:
        told.append((b"x-drivetrain-limits", b"degraded"))
    if receipt.standings:
        told += _limits(receipt.standings)
    return told


@lru_cache(maxsize=1024)
def _way(engine: str, model: str, why: str) -> Sequence[Header]:
    return (
        (b"x-drivetrain-engine", _safe(engine)),
        (b"x-drivetrain-model", _safe(model)),
        (b"x-drivetrain-route-reason", _safe(why)),
    )


def dollars(micro_usd: int) -> bytes:
    """Exact: `0.000123`."""
    return b"%d.%06d" % divmod(micro_usd, 1_000_000)


def _limits(standings: Sequence[Standing]) -> Sequence[Header]:
    """Of several of a kind, the one that is nearest to its end."""
    told: list[Header] = []
    tightest: dict[Resource, Standing] = {}
    for each in standings:
        rule = each.rule
        other = tightest.get(rule.resource)
        if other is None or each.remaining * other.rule.amount < other.remaining * rule.amount:
            tightest[rule.resource] = each
    for unit, (limit, left, reset) in LIMITS.items():
        if (found := tightest.get(unit)) is not None:
            remaining, milliseconds = max(0, found.remaining), max(0, round(found.reset_s * 1000))
            told += (
                (limit, b"%d" % found.rule.amount),
                (left, b"%d" % remaining),
                (reset, duration(milliseconds)),
            )
    return told


@lru_cache(maxsize=64)  # rates of all kinds are free again at the same moments
def duration(milliseconds: int) -> bytes:
    """`12ms`, `1.5s`, `6m0s`, `2h3m4s`, as OpenAI writes them."""
    if milliseconds < 1000:
        return b"%dms" % milliseconds
    minutes, rest = divmod(milliseconds, 60_000)
    told = f"{rest / 1000:g}s"
    if minutes >= 60:
        told = f"{minutes // 60}h{minutes % 60}m{told}"
    elif minutes:
        told = f"{minutes}m{told}"
    return told.encode()


def _safe(text: str) -> bytes:
    """What a header may hold: a model's name may be anything."""
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200]).encode("ascii")
