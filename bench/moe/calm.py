#!/usr/bin/env python3
"""Ten minutes beside a memory hog: a model of 8.5 GB streams in a memory control group that a hog fills and leaves.

    python bench/moe/calm.py                      ten minutes in 6 GB, of which the hog takes up to 3.6
    python bench/moe/calm.py --minutes 2 --tiny   a model of 20 MB, to see that all of this works

The model answers all the while. What it says to sixteen given tokens is compared with what it said before the hog came;
tokens per second, the budget and how long everything stood still for memory (PSI full) are told.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import cgroup
import hog
import psutil
from process import Died, Running
from run import TINY, Bench, Size, Subject, Watch, about, folder_of_models, measurable, write_figures

from drivetrain.engines.expertstream import page

LIMIT_BYTES, HOG_BYTES = 6_000_000_000, 3_600_000_000
TURN = 32
MOST_STALLED = 0.01


@dataclass(frozen=True)
class Moment:
    """One turn."""

    second: float
    budget: int
    hog_bytes: int
    tokens_s: float
    answers: tuple[int, ...]


@dataclass(frozen=True)
class Calm:
    minutes: float
    limit: int
    hog_bytes: int
    expected: tuple[int, ...]
    moments: tuple[Moment, ...]
    stalled: float | None
    error: str = ""

    @property
    def right(self) -> int:
        return sum(moment.answers == self.expected for moment in self.moments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--models", type=Path, default=folder_of_models(), help="[$BENCH_MOE_MODELS]")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    place = measurable("bench-calm")
    if isinstance(place, int):
        return place
    size = TINY if arguments.tiny else Size()
    with tempfile.TemporaryDirectory(prefix="bench-calm-", dir=arguments.models) as work:
        bench = Bench(size, place, arguments.models, Path(work), {}, None, prompts=False)
        calm = measure(bench, arguments.minutes)
    text = told(calm, about(bench))
    print(text)
    if arguments.out:
        write_figures(arguments.out, "calm", asdict(calm))
        (arguments.out / "calm.md").write_text(text)
    return 0


def measure(bench: Bench, minutes: float) -> Calm:
    weights = bench.weights(0.3)
    watch = Watch()
    moments: list[Moment] = []
    expected: tuple[int, ...] = ()
    error = ""
    try:
        with ExitStack() as stays:
            process = bench.start(Subject("beside a hog", 0.3, LIMIT_BYTES, ours=True), weights, stays)
            expected = tuple(process.told["answers"])
            with watch.of(process.group), hungry(process.group) as beside:
                begun = time.monotonic()
                while (second := time.monotonic() - begun) < minutes * 60:
                    moments.append(moment(bench, process, beside, second))
    except Died as died:
        error = str(died)
    return Calm(minutes, LIMIT_BYTES, HOG_BYTES, expected, tuple(moments), watch.stalled, error)


def moment(bench: Bench, process: Running, beside: subprocess.Popen[bytes], second: float) -> Moment:
    answers = tuple(process.ask(again=True)["answers"])
    tokens, seconds = process.turn(TURN, bench.size.limit_s)
    counters = page.read(bench.work / "stats")
    if beside.poll() is not None:
        raise Died("the hog was killed: there was no room for it")
    assert counters
    return Moment(second, counters.budget, psutil.Process(beside.pid).memory_info().rss, tokens / seconds, answers)


@contextmanager
def hungry(group: cgroup.Group) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, hog.__file__, str(HOG_BYTES)], preexec_fn=group.enter) as process:
        try:
            yield process
        finally:
            process.kill()


def told(calm: Calm, about_it: list[str]) -> str:
    budgets = [moment.budget / 1e9 for moment in calm.moments]
    hogs = [moment.hog_bytes / 1e9 for moment in calm.moments]
    rates = [moment.tokens_s for moment in calm.moments]
    stalled = "not known" if calm.stalled is None else f"{calm.stalled:.3%}"
    lines = [
        "# Beside a memory hog\n",
        "Written by `make bench-calm`.\n",
        *(f"- {line}" for line in about_it),
        f"- {calm.minutes:g} minutes in a control group of {calm.limit / 1e9:.1f} GB; the hog takes up to "
        f"{calm.hog_bytes / 1e9:.1f} GB at {hog.STEP_BYTES / hog.STEP_S / 1e6:.0f} MB a second, holds it for "
        f"{hog.HOLD_S:g} s, gives it back\n",
        "| What | Wanted | Measured |",
        "| --- | --- | --- |",
        f"| the process survives | yes | {calm.error or 'yes'} |",
        f"| answers as before the hog came | all | {calm.right} of {len(calm.moments)} |",
        f"| PSI full of memory | under {MOST_STALLED:.0%} | {stalled} |",
    ]
    if calm.moments:
        lines += [
            f"| budget, GB | | {min(budgets):.2f} to {max(budgets):.2f} |",
            f"| the hog, GB | | {min(hogs):.2f} to {max(hogs):.2f} |",
            f"| tokens/s | | median {statistics.median(rates):.1f}, {min(rates):.1f} to {max(rates):.1f} |",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
