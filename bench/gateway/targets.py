"""What Drivetrain has promised, and whether these results keep it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from load import Kind
from measure import Report, Result
from subjects import DRIVETRAIN, GOVERNED

Value = Callable[[Report], float | None]


@dataclass(frozen=True)
class Target:
    text: str
    bound: Literal["at least", "at most"]
    limit: float
    unit: str
    value: Value


@dataclass(frozen=True)
class Verdict:
    text: str
    target: str
    measured: float | None
    met: bool | None  # None: not measured

    def words(self) -> str:
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


def ratio(peer: str, kind: Kind, name: str = DRIVETRAIN.name) -> Value:
    """Drivetrain's requests per second as a multiple of a peer's, both in turns."""

    def value(report: Report) -> float | None:
        found = (each for each in report.turns if (each.name, each.peer, each.kind) == (name, peer, kind))
        return next((each.middle for each in found), None)

    return value


def ours(read: Callable[[Result], float | None]) -> Value:
    def value(report: Report) -> float | None:
        result = report.results.get(DRIVETRAIN.name)
        return None if result is None or result.error else read(result)

    return value


def governed_added_ms(report: Report) -> float | None:
    """One caller, zero-delay mock, not streamed: what governance adds to an answer, p50."""
    found = [report.results.get(name) for name in (GOVERNED.name, DRIVETRAIN.name)]
    loads = [load for result in found if result is not None and (load := result.load("plain", 1)) is not None]
    return loads[0].p50_ms - loads[1].p50_ms if len(loads) == 2 else None


def added_first_token_ms(report: Report, name: str = DRIVETRAIN.name) -> float | None:
    """One caller on a warm connection, paced mock: gateway's p50 less the direct path's."""
    result, baseline = report.results.get(name), report.baseline()
    if result is None or result.delays is None or baseline is None:
        return None
    return result.delays.paced_first_token.p50_ms - baseline.paced_first_token_ms


def added_chunk_ms(report: Report, name: str = DRIVETRAIN.name) -> float | None:
    """One caller, paced mock: what the gateway adds to a chunk's way, p50."""
    result, baseline = report.results.get(name), report.baseline()
    if result is None or result.delays is None or baseline is None:
        return None
    return result.delays.paced_chunk.p50_ms - baseline.paced_chunk_ms


# What is compared in turns: a gateway and its peer.
COMPARED = (
    (DRIVETRAIN.name, "smg"),
    (GOVERNED.name, DRIVETRAIN.name),
    (DRIVETRAIN.name, "portkey"),
    (DRIVETRAIN.name, "litellm"),
)
TARGETS = (
    Target("non-stream rate / LiteLLM", "at least", 60, "x", ratio("litellm", "plain")),
    Target("stream rate / LiteLLM", "at least", 60, "x", ratio("litellm", "stream")),
    Target("non-stream rate / Portkey", "at least", 4, "x", ratio("portkey", "plain")),
    Target("stream rate / Portkey", "at least", 4, "x", ratio("portkey", "stream")),
    Target("stream rate / smg", "at least", 1.2, "x", ratio("smg", "stream")),
    Target("non-stream rate / smg", "at least", 0.6, "x", ratio("smg", "plain")),
    Target("added to the first token, p50", "at most", 0.5, "ms", added_first_token_ms),
    Target("added to each chunk, p50", "at most", 0.5, "ms", added_chunk_ms),
    Target(
        "CPU per chunk, paced",
        "at most",
        50,
        "µs",
        ours(lambda result: result.delays.cpu_us_per_chunk if result.delays else None),
    ),
    Target(
        "governed / ungoverned, non-stream rate", "at least", 0.8, "x", ratio(DRIVETRAIN.name, "plain", GOVERNED.name)
    ),
    Target("governed / ungoverned, stream rate", "at least", 0.8, "x", ratio(DRIVETRAIN.name, "stream", GOVERNED.name)),
    Target("added by governance, p50", "at most", 0.3, "ms", governed_added_ms),
    Target("memory after load", "at most", 150, "MB", ours(lambda result: result.rss_mb)),
    Target("cold start", "at most", 2, "s", ours(lambda result: result.cold_start_s)),
)


def verdicts(report: Report) -> list[Verdict]:
    return [judge(target, report) for target in TARGETS]


def judge(target: Target, report: Report) -> Verdict:
    measured = target.value(report)
    met = None
    if measured is not None:
        met = measured >= target.limit if target.bound == "at least" else measured <= target.limit
    return Verdict(target.text, f"{target.bound} {target.limit:g} {target.unit}", measured, met)
