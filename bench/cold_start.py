#!/usr/bin/env python3
"""How long a person waits: from nothing to a server that answers, and from nothing to a model's first word.

    python bench/cold_start.py              both
    python bench/cold_start.py --only serve

`serve`: a fresh home each time, to the first 200 on /healthz. `run`: `drivetrain run MODEL hi` to the first visible
byte on standard output, in a home that has the model; the run that fetches it there is not counted.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateway.figures import write_figures
from gateway.processes import Failed, Tree, free_port

HERE = Path(__file__).parent
TARGET_S = {"serve": 2.0, "run": 4.0}
TIMEOUT_S = 120.0


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that everything is torn down
    measured: dict[str, list[float]] = {}
    try:
        if "serve" in arguments.only:
            measured["serve"] = [serve(arguments.drivetrain) for _ in range(arguments.times)]
        if "run" in arguments.only:
            measured["run"] = runs(arguments.drivetrain, arguments.model, arguments.times)
    except Failed as error:
        print(f"cold_start: {error}", file=sys.stderr)
        return 1
    for name, seconds in measured.items():
        print(verdict(name, seconds))
    if arguments.out:
        write_figures(arguments.out, "cold_start", {"seconds": measured, "targets_s": TARGET_S})
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TARGET_S), nargs="+", default=list(TARGET_S))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--drivetrain", type=Path, default=HERE.parent / ".venv/bin/drivetrain")
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    return parser.parse_args()


def verdict(name: str, seconds: list[float]) -> str:
    median_s, target_s = statistics.median(seconds), TARGET_S[name]
    met = "met" if median_s <= target_s else "MISSED"
    return f"{name}: median {median_s:.2f} s, worst {max(seconds):.2f} s; target at most {target_s:g} s: {met}"


def serve(drivetrain: Path) -> float:
    """Seconds from the start of the process to its first 200 on /healthz."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as folder:
        home = Path(folder)
        argv = [str(drivetrain), "serve", "--home", str(home), "--port", str(port)]
        with Tree(argv, log=home / "serve.log") as tree:
            return tree.wait_ready(port, "/healthz", TIMEOUT_S)


def runs(drivetrain: Path, model: str, times: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as home:
        first_word(drivetrain, model, Path(home))  # fetches the model
        return [first_word(drivetrain, model, Path(home)) for _ in range(times)]


def first_word(drivetrain: Path, model: str, home: Path) -> float:
    """Seconds from the start of the command to the first visible byte of its answer."""
    log = home / "run.log"
    start_s = time.monotonic()
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [str(drivetrain), "run", model, "hi"],
            env={**os.environ, "DRIVETRAIN_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        got = b""
        while not got.strip() and (more := os.read(process.stdout.fileno(), 4096)):
            got += more
        word_s = time.monotonic() - start_s
        process.terminate()  # a small model may go on for minutes
        process.communicate(timeout=TIMEOUT_S)
    if not got.strip():
        raise Failed(f"`drivetrain run` ended with {process.returncode}: {log.read_text(errors='replace')[-800:]}")
    return word_s


if __name__ == "__main__":
    sys.exit(main())
