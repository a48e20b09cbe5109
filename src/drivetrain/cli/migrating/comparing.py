"""Two engines side by side, by what each answered to the same prompts. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from drivetrain.gateway.shadow import alike
from drivetrain.types import Response, Value


class Answer(Value, frozen=True, kw_only=True):
    """What an engine made of one prompt. Durations in seconds."""

    response: Response | None = None  # None: it failed
    why: str = ""
    first_token_s: float | None = None
    total_s: float = 0.0
    tokens: int = 0


class Column(Value, frozen=True, kw_only=True):
    """What an engine made of all of them."""

    engine: str
    model: str
    requests: int
    failures: int
    why: str  # of the first failure
    first_token_s: float | None  # the median
    first_token_p95_s: float | None
    tokens_per_s: float | None  # the median, of one answer
    total_s: float | None
    total_p95_s: float | None


class Comparison(Value, frozen=True, kw_only=True):
    """Of one public name."""

    name: str
    source: Column
    target: Column
    alike: float | None  # the mean over prompts, from 0, nothing in common, to 1, the same

    @property
    def worse(self) -> bool:
        """The target fails where the source does not."""
        return self.target.failures > self.source.failures


def column(engine: str, model: str, answers: Sequence[Answer]) -> Column:
    well = [answer for answer in answers if answer.response is not None]
    first = [answer.first_token_s for answer in well if answer.first_token_s is not None]
    total = [answer.total_s for answer in well]
    speeds = [speed for answer in well if (speed := _speed(answer)) is not None]
    return Column(
        engine=engine,
        model=model,
        requests=len(answers),
        failures=len(answers) - len(well),
        why=next((answer.why for answer in answers if answer.response is None), ""),
        first_token_s=median(first) if first else None,
        first_token_p95_s=_p95(first),
        tokens_per_s=median(speeds) if speeds else None,
        total_s=median(total) if total else None,
        total_p95_s=_p95(total),
    )


def likeness(one: Sequence[Answer], other: Sequence[Answer]) -> float | None:
    """Of the answers to the same prompts, where there are two."""
    pairs = [(a.response, b.response) for a, b in zip(one, other, strict=True)]
    values = [alike("similarity", a, b) for a, b in pairs if a is not None and b is not None]
    return fmean(values) if values else None


def _speed(answer: Answer) -> float | None:
    writing_s = answer.total_s - answer.first_token_s if answer.first_token_s is not None else 0.0
    return (answer.tokens - 1) / writing_s if answer.tokens > 1 and writing_s > 0 else None


def _p95(values: Sequence[float]) -> float | None:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def rows(one: Comparison) -> list[tuple[str, str, str, str]]:
    """What is compared, both engines, and how many times the source's the target's is."""
    a, b = one.source, one.target
    figures = [
        ("first token, median", a.first_token_s, b.first_token_s, 1000, "ms"),
        ("first token, 95th percentile", a.first_token_p95_s, b.first_token_p95_s, 1000, "ms"),
        ("tokens per second", a.tokens_per_s, b.tokens_per_s, 1, ""),
        ("whole answer, median", a.total_s, b.total_s, 1000, "ms"),
        ("whole answer, 95th percentile", a.total_p95_s, b.total_p95_s, 1000, "ms"),
    ]
    counts = [
        ("requests", f"{a.requests}", f"{b.requests}", ""),
        ("failed", f"{a.failures}", f"{b.failures}", ""),
    ]
    measured = [(what, _figure(x, n, unit), _figure(y, n, unit), _ratio(x, y)) for what, x, y, n, unit in figures]
    return [*counts, *measured]


def _figure(value: float | None, times: int, unit: str) -> str:
    if value is None:
        return "-"
    shown = value * times
    return f"{shown:,.0f} {unit}".strip() if shown >= 999.5 else f"{shown:.3g} {unit}".strip()


def _ratio(one: float | None, other: float | None) -> str:
    return f"x {other / one:.2f}" if one and other is not None else ""
