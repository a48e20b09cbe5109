#!/usr/bin/env python3
"""A Mixture-of-Experts model of 8.5 GB under memory limits: stock llama.cpp and ours, in one run.

    python bench/moe/run.py                       everything: makes the models (once), half an hour
    python bench/moe/run.py --only ours           subjects whose name contains the word; repeatable
    python bench/moe/run.py --option io=uring     an option for the plugin, see native/src/api.h; repeatable
    python bench/moe/run.py --tiny                a model of 20 MB, to see that all of this works

Every subject is a process of its own in a memory control group of its own; no page of the models is in the page cache
when one starts. Each token is given by chance (the same ones to all), with two threads. Without a writable memory
control group nothing is measured, and the reason is told.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cgroup
import model
import report
from report import Counters, Measured, Probes
from subject import Orders

from drivetrain import gguf
from drivetrain.engines.expertstream import native, page, predict

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
from gateway.figures import processor, write_figures  # noqa: E402

RESULTS = HERE.parent / "results"
THREADS = 2
PROMPT = 2048
DEPTHS = (4, 8, 16, 32)
PIECE_BYTES = 512 * 1024
PROBE_MS = 400
LOOK_S = 0.2
OURS_BATCH, STOCK_BATCHES = 2048, (512, 2048)
KILLED = -9


@dataclass(frozen=True)
class Subject:
    name: str
    skew: float
    limit: int | None = None
    file: str = "gguf"
    ours: bool = False
    repack: bool = True
    prompts: tuple[tuple[int, int], ...] = ()
    read_first: bool = False


@dataclass(frozen=True)
class Size:
    """What is measured, and how much of it."""

    shape: model.Shape = model.LARGE
    wide: int = 4_400_000_000
    narrow: int = 2_600_000_000
    warm: int = 96
    tokens: int = 128
    prompt: int = PROMPT
    limit_s: float = 90.0


TINY = Size(shape=model.TINY, wide=200_000_000, narrow=150_000_000, warm=8, tokens=16, prompt=128, limit_s=20.0)


def main() -> int:
    arguments = parse()
    size = TINY if arguments.tiny else Size()
    place, reason = cgroup.find()
    if place is None:
        print(f"bench-moe: skipped, memory cannot be limited here: {reason}", file=sys.stderr)
        return 0
    if why := native.missing():
        print(f"bench-moe: {why}", file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="bench-moe-", dir=arguments.models) as work:
            bench = Bench(size, place, arguments.models, Path(work), dict(arguments.option), arguments.keep)
            return finish(bench, bench.run(arguments.only, arguments.skew), arguments)
    except model.NoRoom as error:
        print(f"bench-moe: {error}; say another folder with --models", file=sys.stderr)
        return 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("BENCH_MOE_MODELS", "/var/tmp/drivetrain-bench-moe")
    parser.add_argument("--models", type=Path, default=Path(folder), help="where models are kept [$BENCH_MOE_MODELS]")
    parser.add_argument("--only", action="append", default=[], help="subjects whose name contains this")
    parser.add_argument("--skew", action="append", type=float, default=[], help="models: 0.3, 0 [both]")
    parser.add_argument("--option", action="append", type=lambda text: tuple(text.split("=", 1)), default=[])
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    parser.add_argument("--keep", type=Path, help="folder for the logs of the subjects")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    return arguments


def subjects(size: Size) -> Iterator[Subject]:
    """In order; the last one repeats the first, to tell how far the machine drifted."""
    stock = tuple((size.prompt, batch) for batch in STOCK_BATCHES)
    ours = ((size.prompt, OURS_BATCH),)
    yield Subject("stock in memory", 0.3, prompts=stock, read_first=True)
    yield Subject("stock in memory, not repacked", 0.3, prompts=stock, read_first=True, repack=False)
    yield Subject("stock mmap", 0.3, size.wide, repack=False)
    for limit in (size.wide, size.narrow):
        yield Subject("ours", 0.3, limit, ours=True, prompts=ours)
        yield Subject("ours, container", 0.3, limit, "jns", ours=True, prompts=ours)
    yield Subject("ours all in memory", 0.3, None, ours=True, prompts=ours * 2)
    yield Subject("stock in memory, again", 0.3, read_first=True)
    yield Subject("stock mmap", 0.0, size.wide, repack=False)
    yield Subject("ours", 0.0, size.wide, ours=True, prompts=ours)


@dataclass(frozen=True)
class Bench:
    size: Size
    place: cgroup.Place
    models: Path
    work: Path
    options: dict[str, str]
    logs: Path | None

    def run(self, only: Sequence[str], skews: Sequence[float]) -> tuple[list[Measured], Probes]:
        chosen = [
            one
            for one in subjects(self.size)
            if (not only or any(word in one.name for word in only)) and (not skews or one.skew in skews)
        ]
        if not chosen:
            raise SystemExit("bench-moe: no subject is called like that")
        made = {one.skew: self.weights(one.skew) for one in chosen}
        before = probes(next(iter(made.values())))
        measured = []
        for one in chosen:
            measured.append(self.measure(one, made[one.skew]))
            print(brief(measured[-1]), flush=True)
        return measured, joined(before, probes(next(iter(made.values()))))

    def weights(self, skew: float) -> Path:
        return model.cached(self.models, self.size.shape, skew)

    def container(self, weights: Path) -> Path:
        path = weights.with_suffix(".jns")
        if not path.exists():
            print(f"packing {path.name} …", flush=True)
            model.need_room(path.parent, weights.stat().st_size, path.name)
            native.pack(weights, path)
        return path

    def measure(self, one: Subject, weights: Path) -> Measured:
        orders = self.orders(one, self.container(weights) if one.file == "jns" else weights)
        for path in {weights, Path(orders.model), Path(orders.options.get("model", weights))}:
            left = cgroup.evict(path)
            if left > cgroup.LEAST_FREE:
                print(f"  warning: {left / 1e6:.0f} MB of {path.name} stay in the page cache", file=sys.stderr)
        with cgroup.group(self.place, one.limit) as group:
            return self.watched(one, orders, group)

    def orders(self, one: Subject, path: Path) -> Orders:
        size = self.size
        plain = Orders(
            model=str(path),
            repack=one.repack,
            threads=THREADS,
            read_first=str(path) if one.read_first else None,
            warm=size.warm,
            tokens=size.tokens,
            limit_s=size.limit_s,
            prompts=one.prompts,
        )
        if not one.ours:
            return plain
        shell = self.work / f"{path.name}.shell.gguf"
        if not shell.exists():
            native.shell(path, shell)
        options = {"model": str(path), "threads": str(THREADS), "stats": str(self.work / "stats")} | self.options
        return replace(plain, model=str(shell), load_mode="direct", library=str(native.library_path()), options=options)

    def watched(self, one: Subject, orders: Orders, group: cgroup.Group) -> Measured:
        with suppress(FileNotFoundError):
            (self.work / "stats").unlink()
        log = (self.logs or self.work) / f"{one.name}-{one.skew:g}-{one.limit}.log".replace(" ", "_")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as errors:
            child = subprocess.Popen(
                [sys.executable, str(HERE / "subject.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=group.enter,  # a write to a file, and no other thread runs
            )
            with Watch(group) as watch:
                try:
                    out, _ = child.communicate(json.dumps(asdict(orders)).encode())
                finally:
                    child.kill()
                    child.wait()
        return self.told(one, out, child.returncode, watch, tail(log))

    def told(self, one: Subject, out: bytes, code: int, watch: Watch, log: str) -> Measured:
        base = Measured(name=one.name, skew=one.skew, limit=one.limit, file=one.file)
        results: dict[str, Any] = json.loads(out) if out else {}
        if code or "error" in results:
            killed = "killed: out of memory" if code == KILLED else f"exit {code}: {log}"
            return replace(base, error=results.get("error", killed))
        decode = results["decode"]
        return replace(
            base,
            tokens=decode["tokens"],
            seconds=decode["seconds"],
            answers=tuple(decode["answers"]),
            prompts=tuple((each["batch"], each["tokens"] / each["seconds"]) for each in results["prompts"]),
            load_s=results["load_s"],
            peak_bytes=watch.peak,
            anonymous_bytes=watch.anonymous,
            stalled=watch.stalled,
            counters=self.counters("") if one.ours else None,
            prompt_counters=self.counters(f"prompt-{one.prompts[-1][1]}-") if one.ours and one.prompts else None,
        )

    def counters(self, phase: str) -> Counters:
        before, after = (page.read(self.work / f"stats.{phase}{name}") for name in ("before", "after"))
        if before is None or after is None:
            raise SystemExit("bench-moe: the plugin left no page of counters")
        return Counters(
            hits=after.hits - before.hits,
            misses=after.misses - before.misses,
            read_bytes=after.read_bytes - before.read_bytes,
            reads=after.reads - before.reads,
            wait_ns=after.wait_ns - before.wait_ns,
            budget=max(before.budget, after.budget),
            resident=after.resident,
        )


class Watch:
    """Looks at a group while its process runs."""

    def __init__(self, group: cgroup.Group) -> None:
        self._group, self._over = group, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.anonymous, self.peak, self.stalled = 0, None, None

    def __enter__(self) -> Watch:
        self._begun = datetime.datetime.now(tz=datetime.UTC)
        self._stalled_us = self._group.stalled_us()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()
        self.peak = self._group.peak()
        stalled_us = self._group.stalled_us()
        seconds = (datetime.datetime.now(tz=datetime.UTC) - self._begun).total_seconds()
        if stalled_us is not None and self._stalled_us is not None:
            self.stalled = (stalled_us - self._stalled_us) / 1e6 / seconds

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            self.anonymous = max(self.anonymous, self._group.anonymous())


def probes(weights: Path) -> Probes:
    """Memory with as many threads as are used, and the drive, past the page cache."""
    memory = tuple(native.probe_memory(THREADS, PROBE_MS) for _ in range(3))
    drive = {
        depth: tuple(
            native.probe_drive(weights, io="auto", direct=True, depth=depth, piece=PIECE_BYTES, ms=PROBE_MS)
            for _ in range(3)
        )
        for depth in DEPTHS
    }
    return Probes(memory=memory, drive=drive)


def joined(before: Probes, after: Probes) -> Probes:
    drive = {depth: before.drive[depth] + after.drive[depth] for depth in before.drive}
    return Probes(memory=before.memory + after.memory, drive=drive)


def tail(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-2:])[-300:]


def brief(one: Measured) -> str:
    head = f"{one.name}, skew {one.skew:g}, {'no limit' if one.limit is None else f'{one.limit / 1e9:.1f} GB'}"
    if one.error:
        return f"{head}: {one.error}"
    hits = f", {one.counters.hit_rate:.1%} hits, {one.waiting:.0%} waiting" if one.counters else ""
    prompts = "".join(f", prompt {rate:.0f} ({batch} at once)" for batch, rate in one.prompts)
    return f"{head}: {one.tokens_s:.2f} tokens/s{hits}{prompts}"


def finish(bench: Bench, outcome: tuple[list[Measured], Probes], arguments: argparse.Namespace) -> int:
    measured, rates = outcome
    header = gguf.read(bench.weights(measured[0].skew))
    shape = predict.shape([header])
    assert shape is not None
    context = context_bytes(bench.size, header)
    found = report.targets(measured, shape, rates, context, wide=bench.size.wide, narrow=bench.size.narrow)
    text = report.page(measured, found, shape, rates, about(bench))
    print(f"\n{text}")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "moe.md").write_text(text)
        write_figures(arguments.out, "moe", report.record(measured, found, rates))
    return 0


def context_bytes(size: Size, header: gguf.Gguf) -> int:
    """Of the longest context: keys and values of 16 bits."""
    cells = -(-max(size.prompt, size.warm + size.tokens + 16) // 256) * 256
    arch = header.architecture
    widths = header.whole(f"{arch}.attention.key_length") + header.whole(f"{arch}.attention.value_length")
    heads = header.whole(f"{arch}.attention.head_count_kv")
    return 2 * cells * widths * heads * header.whole(f"{arch}.block_count")


def about(bench: Bench) -> list[str]:
    options = " ".join(f"{name}={value}" for name, value in bench.options.items()) or "none"
    return [
        f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d %H:%M} UTC, {processor()}, {os.cpu_count()} cores, "
        f"Linux {platform.release()}; load average {os.getloadavg()[2]:.1f}",
        f"model {bench.size.shape.label}, {bench.size.warm} tokens to warm up, {bench.size.tokens} measured, "
        f"{THREADS} threads; options of the plugin: {options}",
    ]


if __name__ == "__main__":
    sys.exit(main())
