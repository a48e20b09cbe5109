"""All that is measured about one gateway."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from gateway import Running, install, running
from leaving import Leaving, measure_leaving
from load import KINDS, Delays, Effort, Kind, Load, Spread, measure_delays, measure_load, settle, wrk
from processes import Failed, busy_fraction
from subjects import Subject
from turns import Turns

CONNECTIONS = (10, 1)


@dataclass(frozen=True)
class Result:
    """`error` tells why a gateway has no figures."""

    name: str
    version: str
    cold_start_s: float = 0.0
    rss_mb: float = 0.0
    busy_before: float = 0.0  # share of the machine's CPU time that others took just before
    loads: tuple[Load, ...] = ()
    delays: Delays | None = None
    leaving: Leaving | None = None
    error: str | None = None

    def load(self, kind: Kind, connections: int) -> Load | None:
        return next((load for load in self.loads if (load.kind, load.connections) == (kind, connections)), None)


@dataclass(frozen=True)
class Baseline:
    """What is subtracted from every gateway's delays: those of the mock itself."""

    first_token_ms: float
    paced_first_token_ms: float
    paced_chunk_ms: float


@dataclass
class Report:
    results: dict[str, Result] = field(default_factory=dict)
    turns: list[Turns] = field(default_factory=list)
    machine: Mapping[str, str] = field(default_factory=dict)

    def baseline(self) -> Baseline | None:
        direct = self.results.get("direct")
        if direct is None or direct.delays is None:
            return None
        delays = direct.delays
        return Baseline(delays.first_token.p50_ms, delays.paced_first_token.p50_ms, delays.paced_chunk.p50_ms)


def measure(subject: Subject, effort: Effort, drivetrain: Path) -> Result:
    """Never raises: a gateway that cannot be measured is a result, too."""
    print(f"{subject.name}: ", end="", flush=True, file=sys.stderr)
    try:
        install(subject, drivetrain)
        result = measure_started(subject, effort, drivetrain)
    except (Failed, OSError) as error:
        result = Result(subject.name, subject.version, error=str(error))
    print("done" if result.error is None else f"failed: {result.error}", file=sys.stderr)
    return result


def measure_started(subject: Subject, effort: Effort, drivetrain: Path) -> Result:
    busy_before = busy_fraction()
    with running(subject, drivetrain) as gateway:
        settle(gateway)
        loads, rss_bytes = measure_loads(gateway, effort)
        step("delays")
        delays = measure_delays(gateway, effort)
        step("leaving")
        leaving = measure_leaving(gateway)
    return Result(
        name=subject.name,
        version=subject.version,
        cold_start_s=gateway.cold_start_s,
        rss_mb=rss_bytes / 1e6,
        busy_before=busy_before,
        loads=loads,
        delays=delays,
        leaving=leaving,
    )


def merged(rounds: Sequence[Result]) -> Result:
    """Of one gateway: the medians of its rounds, and the worst of what has a limit. A round that failed, if one did."""
    if failed := next((each for each in rounds if each.error is not None), None):
        return failed
    return replace(
        rounds[-1],
        cold_start_s=statistics.median(each.cold_start_s for each in rounds),
        rss_mb=max(each.rss_mb for each in rounds),
        busy_before=max(each.busy_before for each in rounds),
        loads=tuple(map(middle_load, zip(*(each.loads for each in rounds), strict=True))),
        delays=middle_delays([each.delays for each in rounds if each.delays is not None]),
    )


def middle_load(loads: Sequence[Load]) -> Load:
    return replace(
        loads[0],
        requests_per_s=statistics.median(each.requests_per_s for each in loads),
        p50_ms=statistics.median(each.p50_ms for each in loads),
        p99_ms=statistics.median(each.p99_ms for each in loads),
        cpu_us_per_request=statistics.median(each.cpu_us_per_request for each in loads),
        failed=sum(each.failed for each in loads),
        upstream_connections=max(each.upstream_connections for each in loads),
    )


def middle_delays(delays: Sequence[Delays]) -> Delays:
    return Delays(
        first_token=middle_spread([each.first_token for each in delays]),
        paced_first_token=middle_spread([each.paced_first_token for each in delays]),
        paced_chunk=middle_spread([each.paced_chunk for each in delays]),
        paced_chunk_10=middle_spread([each.paced_chunk_10 for each in delays]),
        cpu_us_per_chunk=statistics.median(each.cpu_us_per_chunk for each in delays),
        cpu_us_per_whole=statistics.median(each.cpu_us_per_whole for each in delays),
    )


def middle_spread(spreads: Sequence[Spread]) -> Spread:
    p50_ms, p99_ms = (statistics.median(values) for values in zip(*map(astuple, spreads), strict=True))
    return Spread(p50_ms, p99_ms)


def measure_loads(gateway: Running, effort: Effort) -> tuple[tuple[Load, ...], int]:
    """Every load, and the memory held after them."""
    for kind in KINDS:
        wrk(gateway, kind, 10, effort.warm_s)
        gateway.tree.wait_idle()
    loads = []
    for connections in CONNECTIONS:
        for kind in KINDS:
            step(f"{kind} x{connections}")
            loads.append(measure_load(gateway, kind, connections, effort))
    return tuple(loads), gateway.tree.rss_bytes()


def step(name: str) -> None:
    print(name, end=", ", flush=True, file=sys.stderr)
