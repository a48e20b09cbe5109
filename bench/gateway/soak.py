#!/usr/bin/env python3
"""Whether a governed server's memory stays flat: many requests, many keys, callers who leave. Writes results/soak.md.

python bench/gateway/soak.py                        200,000 requests of 5,000 keys, one in ten breaks off: minutes
python bench/gateway/soak.py --requests 20000       a look while working
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from figures import today
from gateway import HERE, ROOT, build_tools, running
from load import wire_request
from report import table
from subjects import GOVERNED

from drivetrain.store import Store, pepper
from drivetrain.store.administration import Administration

CALLERS = 20
ABORTS = 0.1
WARM = 0.25  # of all requests; memory is looked at after them
EVERY = 10_000
LIMIT_MB = 1.0  # for each 10,000 requests


@dataclass
class Progress:
    wanted: int
    begun: int = 0
    done: int = 0
    aborted: int = 0
    failed: int = 0
    samples: list[tuple[int, float]] = field(default_factory=list)  # requests, MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--drivetrain", type=Path, default=ROOT / ".venv/bin/drivetrain")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    arguments = parser.parse_args()
    build_tools()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as folder:
        store = Path(folder) / "drivetrain.db"
        keys = made(store, arguments.keys)
        files = {"drivetrain.yaml": GOVERNED.files["drivetrain.yaml"] + SHARED_STORE.format(store=store)}
        subject = replace(GOVERNED, files=files, prepare=(), headers=())  # each request has its own key
        with running(subject, arguments.drivetrain.absolute()) as gateway:
            progress = Progress(arguments.requests)
            asyncio.run(soak(gateway.port, keys, progress, lambda: gateway.tree.rss_bytes() / 1e6))
    report = told(progress, arguments.keys, time.monotonic() - began)
    print(report)
    if arguments.requests >= 100_000:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "soak.md").write_text(report)
    return 0 if verdict(progress) == "met" and not progress.failed else 1


SHARED_STORE = """\
store: {{url: "sqlite:///{store}"}}
keys: {{pepper: "a pepper for measurements"}}
"""


def made(path: Path, count: int) -> list[str]:
    store = Store.open(f"sqlite:///{path}", path.parent)
    administration = Administration(store, pepper.read("a pepper for measurements", path.parent))
    keys = [administration.create_key({"name": f"key {number}"}, actor="bench")[1] for number in range(count)]
    for number, key in enumerate(administration.list("key", limit=count)):
        if number % 10 == 0:  # some have limits of their own
            fields = {"subject": "key", "subject_id": key.id, "resource": "requests", "amount": 10**9, "per": "minute"}
            administration.create("limit", fields, actor="bench")
    administration.create("price", {"model": "*", "input": 150_000, "output": 600_000}, actor="bench")
    store.close()
    return keys


async def soak(port: int, keys: Sequence[str], progress: Progress, rss_mb: Callable[[], float]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller(port, keys, progress, rss_mb))


async def caller(port: int, keys: Sequence[str], progress: Progress, rss_mb: Callable[[], float]) -> None:
    """One connection after another; each is used until a request on it is broken off."""
    while progress.begun < progress.wanted:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while progress.begun < progress.wanted:
                progress.begun += 1
                leaves = random.random() < ABORTS
                key = f"Authorization: Bearer {random.choice(keys)}"
                writer.write(wire_request(GOVERNED.model, "stream" if leaves else "plain", (key,)))
                if leaves:
                    judge(await reader.readuntil(b"\r\n"), progress)
                    progress.aborted += 1
                else:
                    judge(await answer(reader), progress)
                progress.done += 1
                if progress.done % EVERY == 0:
                    progress.samples.append((progress.done, rss_mb()))
                    print(f"{progress.done}: {progress.samples[-1][1]:.1f} MB", file=sys.stderr)
                if leaves:
                    break
        finally:
            writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


def judge(answered: bytes, progress: Progress) -> None:
    """By the first line of an answer, or by all of it."""
    if not answered.startswith(b"HTTP/1.1 200"):
        if not progress.failed:
            print(f"the first one that failed: {answered.decode()}", file=sys.stderr)
        progress.failed += 1


def slope(progress: Progress) -> float | None:
    """MB for each 10,000 requests after the first ones, by least squares; None: too few to tell."""
    points = [(done / EVERY, mb) for done, mb in progress.samples if done > WARM * progress.wanted]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return above / sum((x - mean_x) ** 2 for x, _ in points)


def verdict(progress: Progress) -> str:
    found = slope(progress)
    if found is None:
        return "NOT MEASURED"
    return "met" if found < LIMIT_MB else "MISSED"


def told(progress: Progress, keys: int, took_s: float) -> str:
    found = slope(progress)
    measured = "-" if found is None else f"{found:.2f} MB"
    what = "memory for each 10,000 requests, after the first quarter"
    figures = json.dumps([[done, round(mb, 1)] for done, mb in progress.samples])
    lines = [
        "# Memory over many requests",
        "",
        f"{today()}: {progress.done:,} requests with keys, limits, a budget, prices and a durable row; {keys:,} keys,",
        f"{progress.aborted:,} callers left in the middle of a stream, {progress.failed} answers were no 200;",
        f"{took_s:.0f} s. Written by `bench/gateway/soak.py`.",
        "",
        table(
            ("Target", "Wanted", "Measured", "Verdict"),
            [[what, f"below {LIMIT_MB:g} MB", measured, verdict(progress)]],
        ),
        "",
        f"Requests and MB: `{figures}`",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
