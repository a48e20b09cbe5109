#!/usr/bin/env python3
"""A day of traffic over many simulated instances, for each strategy of routing: latency, fairness, cost.

    python bench/simulator.py --quick
    python bench/simulator.py --out bench/results
    python bench/simulator.py --requests 1000000 --only balanced --only prefix

The router, the breakers, the measures of speed and the line at the door are the product's; time is simulated. Each
strategy has a process of its own, as many at once as there are cores. Answers are as long as it takes to bring the
instances to `--load` on average; with fewer `--hours` the day is in time lapse.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from gateway.figures import write_figures
from sim import boxes, report, traffic
from sim.simulation import Simulation, World
from sim.strategies import STRATEGIES

QUICK = {"instances": 50, "models": 1, "requests": 4_000, "hours": 2.0}
RUSH = 0.75  # of what all instances can do, asked by one tenant in an hour


def main() -> int:
    arguments = parse()
    names = arguments.only or [strategy.name for strategy in STRATEGIES]
    plan = plan_of(arguments)
    world = world_of(arguments, plan)
    about = told(arguments, plan, world)
    print("; ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    found = results(arguments, [each.name for each in STRATEGIES if each.name in names])
    about["processor time"] = f"{sum(each['took s'] for each in found.values()):,.0f} s"
    if arguments.out:
        report.write(arguments.out, about, found)
        write_figures(arguments.out, "sim", {"about": about, "strategies": found})
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--models", type=int, default=10, help="each at as many of the instances")
    parser.add_argument("--requests", type=int, default=240_000, help="in the day")
    parser.add_argument("--hours", type=float, default=24.0, help="that the day is squeezed into")
    parser.add_argument("--load", type=float, default=0.3, help="of what the instances can do, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="strategies at once")
    parser.add_argument("--only", action="append", choices=[strategy.name for strategy in STRATEGIES])
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a look")
    parser.add_argument("--out", type=Path, help="folder to write figures and charts to, such as bench/results")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


def plan_of(arguments: argparse.Namespace) -> traffic.Plan:
    """Answers so long that all together take `load` of what the instances can do."""
    tokens = boxes.pace(boxes.boxes_of(arguments.instances)) * arguments.hours * traffic.HOUR_S
    mean = arguments.load * tokens / arguments.requests
    rush = round(RUSH * tokens / 24 * traffic.RUSH_HOURS / mean)
    return traffic.Plan(arguments.requests, arguments.hours, mean, rush)


def world_of(arguments: argparse.Namespace, plan: traffic.Plan) -> World:
    """Requests, faults and choices each have chance of their own, so that a change of one leaves the others."""
    seed, day_s = arguments.seed, arguments.hours * traffic.HOUR_S
    return World(
        asked=traffic.day(plan, Random(seed)),
        blows=boxes.blows(arguments.instances, day_s, Random(seed + 1)),
        boxes=arguments.instances,
        models=arguments.models,
        hours=arguments.hours,
        seed=seed + 2,
    )


def told(arguments: argparse.Namespace, plan: traffic.Plan, world: World) -> dict[str, str]:
    return {
        "instances": f"{arguments.instances:,}",
        "models": str(arguments.models),
        "requests": f"{len(world.asked):,}",
        "hours": f"{arguments.hours:g}",
        "load": f"{arguments.load:g}",
        "tokens of an answer, on average": f"{plan.mean_output:,.0f}",
        "faults": f"{len(world.blows):,}",
        "seed": str(arguments.seed),
        "rush": f"{plan.rush:,}",
    }


def results(arguments: argparse.Namespace, names: Sequence[str]) -> Mapping[str, Any]:
    """By strategy, told as soon as they are there. The last of the table take longest, and begin first."""
    with ProcessPoolExecutor(arguments.processes, initializer=prepare, initargs=(arguments,)) as processes:
        begun = {name: processes.submit(one, name) for name in reversed(names)}
        return {name: begun[name].result() for name in names}


WORLD: list[World] = []  # of this process: what is the same for every strategy that it runs


def prepare(arguments: argparse.Namespace) -> None:
    """The world is large, and stays: the collector need not look at it again."""
    WORLD[:] = [world_of(arguments, plan_of(arguments))]
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def one(name: str) -> dict[str, Any]:
    """In a process that is prepared."""
    (strategy,) = (each for each in STRATEGIES if each.name == name)
    began = time.process_time()
    tally = Simulation(WORLD[0], strategy).run()
    figures, took_s = tally.figures(), time.process_time() - began
    first = "/".join(f"{figures[f'first token p{share} s']:.1f}" for share in (50, 95, 99))
    print(
        f"{strategy.name:30}{took_s:7.1f} s   first token {first} s   ${figures['$ per 1,000 requests']:.2f}"
        f"   cached {figures['cached %']:.0f} %   fairness {figures['fairness in the rush']:.2f}",
        flush=True,
    )
    return {"took s": took_s, "figures": figures, "by part": dict(enumerate(tally.by_part()))}


if __name__ == "__main__":
    sys.exit(main())
