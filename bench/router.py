#!/usr/bin/env python3
"""What it costs to choose an engine: microseconds for each decision, bytes for each engine.

    python bench/router.py
    python bench/router.py --out bench/results

Every way to decide is called in rounds; the processor time of the fastest round counts: the others were disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gateway.figures import processor, today, write_figures
from msgspec.structs import replace

from drivetrain import router
from drivetrain.config.schema import Config, Engine, Policy, Routing, RoutingRule, Server, Target, When
from drivetrain.gateway.catalog import Entry
from drivetrain.gateway.choose import Chooser
from drivetrain.gateway.meter import Call, Meter
from drivetrain.gateway.pool import Member, Pool
from drivetrain.governance import Price
from drivetrain.policies.prices import Table
from drivetrain.router import Candidate
from drivetrain.types import Capability, Message, Model, ModelSpec, Request, Text, Tool, Usage

TARGET_US = 20.0  # of a decision among 100 engines
TARGET_BYTES = 16384  # for each engine
ROUNDS, CALLS = 100, 200
MODEL = "llama3.1:8b"
MEMORY = "bytes for each engine"
ATTEMPT = "what an attempt adds, µs"
REGIONS = ("eu", "us", "ap")
WISHES: Mapping[str, tuple[Routing, str | None]] = {
    "nothing special": (Routing(), None),
    "prompts kept together": (Routing(affinity="prefix"), None),
    "sessions kept together": (Routing(affinity="session"), None),
    "the own region first": (Routing(), "eu"),
    "the first token": (Routing(goal="latency"), None),
    "the pace": (Routing(goal="throughput"), None),
    "the price": (Routing(goal="cost"), None),
    "by a rule": (Routing(rules=(RoutingRule(when=When(prompt_tokens_over=9), tier=0),)), None),
}
TOOLS = "the half that has the tools"
CAN_TALK: frozenset[Capability] = frozenset({"completion"})
CAN_ALL: frozenset[Capability] = CAN_TALK | {"tools"}
HALVES = ("the half that is up", TOOLS)
PAGE = """# The choice of an engine, {date}

Written by `bench/router.py` on {cpu}, Python {python}: µs of processor time for each decision, the fastest of {rounds}
rounds. Wanted: the first of 100 in {us:g} µs, and {bytes:,} bytes for each engine; these are {memory:,.0f} (its
adapter, how it stands, the speeds of four models, its places in groups). What an attempt tells: {attempt:.1f} µs more.

{table}

First: who goes first, and why, as the router decides it. All of it: what is gathered about the request included, such
as the number of a prompt of 2,100 characters. Calls: of Python functions, for the first.
"""
COLUMNS = ("first of 3", "first of 100", "all of it, of 3", "all of it, of 100", "calls, first of 100")
CALL = Call(id="req_1", dialect="openai.chat", received_s=0.0, session="s")
REQUEST = Request(
    model="chat",
    messages=(
        Message(role="system", content=(Text(text="You are an assistant. " * 100),)),
        Message(role="user", content=(Text(text="What is it that you know? " * 10),)),
    ),
)


class Nobody:
    """A host for engines that are never asked."""

    home = Path("/nonexistent")
    default_keep_alive_s = 300.0

    def lookup(self, model: str) -> ModelSpec:
        raise LookupError(model)

    def list(self) -> Sequence[ModelSpec]:
        return ()

    def notify(self, notice: object) -> None: ...

    def pinned(self, model: str) -> bool:
        return False

    def evictions(
        self, resident: object, *, need_bytes: int, budget_bytes: int, waited_s: float = 0.0
    ) -> Sequence[str]:
        return ()


def main() -> int:
    arguments = parse()
    measured = asyncio.run(measure())
    for name, value in measured.items():
        print(f"{name:44}{value:10.1f}")
    if arguments.out:
        targets = {"us": TARGET_US, "bytes": TARGET_BYTES}
        write_figures(arguments.out, "router", {"measured": measured, "targets": targets})
        (arguments.out / "router.md").write_text(page(measured))
    over = [name for name, value in measured.items() if value > target(name)]
    if over:
        print(f"router: over {TARGET_US:g} µs or {TARGET_BYTES} bytes: {'; '.join(over)}", file=sys.stderr)
    return 1 if over else 0


def page(measured: Mapping[str, float]) -> str:
    whats = dict.fromkeys(name.split(", ")[-2] for name in measured if name.startswith("first of 100, "))
    rows = [[what, *(told(measured, column, what) for column in COLUMNS)] for what in whats]
    lines = [["choice", *COLUMNS], ["---", *("--:" for _ in COLUMNS)], *rows]
    return PAGE.format(
        date=today(),
        cpu=processor(),
        python=platform.python_version(),
        rounds=ROUNDS,
        us=TARGET_US,
        bytes=TARGET_BYTES,
        memory=measured[MEMORY],
        attempt=measured[ATTEMPT],
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
    )


def told(measured: Mapping[str, float], column: str, what: str) -> str:
    found = measured.get(f"{column}, {what}, µs", measured.get(f"{column}, {what}"))
    return "" if found is None else f"{found:.1f}"


def target(name: str) -> float:
    if name == MEMORY:
        return TARGET_BYTES
    return TARGET_US if name.startswith("first of 100") else float("inf")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    return parser.parse_args()


async def measure() -> dict[str, float]:
    measured: dict[str, float] = {}
    for many in (1, 3, 100):
        pool, targets = pool_of(many)
        measured |= decisions(pool, targets, f"of {many}, not measured yet, µs")
        for member in pool.members.values():
            work(member, MODEL)
        measured |= decisions(pool, targets, f"of {many}, measured, µs")
    for member in list(pool.members.values())[:10]:
        for _ in range(5):
            attempt(member, MODEL, worked=False)
    measured |= decisions(pool, targets, "of 100, ten set aside, µs")
    asked = wishes(3) | wishes(100)
    for half in HALVES:
        asked |= decided(f"of 100, {half}", *half_of(half))
    measured |= in_turns(asked)
    measured |= {
        f"calls, {what.removesuffix(', µs')}": calls(call) for what, call in asked.items() if what.startswith("first")
    }
    member = pool.members["box-99"]
    measured[ATTEMPT] = microseconds(lambda: attempt(member, MODEL, worked=True))
    measured["of it, making up an attempt, µs"] = microseconds(lambda: made_up(member, MODEL))
    measured[MEMORY] = memory()
    return measured


def pool_of(many: int) -> tuple[Pool, list[Target]]:
    pool = Pool(Nobody(), lambda notice: None)
    pool.open({f"box-{n}": Engine(kind="ollama", url=f"http://10.0.0.{n}:11434") for n in range(many)})
    return pool, [Target(engine=name, model=MODEL) for name in pool.members]


def decisions(pool: Pool, targets: Sequence[Target], what: str) -> dict[str, float]:
    roster = router.Roster(targets, up=pool.up)

    def decide() -> router.Decision:
        return router.candidates(roster, pool.standing, random.random)

    return {
        f"first {what}": microseconds(decide),
        f"order {what}": microseconds(lambda: decide().order, calls=20),
        f"record {what}": microseconds(lambda: decide().considered, calls=20),
    }


def wishes(many: int) -> dict[str, Callable[[], object]]:
    """What policies may want of a choice. `facts and terms`: what is gathered about the request before it."""
    pool, targets = pool_of(many)
    for place, member in enumerate(pool.members.values()):
        work(member, MODEL)
        member.config = replace(member.config, region=REGIONS[place % len(REGIONS)])
    prices = [Price(id=name, engine=name, input=10_000 * (1 + n % 9)) for n, name in enumerate(pool.members)]
    table, asked = Table(prices), dict[str, Callable[[], object]]()
    for name, (routing, region) in WISHES.items():
        chooser = Chooser(pool, Nobody(), lambda: table)
        chooser.configure(Config(server=Server(region=region)))
        asked |= decided(f"of {many}, {name}", pool, chooser, entry_of(targets, routing), REQUEST)
    return asked


def half_of(which: str) -> tuple[Pool, Chooser, Entry, Request]:
    """100 engines, of which every other one can be chosen."""
    pool, targets = pool_of(100)
    for place, member in enumerate(pool.members.values()):
        work(member, MODEL)
        member.models = (Model(id=MODEL, capabilities=CAN_ALL if place % 2 else CAN_TALK),)
        if which != TOOLS and place % 2:
            member.lost("away")
    request = replace(REQUEST, tools=(Tool(name="search"),)) if which == TOOLS else REQUEST
    return pool, Chooser(pool, Nobody(), Table), entry_of(targets, Routing()), request


def entry_of(targets: Sequence[Target], routing: Routing) -> Entry:
    return Entry(name="chat", targets=tuple(targets), policy=Policy(routing=routing))


def decided(what: str, pool: Pool, chooser: Chooser, entry: Entry, request: Request) -> dict[str, Callable[[], object]]:
    facts = chooser.facts(entry, request, CALL)
    terms, roster = chooser.terms(entry, facts, count=True), chooser.roster(entry.targets)
    decide = partial(router.candidates, roster, pool.standing, random.random, facts, terms)
    return {
        f"first {what}, µs": decide,
        f"all of it, {what}, µs": partial(chooser.decide, entry, request, CALL),
    }


def in_turns(asked: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """A round of each, then another of each: a slow stretch of the machine slows all of them, and none all the time."""
    found = dict.fromkeys(asked, float("inf"))
    for _ in range(ROUNDS):
        for what, call in asked.items():
            found[what] = min(found[what], microseconds(call, rounds=1))
    return found


def calls(call: Callable[[], object]) -> float:
    """Of Python functions, for each call of this one."""
    made = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal made
        made += event == "call"

    call()  # what is kept is made
    sys.setprofile(count)
    for _ in range(CALLS):
        call()
    sys.setprofile(None)
    return made / CALLS


def microseconds(call: Callable[[], object], calls: int = CALLS, rounds: int = ROUNDS) -> float:
    best_s = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(calls):
            call()
        best_s = min(best_s, time.process_time() - began)
    return best_s / calls * 1e6


def work(member: Member, model: str) -> None:
    for _ in range(8):
        attempt(member, model, worked=True)


def attempt(member: Member, model: str, *, worked: bool) -> None:
    meter = made_up(member, model)
    member.begins(meter)
    member.ends(meter, worked=worked)


def made_up(member: Member, model: str) -> Meter:
    meter = Meter(Candidate(engine=member.name, model=model, why=""), 1)
    meter.first_token_s, meter.reported = 0.5, Usage(prompt=200, completion=50)
    meter.began -= 2.0
    return meter


def memory() -> float:
    """Its adapter, how it stands, the speeds of four models, and its places in the groups of all wishes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pool, targets = pool_of(100)
        for place, member in enumerate(pool.members.values()):
            member.config = replace(member.config, region=REGIONS[place % len(REGIONS)])
            for number in range(4):
                work(member, f"model-{number}")
        chooser, among = Chooser(pool, Nobody(), Table), tuple(targets)
        for routing, region in WISHES.values():
            chooser.decide(entry_of(among, routing), REQUEST, replace(CALL, region=region or ""))
        return (tracemalloc.get_traced_memory()[0] - before) / len(pool.members)
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    sys.exit(main())
