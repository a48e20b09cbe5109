"""Results as JSON and as Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import processor, today
from load import STREAM_EVENTS, Load
from measure import Baseline, Report, Result
from targets import verdicts

MEM_KB = "MemTotal:"


def machine() -> dict[str, str]:
    """What a reader must know to compare figures; nothing that names the machine."""
    memory_kb = next(int(line.split()[1]) for line in lines("/proc/meminfo") if line.startswith(MEM_KB))
    return {
        "cpu": processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory_kb / 2**20:.0f} GiB",
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "node": said("node", "--version"),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def said(*argv: str) -> str:
    """What a command prints, or "none" where there is no such command."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def record(report: Report) -> dict[str, Any]:
    """All figures, for a program."""
    return {
        "machine": dict(report.machine),
        "results": {name: asdict(result) for name, result in report.results.items()},
        "turns": [asdict(turns) for turns in report.turns],
        "targets": [asdict(verdict) for verdict in verdicts(report)],
    }


def to_markdown(report: Report) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    failures = [f"- {name}: {brief(error)}" for name, error in broken(report)]
    busy = ", ".join(f"{result.name} {result.busy_before:.0%}" for result in measured(report))
    parts = [
        f"# Gateways, {today()}",
        f"One command, one run, one machine ({facts}); everything shares its cores. Zero-delay mock, `wrk -t1`, "
        f"bodies of 250 bytes, {STREAM_EVENTS} events a stream. Written by `bench/gateway/run.py`; "
        "differences under 10 % are noise.",
        table(HEADS_10, [row_10(result) for result in measured(report)]),
        table(HEADS_DELAYS, [row_delays(result, report.baseline()) for result in measured(report)]),
        "Added: less the mock's own delay, p50/p99 of the gateway minus p50 of the mock; paced: a chunk every 10 ms; "
        "what is not streamed, Drivetrain has streamed by its engine all the same, the others have it whole. "
        f"Taken by other work just before each: {busy}.",
        "\n".join(["## Not measured", *failures]) if failures else "",
        turns_table(report) if report.turns else "",
        "## Targets",
        target_table(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def broken(report: Report) -> list[tuple[str, str]]:
    return [(name, result.error) for name, result in report.results.items() if result.error]


def brief(error: str) -> str:
    """What failed, and the last thing the program said."""
    said_lines = [line for line in error.splitlines() if line.strip()]
    return " ".join(dict.fromkeys((said_lines[0], said_lines[-1])))


def measured(report: Report) -> list[Result]:
    return [result for result in report.results.values() if not result.error]


HEADS_10 = (
    *("gateway", "non-stream req/s · p50/p99 ms, 10 callers", "stream req/s · p50/p99 ms, 10 callers"),
    *("non-stream, 1 caller", "stream, 1 caller", "CPU µs a request, non-stream / stream", "RSS MB", "cold s"),
)
HEADS_DELAYS = (
    *("gateway", "first token added ms", "first token added ms, paced", "chunk added ms, paced"),
    *("CPU µs a chunk, paced / at once", "CPU µs an answer not streamed, paced"),
    "closes upstream when the caller leaves: in a stream / before the first byte",
)


def row_10(result: Result) -> list[str]:
    ten = [result.load("plain", 10), result.load("stream", 10)]
    return [
        f"{result.name} {result.version}".strip(),
        *(rate(load) for load in ten),
        *(rate(load) for load in (result.load("plain", 1), result.load("stream", 1))),
        " / ".join(f"{load.cpu_us_per_request:,.0f}" for load in ten if load),
        f"{result.rss_mb:.0f}",
        f"{result.cold_start_s:.2f}",
    ]


def rate(load: Load | None) -> str:
    if load is None:
        return "–"
    failed = f" ({load.failed} failed)" if load.failed else ""
    return f"{load.requests_per_s:,.0f} · {load.p50_ms:.2f}/{load.p99_ms:.1f}{failed}"


def row_delays(result: Result, baseline: Baseline | None) -> list[str]:
    delays, leaving, burst = result.delays, result.leaving, result.load("stream", 10)
    if delays is None or leaving is None or baseline is None or burst is None:
        return [result.name, *("–",) * (len(HEADS_DELAYS) - 1)]
    spreads = (
        (delays.first_token, baseline.first_token_ms),
        (delays.paced_first_token, baseline.paced_first_token_ms),
        (delays.paced_chunk, baseline.paced_chunk_ms),
    )
    left = "" if result.name == "direct" else f"{after(leaving.in_stream_ms)} / {after(leaving.before_first_byte_ms)}"
    return [
        result.name,
        *(f"{spread.p50_ms - base_ms:.2f}/{spread.p99_ms - base_ms:.2f}" for spread, base_ms in spreads),
        f"{delays.cpu_us_per_chunk:.0f} / {burst.cpu_us_per_request / STREAM_EVENTS:.1f}",
        f"{delays.cpu_us_per_whole:,.0f}",
        left,
    ]


def after(ms: float | None) -> str:
    return "never" if ms is None else f"{ms:.0f} ms"


def turns_table(report: Report) -> str:
    words = {"plain": "not streamed", "stream": "streamed"}
    rows = [
        [
            f"{each.name} / {each.peer}",
            words[each.kind],
            f"{each.middle:.2f}",
            " – ".join(f"{q:.2f}" for q in each.quartiles),
        ]
        for each in report.turns
    ]
    heads = ("rates in turns, ten callers", "", "median of the pairs' ratios", "quartiles")
    return table(heads, rows)


def target_table(report: Report) -> str:
    rows = [
        [verdict.text, verdict.target, "–" if verdict.measured is None else f"{verdict.measured:.2f}", verdict.words()]
        for verdict in verdicts(report)
    ]
    return table(("Drivetrain's", "target", "measured", ""), rows)


def table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    rule = ["---", *("--:",) * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (list(heads), rule, *rows))
