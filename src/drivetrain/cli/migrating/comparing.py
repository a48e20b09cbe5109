"""Two engines side by side, by what each made of the same requests: answers in words, or vectors. Pure."""

import math
from collections.abc import Mapping, Sequence
from operator import mul
from statistics import fmean, median
from typing import Literal, NamedTuple

from drivetrain.gateway.shadow import alike
from drivetrain.types import Embeddings, Response, Value

Kind = Literal["answers", "vectors"]


class Answer(Value, frozen=True, kw_only=True):
    """What an engine made of one request. Durations in seconds."""

    said: Response | Embeddings | None = None  # None: it failed
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
    vectors_per_s: float | None  # the median, of one request
    dimensions: tuple[int, ...]  # of vectors: every length that there is
    total_s: float | None
    total_p95_s: float | None


class Comparison(Value, frozen=True, kw_only=True):
    """Of one public name."""

    name: str
    of: Kind
    source: Column
    target: Column
    alike: float | None  # the mean over requests, from 0, nothing in common, to 1, the same
    fits: bool  # vectors of the target are as long as the source's

    @property
    def worse(self) -> bool:
        """The target fails where the source does not, or gives vectors that cannot take the place of the source's."""
        return self.target.failures > self.source.failures or not self.fits

    def apart(self, least: float) -> bool:
        """Less alike than that, or there is nothing that tells it."""
        return (self.alike or 0.0) < least


class _Figure(NamedTuple):
    what: str
    field: str  # of a column
    times: int = 1
    unit: str = ""


_WHOLE = (
    _Figure("whole answer, median", "total_s", 1000, "ms"),
    _Figure("whole answer, 95th percentile", "total_p95_s", 1000, "ms"),
)
_FIGURES: Mapping[Kind, Sequence[_Figure]] = {
    "answers": (
        _Figure("first token, median", "first_token_s", 1000, "ms"),
        _Figure("first token, 95th percentile", "first_token_p95_s", 1000, "ms"),
        _Figure("tokens per second", "tokens_per_s"),
        *_WHOLE,
    ),
    "vectors": (_Figure("vectors per second", "vectors_per_s"), *_WHOLE),
}


def compared(name: str, of: Kind, *, source: Column, target: Column, both: Sequence[Sequence[Answer]]) -> Comparison:
    """`both`: what each side made of the same requests, in their order."""
    pairs = [(a.said, b.said) for a, b in zip(*both, strict=True) if a.said is not None and b.said is not None]
    values = [_alike(*pair) for pair in pairs]
    fits = all(_lengths(a) == _lengths(b) for a, b in pairs)
    return Comparison(
        name=name, of=of, source=source, target=target, alike=fmean(values) if values else None, fits=fits
    )


def column(engine: str, model: str, answers: Sequence[Answer]) -> Column:
    well = [answer for answer in answers if answer.said is not None]
    first = [answer.first_token_s for answer in well if answer.first_token_s is not None]
    total = [answer.total_s for answer in well]
    return Column(
        engine=engine,
        model=model,
        requests=len(answers),
        failures=len(answers) - len(well),
        why=next((answer.why for answer in answers if answer.said is None), ""),
        first_token_s=_median(first),
        first_token_p95_s=_p95(first),
        tokens_per_s=_median([speed for answer in well if (speed := _speed(answer)) is not None]),
        vectors_per_s=_median([pace for answer in well if (pace := _pace(answer)) is not None]),
        dimensions=tuple(sorted({length for answer in well for length in _lengths(answer.said)})),
        total_s=_median(total),
        total_p95_s=_p95(total),
    )


def _alike(one: Response | Embeddings, other: Response | Embeddings) -> float:
    if isinstance(one, Embeddings) and isinstance(other, Embeddings):
        return fmean(cosine(a, b) for a, b in zip(one.vectors, other.vectors, strict=True))
    if isinstance(one, Response) and isinstance(other, Response):
        return alike("similarity", one, other)
    raise TypeError("answers are compared with answers, and vectors with vectors")


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the angle between two vectors; 0 where it is wider than a right one, or they have not as many numbers."""
    lengths = math.hypot(*one) * math.hypot(*other)
    if len(one) != len(other) or not lengths:
        return 0.0
    return min(1.0, max(0.0, math.fsum(map(mul, one, other)) / lengths))


def _lengths(said: Response | Embeddings | None) -> Sequence[int]:
    return [len(vector) for vector in said.vectors] if isinstance(said, Embeddings) else ()


def _speed(answer: Answer) -> float | None:
    writing_s = answer.total_s - answer.first_token_s if answer.first_token_s is not None else 0.0
    return (answer.tokens - 1) / writing_s if answer.tokens > 1 and writing_s > 0 else None


def _pace(answer: Answer) -> float | None:
    number = len(_lengths(answer.said))
    return number / answer.total_s if number and answer.total_s > 0 else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _p95(values: Sequence[float]) -> float | None:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def rows(one: Comparison) -> list[tuple[str, str, str, str]]:
    """What is compared, both engines, and how many times the source's the target's is."""
    a, b = one.source, one.target
    counts = [
        ("requests", f"{a.requests}", f"{b.requests}", ""),
        ("failed", f"{a.failures}", f"{b.failures}", ""),
    ]
    if one.of == "vectors":
        counts.append(("numbers in a vector", _all(a.dimensions), _all(b.dimensions), ""))
    return [*counts, *(_measured(figure, a, b) for figure in _FIGURES[one.of])]


def _all(dimensions: Sequence[int]) -> str:
    return ", ".join(f"{each:,}" for each in dimensions) or "-"


def _measured(figure: _Figure, one: Column, other: Column) -> tuple[str, str, str, str]:
    a, b = getattr(one, figure.field), getattr(other, figure.field)
    return (figure.what, _shown(a, figure), _shown(b, figure), _ratio(a, b))


def _shown(value: float | None, figure: _Figure) -> str:
    if value is None:
        return "-"
    shown = value * figure.times
    return f"{shown:,.0f} {figure.unit}".strip() if shown >= 999.5 else f"{shown:.3g} {figure.unit}".strip()


def _ratio(one: float | None, other: float | None) -> str:
    return f"x {other / one:.2f}" if one and other is not None else ""
