#!/usr/bin/env python3
"""A Mixture-of-Experts model of 8.5 GB under memory limits: stock llama.cpp and ours, in one run.

    python bench/moe/run.py                       everything: makes the models (once), half an hour
    python bench/moe/run.py --only ours           subjects whose name contains the word; repeatable
    python bench/moe/run.py --option io=uring     an option for the plugin, see native/src/api.h; repeatable
    python bench/moe/run.py --tiny                a model of 20 MB, to see that all of this works

Every subject is a process of its own in a memory control group of its own; no page of the models is in the page cache
when one starts. Each token is given by chance (the same ones to all), with two threads. Stock llama.cpp with the model
in memory stays loaded beside the others, idle but for its turns: it and the subject decode sixteen tokens in turns, so
that what else the machine does falls on both. Without a writable memory control group nothing is measured, and the
reason is told.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cgroup
import model
import report
from process import Died, Running, running
from report import Counters, Measured, Probes, Turn
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
    in_turns: bool = False  # with stock in memory


@dataclass(frozen=True)
class Size:
    """What is measured, and how much of it."""

    shape: model.Shape = model.LARGE
    wide: int = 4_400_000_000
    narrow: int = 2_600_000_000
    warm: int = 96
    tokens: int = 128
    turn: int = 16
    prompt: int = PROMPT
    limit_s: float = 90.0


TINY = Size(shape=model.TINY, wide=200_000_000, narrow=150_000_000, warm=8, tokens=16, turn=4, prompt=128, limit_s=20.0)


def main() -> int:
    arguments = parse()
    size = TINY if arguments.tiny else Size()
    place = measurable("bench-moe")
    if isinstance(place, int):
        return place
    try:
        with tempfile.TemporaryDirectory(prefix="bench-moe-", dir=arguments.models) as work:
            prompts = not arguments.no_prompts
            bench = Bench(size, place, arguments.models, Path(work), dict(arguments.option), arguments.keep, prompts)
            return finish(bench, bench.run(arguments.only, arguments.skew), arguments)
    except model.NoRoom as error:
        print(f"bench-moe: {error}; say another folder with --models", file=sys.stderr)
        return 1


def measurable(name: str) -> cgroup.Place | int:
    """Where memory can be limited; else what the program of that name ends with, and the reason is told."""
    place, reason = cgroup.find()
    if place is None:
        print(f"{name}: skipped, memory cannot be limited here: {reason}", file=sys.stderr)
        return 0
    if why := native.missing():
        print(f"{name}: {why}", file=sys.stderr)
        return 1
    return place


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=Path, default=folder_of_models(), help="where models are kept [$BENCH_MOE_MODELS]"
    )
    parser.add_argument("--only", action="append", default=[], help="subjects whose name contains this")
    parser.add_argument("--skew", action="append", type=float, default=[], help="models: 0.3, 0 [both]")
    parser.add_argument("--option", action="append", type=lambda text: tuple(text.split("=", 1)), default=[])
    parser.add_argument("--out", type=Path, help="folder to write the figures to, such as bench/results")
    parser.add_argument("--keep", type=Path, help="folder for the logs of the subjects")
    parser.add_argument("--no-prompts", action="store_true", help="decoding alone: a fifth of the time")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    return arguments


def folder_of_models() -> Path:
    return Path(os.environ.get("BENCH_MOE_MODELS", "/var/tmp/drivetrain-bench-moe"))


def subjects(size: Size) -> Iterator[Subject]:
    """In order; those that take turns with stock in memory follow each other."""
    stock = tuple((size.prompt, batch) for batch in STOCK_BATCHES)
    ours = ((size.prompt, OURS_BATCH),)
    yield Subject("stock in memory", 0.3, prompts=stock, read_first=True)
    yield Subject("stock in memory, not repacked", 0.3, prompts=stock, read_first=True, repack=False)
    yield Subject("stock mmap", 0.3, size.wide, repack=False)
    for limit in (size.wide, size.narrow):
        yield Subject("ours", 0.3, limit, ours=True, prompts=ours, in_turns=True)
        yield Subject("ours, container", 0.3, limit, "jns", ours=True, prompts=ours, in_turns=True)
    yield Subject("ours all in memory", 0.3, None, ours=True, prompts=ours * 2, in_turns=True)
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
    prompts: bool

    def run(self, only: Sequence[str], skews: Sequence[float]) -> tuple[list[Measured], Probes]:
        chosen = [
            one if self.prompts else replace(one, prompts=())
            for one in subjects(self.size)
            if (not only or any(word in one.name for word in only)) and (not skews or one.skew in skews)
        ]
        if not chosen:
            raise SystemExit("bench-moe: no subject is called like that")
        made = {one.skew: self.weights(one.skew) for one in chosen}
        before = probes(next(iter(made.values())))
        with ExitStack() as company:
            measured = list(self.each(chosen, made, company))
        return measured, joined(before, probes(next(iter(made.values()))))

    def each(self, chosen: Sequence[Subject], made: dict[float, Path], company: ExitStack) -> Iterator[Measured]:
        beside: Running | None = None
        for one in chosen:
            if not one.in_turns:
                company.close()  # its memory may be wanted
                beside = None
            elif beside is None:
                beside = self.start(Subject("stock beside", one.skew, read_first=True), made[one.skew], company)
            found = self.measure(one, made[one.skew], beside)
            print(brief(found), flush=True)
            yield found

    def weights(self, skew: float) -> Path:
        return model.cached(self.models, self.size.shape, skew)

    def container(self, weights: Path) -> Path:
        path = weights.with_suffix(".jns")
        if not path.exists():
            print(f"packing {path.name} …", flush=True)
            model.need_room(path.parent, weights.stat().st_size, path.name)
            native.pack(weights, path)
        return path

    def measure(self, one: Subject, weights: Path, beside: Running | None) -> Measured:
        """One subject; `beside` takes turns with it."""
        if beside:
            beside.ask(again=True)  # its context is to be as long as the subject's
        try:
            with ExitStack() as stays:
                watch = Watch()
                process = self.start(one, weights, stays, watch)
                turns = self.turns(process, beside)
        except Died as error:
            return replace(nothing(one), error=str(error))
        return self.told(one, process.told, turns, watch)

    def start(self, one: Subject, weights: Path, stays: ExitStack, watch: Watch | None = None) -> Running:
        """Its process, ready, in a group of its own, for as long as `stays`. Raises `Died`."""
        orders = self.orders(one, self.container(weights) if one.file == "jns" else weights)
        for path in {weights, Path(orders.model), Path(orders.options.get("model", weights))}:
            left = cgroup.evict(path)
            if left > cgroup.LEAST_FREE:
                print(f"  warning: {left / 1e6:.0f} MB of {path.name} stay in the page cache", file=sys.stderr)
        group = stays.enter_context(cgroup.group(self.place, one.limit))
        if watch:
            stays.enter_context(watch.of(group))
        with suppress(FileNotFoundError):
            (self.work / "stats").unlink()
        log = (self.logs or self.work) / f"{one.name}-{one.skew:g}-{one.limit}.log".replace(" ", "_")
        return stays.enter_context(running(orders, group, log))

    def turns(self, process: Running, beside: Running | None) -> list[Turn]:
        if beside is None:
            return [Turn(*process.turn(self.size.tokens, self.size.limit_s))]
        each, limit_s = self.size.turn, self.size.limit_s
        return [
            Turn(*process.turn(each, limit_s), beside_s=beside.turn(each, limit_s)[1])
            for _ in range(self.size.tokens // each)
        ]

    def orders(self, one: Subject, path: Path) -> Orders:
        size = self.size
        plain = Orders(
            model=str(path),
            load_mode="none" if one.read_first and one.repack else "mmap",  # rearranged it is a copy: no pages to keep
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

    def told(self, one: Subject, results: dict[str, Any], turns: Sequence[Turn], watch: Watch) -> Measured:
        return replace(
            nothing(one),
            turns=tuple(turns),
            answers=tuple(results["answers"]),
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

    def __init__(self) -> None:
        self.anonymous = 0
        self.peak: int | None = None
        self.stalled: float | None = None

    @contextmanager
    def of(self, group: cgroup.Group) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._look, args=(group, over), daemon=True)
        begun, before = time.monotonic(), group.stalled_us()
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.peak, after = group.peak(), group.stalled_us()
            if before is not None and after is not None:
                self.stalled = (after - before) / 1e6 / (time.monotonic() - begun)

    def _look(self, group: cgroup.Group, over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            self.anonymous = max(self.anonymous, group.anonymous())


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


def nothing(one: Subject) -> Measured:
    return Measured(name=one.name, skew=one.skew, limit=one.limit, file=one.file)


def brief(one: Measured) -> str:
    head = f"{one.name}, skew {one.skew:g}, {'no limit' if one.limit is None else f'{one.limit / 1e9:.1f} GB'}"
    if one.error:
        return f"{head}: {one.error}"
    hits = f", {one.counters.hit_rate:.1%} hits, {one.waiting:.0%} waiting" if one.counters else ""
    times = f" = {one.of_stock:.3f} of stock in memory" if one.of_stock else ""
    prompts = "".join(f", prompt {rate:.0f} ({batch} at once)" for batch, rate in one.prompts)
    return f"{head}: {one.tokens_s:.2f} tokens/s{times}{hits}{prompts}"


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
