"""What the figures of a run mean: the bound, the targets, and the page that tells both. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drivetrain.engines.expertstream import predict

SLACK_BYTES = 256 * 2**20  # over budget, dense tensors and context
GB = 1e9


@dataclass(frozen=True)
class Counters:
    """Of the plugin, over the measured part."""

    hits: int
    misses: int
    read_bytes: int
    reads: int
    wait_ns: int
    budget: int  # the most
    resident: int

    @property
    def hit_rate(self) -> float:
        return self.hits / max(self.hits + self.misses, 1)


@dataclass(frozen=True)
class Turn:
    """Some tokens of a subject, and how long stock with the model in memory took for as many right afterwards."""

    tokens: int
    seconds: float
    beside_s: float | None = None


@dataclass(frozen=True)
class Measured:
    """One subject."""

    name: str
    skew: float
    limit: int | None
    file: str  # "gguf" or "jns"
    error: str = ""
    turns: tuple[Turn, ...] = ()
    answers: tuple[int, ...] = ()
    prompts: tuple[tuple[int, float], ...] = ()  # tokens computed at once, tokens per second
    load_s: float = 0.0
    peak_bytes: int | None = None  # charged to the control group, page cache and all
    anonymous_bytes: int = 0  # the most that was seen of memory that is no file's
    stalled: float | None = None  # share of time in which memory held everything up (PSI full)
    counters: Counters | None = None
    prompt_counters: Counters | None = None  # of the last prompt

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self.turns)

    @property
    def of_stock(self) -> float | None:
        """Its pace over that of stock in memory: the median of the turns."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def ratios(self) -> list[float]:
        """The same, turn by turn."""
        return [turn.beside_s / turn.seconds for turn in self.turns if turn.beside_s is not None]

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def prompt_tokens_s(self) -> float:
        return max((rate for _, rate in self.prompts), default=0.0)

    @property
    def waiting(self) -> float:
        return self.counters.wait_ns / 1e9 / self.seconds if self.counters and self.seconds else 0.0


@dataclass(frozen=True)
class Probes:
    """Bytes per second, as often as they were taken in this run."""

    memory: tuple[float, ...]
    drive: Mapping[int, tuple[float, ...]]  # by reads in flight

    @property
    def memory_bytes_s(self) -> float:
        return statistics.median(self.memory)

    @property
    def drive_bytes_s(self) -> float:
        return max(statistics.median(rates) for rates in self.drive.values())

    @property
    def machine(self) -> predict.Machine:
        return predict.Machine(
            memory_bytes_s=self.memory_bytes_s, drive_bytes_s=self.drive_bytes_s, multiply_adds_s=1.0
        )


@dataclass(frozen=True)
class Target:
    what: str
    value: float | None  # None: could not be measured
    wanted: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "NOT MEASURED"
        return "met" if (self.value <= self.wanted if self.at_most else self.value >= self.wanted) else "MISSED"


def of_bound(one: Measured, shape: predict.Shape, probes: Probes) -> float | None:
    """Measured tokens per second over what memory and drive allow, with the bytes that were really read."""
    if not one.tokens:
        return None
    if one.counters is None:
        return one.tokens_s / predict.bound(shape, probes.machine, 1.0)
    read = one.counters.read_bytes / one.tokens
    memory_s = (shape.dense_token_bytes + shape.expert_token_bytes + read) / probes.memory_bytes_s
    return one.tokens_s * max(memory_s, read / probes.drive_bytes_s)


def over(one: Measured, shape: predict.Shape, context_bytes: int) -> int | None:
    """Bytes of memory beyond budget, dense tensors and context."""
    if one.counters is None or not one.tokens:
        return None
    return one.anonymous_bytes - one.counters.budget - shape.dense_bytes - context_bytes


def targets(
    measured: Sequence[Measured], shape: predict.Shape, probes: Probes, context_bytes: int, *, wide: int, narrow: int
) -> list[Target]:
    """The issue's, in its order; of GGUF and container, the better one counts."""
    prompt = max((one.prompt_tokens_s for one in _of(measured, 0.3, None, ours=False)), default=None)
    roomy, tight, all_in = (_best(measured, 0.3, limit) for limit in (wide, narrow, None))
    mmap, worst_mmap = (_rate(measured, skew, wide, ours=False) for skew in (0.3, 0.0))
    worst = _rate(measured, 0.0, wide, ours=True)
    beyond = [extra for one in measured if (extra := over(one, shape, context_bytes)) is not None]
    stalls = [one.stalled for one in measured if one.counters and one.stalled is not None]
    slack, extra = SLACK_BYTES / 1e6, max(beyond) / 1e6 if beyond else None
    return [
        Target("4.4 GB, over stock mmap", _ratio(roomy and roomy.tokens_s, mmap), 20),
        Target("4.4 GB, over stock in memory", roomy and roomy.of_stock, 0.9),
        Target("2.6 GB, over stock in memory", tight and tight.of_stock, 0.7),
        Target("4.4 GB, fraction of bound", roomy and of_bound(roomy, shape, probes), 0.85),
        Target("2.6 GB, fraction of bound", tight and of_bound(tight, shape, probes), 0.85),
        Target("prompt in 4.4 GB, over stock in memory", _ratio(_prompt(measured, 0.3, wide), prompt), 0.8),
        Target("all in memory, over stock in memory", all_in and all_in.of_stock, 0.97),
        Target("skew 0 in 4.4 GB, over stock mmap", _ratio(worst, worst_mmap), 5),
        Target("memory beyond budget, dense tensors and context, MB", extra, slack, at_most=True),
        Target("PSI full of memory, %", max(stalls) * 100 if stalls else None, 1, at_most=True),
    ]


def _of(measured: Iterable[Measured], skew: float, limit: int | None, *, ours: bool) -> list[Measured]:
    return [
        one
        for one in measured
        if one.skew == skew and one.limit == limit and one.tokens and (one.counters is not None) == ours
    ]


def _best(measured: Iterable[Measured], skew: float, limit: int | None) -> Measured | None:
    return max(_of(measured, skew, limit, ours=True), key=lambda one: one.of_stock or one.tokens_s, default=None)


def _rate(measured: Iterable[Measured], skew: float, limit: int | None, *, ours: bool) -> float | None:
    return max((one.tokens_s for one in _of(measured, skew, limit, ours=ours)), default=None)


def _prompt(measured: Iterable[Measured], skew: float, limit: int | None) -> float | None:
    return max((one.prompt_tokens_s for one in _of(measured, skew, limit, ours=True) if one.prompts), default=None)


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


# --- the page ---------------------------------------------------------------------------------------------------------

HEADINGS = (
    "Model", "Subject", "Limit", "tokens/s", "of stock in memory", "hits", "read/token", "reads/token", "waiting",
    "of bound", "budget", "anonymous", "charged", "PSI full", "load", "prompt tokens/s", "prompt read",
    "prompt waiting", "same words",
)  # fmt: skip


def rows(measured: Sequence[Measured], shape: predict.Shape, probes: Probes) -> list[tuple[str, ...]]:
    return [_row(one, shape, probes, _agreement(one, measured)) for one in measured]


def _row(one: Measured, shape: predict.Shape, probes: Probes, agreement: str) -> tuple[str, ...]:
    limit = "none" if one.limit is None else f"{one.limit / GB:.1f} GB"
    head = (f"skew {one.skew:g}", one.name, limit)
    if one.error:
        return (*head, one.error, *("-",) * (len(HEADINGS) - 4))
    counters, tokens = one.counters, max(one.tokens, 1)
    fraction = of_bound(one, shape, probes)
    return (
        *head,
        f"{one.tokens_s:.2f}",
        _in_turns(one),
        f"{counters.hit_rate:.1%}" if counters else "-",
        f"{counters.read_bytes / tokens / 1e6:.1f} MB" if counters else "-",
        f"{counters.reads / tokens:.1f}" if counters else "-",
        f"{one.waiting:.0%}" if counters else "-",
        f"{fraction:.2f}" if fraction else "-",
        f"{counters.budget / GB:.2f} GB" if counters else "-",
        f"{one.anonymous_bytes / GB:.2f} GB",
        f"{one.peak_bytes / GB:.2f} GB" if one.peak_bytes else "-",
        f"{one.stalled:.2%}" if one.stalled is not None else "-",
        f"{one.load_s:.1f} s",
        ", ".join(f"{rate:.1f} ({batch} at once)" for batch, rate in one.prompts) or "-",
        f"{one.prompt_counters.read_bytes / GB:.2f} GB" if one.prompt_counters else "-",
        f"{one.prompt_counters.wait_ns / 1e9:.1f} s" if one.prompt_counters else "-",
        agreement,
    )


def _in_turns(one: Measured) -> str:
    """Median of the turns, the lowest and the highest."""
    return f"{one.of_stock:.3f} ({min(one.ratios):.2f}–{max(one.ratios):.2f})" if one.ratios else "-"


def _agreement(one: Measured, measured: Sequence[Measured]) -> str:
    """Of the first tokens' most likely successors, how many are those of the first run with this model."""
    first = next((other for other in measured if other.skew == one.skew and other.answers), one)
    pairs = list(zip(one.answers, first.answers, strict=False))
    return f"{sum(a == b for a, b in pairs)}/{len(pairs)}" if pairs else "-"


def page(
    measured: Sequence[Measured], found: Sequence[Target], shape: predict.Shape, probes: Probes, about: Sequence[str]
) -> str:
    drive = ", ".join(f"{depth}: {statistics.median(rates) / GB:.2f}" for depth, rates in probes.drive.items())
    memory = ", ".join(f"{rate / GB:.1f}" for rate in probes.memory)
    verdicts = [
        (one.what, f"at {'most' if one.at_most else 'least'} {one.wanted:g}", _value(one.value), one.verdict)
        for one in found
    ]
    parts = [
        "# Mixture of Experts larger than memory\n",
        "Written by `make bench-moe`; `bench/LOG.md` tells what was tried.\n",
        "\n".join(f"- {line}" for line in about),
        f"- memory, GB/s, each probe: {memory}; drive, GB/s by reads in flight, medians: {drive}",
        f"- a token reads {shape.dense_token_bytes / 1e6:.0f} MB of dense tensors and "
        f"{shape.expert_token_bytes / 1e6:.0f} MB of experts; all in memory, memory allows "
        f"{predict.bound(shape, probes.machine, 1.0):.1f} tokens/s\n",
        table(HEADINGS, rows(measured, shape, probes)),
        "",
        table(("Target", "Wanted", "Measured", "Verdict"), verdicts),
    ]
    return "\n".join(parts) + "\n"


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (headings, ["---"] * len(headings), *lines))


def record(measured: Sequence[Measured], found: Sequence[Target], probes: Probes) -> dict[str, Any]:
    """All figures, for a program."""
    return {
        "measured": [asdict(one) for one in measured],
        "targets": [asdict(one) | {"verdict": one.verdict} for one in found],
        "probes": {"memory": probes.memory, "drive": dict(probes.drive)},
    }
