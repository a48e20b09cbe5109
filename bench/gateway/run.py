#!/usr/bin/env python3
"""Measures gateways against a mock that costs nothing, round by round, and writes bench/results/gateway*.

    python bench/gateway/run.py                                everything: twenty minutes
    python bench/gateway/run.py --only drivetrain,smg --quick  a look while working; the direct path always runs

Needs `cc`, `wrk` (Debian: apt install wrk), `node` with `npm` for Portkey. Peers are installed at first use.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

from figures import write_figures
from gateway import HERE, ROOT, build_tools
from load import QUICK, WHOLE
from measure import Report, Result, measure, merged
from report import machine, record, to_markdown
from subjects import SUBJECTS
from targets import COMPARED
from turns import take_turns

RESULTS = HERE.parent / "results"


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that everything is torn down
    missing = [tool for tool in ("cc", "wrk") if shutil.which(tool) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    build_tools()
    report, effort = Report(machine=machine()), QUICK if arguments.quick else WHOLE
    found: dict[str, list[Result]] = {name: [] for name in arguments.only}
    for _ in range(effort.rounds):
        for name in arguments.only:
            found[name].append(measure(SUBJECTS[name], effort, arguments.drivetrain))
    report.results = {name: merged(results) for name, results in found.items()}
    for name, peer in COMPARED:
        if {name, peer} <= set(arguments.only):
            report.turns += take_turns(name, peer, effort, arguments.drivetrain)
    print(to_markdown(report))
    if arguments.out:
        write_figures(arguments.out, "gateway", record(report))
        (arguments.out / "gateway.md").write_text(to_markdown(report))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names, default=list(SUBJECTS), metavar="NAME[,NAME]", help=", ".join(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="one short run of each, for iteration")
    parser.add_argument("--out", type=Path, help="folder for the results; a partial run writes none by default")
    parser.add_argument("--drivetrain", type=Path, default=ROOT / ".venv/bin/drivetrain", help="the command to start")
    arguments = parser.parse_args()
    arguments.drivetrain = arguments.drivetrain.absolute()  # it is started in another folder
    if arguments.out is None and not arguments.quick and set(arguments.only) == set(SUBJECTS):
        arguments.out = RESULTS
    return arguments


def names(text: str) -> list[str]:
    """The wanted subjects in the table's order, the direct path first: the others' delays are relative to it."""
    wanted = {"direct", *text.split(",")}
    if unknown := wanted - set(SUBJECTS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(SUBJECTS)}")
    return [name for name in SUBJECTS if name in wanted]


if __name__ == "__main__":
    sys.exit(main())
