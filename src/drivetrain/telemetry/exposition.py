"""From the shared rows to the metric families that Prometheus reads. Pure, and imported by the first scrape only."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from drivetrain.telemetry import layout
from drivetrain.telemetry.cells import Row
from drivetrain.types import Experts, Loaded

_Labels = tuple[str, ...]
_Sums = dict[_Labels, list[float]]


class Collected:
    """The families of one scrape."""

    def __init__(self, rows: Iterable[Row], version: str, loaded: Iterable[Loaded] = ()) -> None:
        self._version = version
        self._experts: dict[_Labels, Experts] = {
            (one.model.id, one.model.engine): one.experts for one in loaded if one.experts
        }
        self._rows: dict[str, list[tuple[_Labels, tuple[float, ...]]]] = defaultdict(list)
        for row in rows:
            kind, *labels = json.loads(row.key)
            if row.live if kind in layout.LIVE else any(row.values):
                self._rows[kind].append((tuple(labels), row.values))

    def collect(self) -> Iterator[Metric]:
        yield _gauge("drivetrain_build_info", "The version that answers.", ["version"], {(self._version,): [1.0]})
        yield from self._attempts()
        yield from self._latencies()
        yield from self._lifecycle()
        yield from self._streamed()
        yield from self._governed()
        yield from self._gauges()

    def _attempts(self) -> Iterator[Metric]:
        names = ["dialect", "model", "engine", "outcome", "status_class"]
        asked = self._sum("attempts", lambda labels: labels if labels[3] != "absorbed" else None, 0, 1)
        yield _counter("drivetrain_requests", "Requests of callers, by how they ended.", names, asked)
        tried = self._sum("attempts", lambda labels: labels, 0, 1)
        yield _counter("drivetrain_attempts", "The same and each attempt that another one made up for.", names, tried)
        tokens = self._sum("attempts", lambda labels: labels[1:3], layout.TOKENS_AT, len(layout.TOKENS))
        kinds = {(*labels, kind): [sums[i]] for labels, sums in tokens.items() for i, kind in enumerate(layout.TOKENS)}
        help_text = "Tokens; cached ones are part of the prompt, reasoning ones of the completion."
        yield _counter("drivetrain_tokens", help_text, ["model", "engine", "kind"], kinds)
        cost = self._sum("attempts", lambda labels: labels[1:3], layout.COST_AT, 1)
        yield _counter("drivetrain_cost_micro_usd", "Cost in millionths of a dollar.", ["model", "engine"], cost)

    def _latencies(self) -> Iterator[Metric]:
        for name, help_text, start, bounds in layout.LATENCIES:
            answered = self._sum("attempts", _if_answered, start, len(bounds) + 2)
            yield _histogram(name, help_text, ["model", "engine"], bounds, answered)

    def _lifecycle(self) -> Iterator[Metric]:
        loads = self._sum("load", lambda labels: labels, 0, len(layout.LOAD_S) + 2)
        yield _histogram("drivetrain_model_load_seconds", "Time to load a model.", ["model"], layout.LOAD_S, loads)
        loaded = self._sum("loaded", lambda labels: labels, 0, 1)
        yield _gauge("drivetrain_models_loaded", "Models in memory.", ["engine"], loaded)
        there = {labels: [one for one in value if not math.isnan(one)] for labels, value in self._rows["engine_up"]}
        up = {labels: [max(value)] for labels, value in there.items() if value}
        yield _gauge("drivetrain_engine_up", "Whether the engine answers.", ["engine"], up)
        received = self._sum("download_bytes", lambda labels: labels, 0, 1)
        yield _counter("drivetrain_download_bytes", "Bytes of models that were downloaded.", [], received)

    def _streamed(self) -> Iterator[Metric]:
        """Of models that are in memory: their workers count, and with a worker its counters go."""
        for name, member, help_text, make in _STREAMED:
            values = {labels: [float(getattr(one, member))] for labels, one in self._experts.items()}
            yield make(f"drivetrain_experts_{name}", help_text, ["model", "engine"], values)

    def _governed(self) -> Iterator[Metric]:
        refused, keys = self._each("refused", layout.RESOURCES), self._each("keys_refused", layout.KEY_STATUSES)
        help_text = "Requests that a limit or a budget did not let in."
        yield _counter("drivetrain_quota_refusals", help_text, ["resource"], refused)
        help_text = "Requests with a key that is none (401), or that may not do what was asked (403)."
        yield _counter("drivetrain_keys_refused", help_text, ["status"], keys)
        for kind, members, make in (("sink_state", layout.SINK_STATE, _gauge), ("sunk", layout.SUNK, _counter)):
            sums = self._sum(kind, lambda labels: labels, 0, len(members))
            for place, (name, help_text) in enumerate(members.items()):
                values = {labels: [cells[place]] for labels, cells in sums.items()}
                yield make(f"drivetrain_{name}", help_text, ["sink"], values)

    def _each(self, kind: str, values: Sequence[str]) -> _Sums:
        """The cells of the one row of a kind, each under a label of its own; zeros too, so that the first is a rise."""
        sums = self._sum(kind, lambda labels: labels, 0, len(values)).get((), [0.0] * len(values))
        return {(value,): [count] for value, count in zip(values, sums, strict=True)}

    def _gauges(self) -> Iterator[Metric]:
        values = self._sum("gauges", lambda labels: labels, 0, len(layout.GAUGES))
        sums = values.get((), [0.0] * len(layout.GAUGES))
        for (name, help_text), value in zip(layout.GAUGES.items(), sums, strict=True):
            yield _gauge(f"drivetrain_{name}", help_text, [], {(): [value]})

    def _sum(self, kind: str, group: Callable[[_Labels], _Labels | None], start: int, width: int) -> _Sums:
        """Cells of all processes' rows of a kind, added up by the labels that `group` makes; `None`: left out."""
        sums: _Sums = defaultdict(lambda: [0.0] * width)
        for labels, values in self._rows[kind]:
            left = group(labels)
            if left is not None:
                total = sums[left]
                for place in range(width):
                    total[place] += values[start + place]
        return sums


def render(rows: Iterable[Row], accept: str, version: str, loaded: Iterable[Loaded] = ()) -> tuple[str, bytes]:
    """Content type and body, in the format that the `Accept` header asks for."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(Collected(rows, version, loaded))


def _if_answered(labels: _Labels) -> _Labels | None:
    return labels[1:3] if labels[3] == "ok" else None


def _counter(name: str, help_text: str, names: Sequence[str], sums: _Sums) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=names)
    for labels, (value,) in sums.items():
        family.add_metric(labels, value)
    return family


def _gauge(name: str, help_text: str, names: Sequence[str], sums: _Sums) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=names)
    for labels, (value,) in sums.items():
        family.add_metric(labels, value)
    return family


def _histogram(name: str, help_text: str, names: Sequence[str], bounds: Sequence[float], sums: _Sums) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=names)
    for labels, (total, *counts) in sums.items():
        reached, buckets = 0.0, []
        for bound, count in zip([*map(str, map(float, bounds)), "+Inf"], counts, strict=True):
            reached += count
            buckets.append((bound, reached))
        if reached:
            family.add_metric(labels, buckets, total)
    return family


# Of the models that are streamed: name, member of `Experts`, meaning, kind.
_STREAMED = (
    ("hits", "hits", "Experts that were asked for, and in memory.", _counter),
    ("misses", "misses", "Experts that were asked for, and had to be read.", _counter),
    ("read_bytes", "read_bytes", "Bytes of experts that were read from the drive.", _counter),
    ("wait_seconds", "wait_s", "Time for which the calculation waited for the drive.", _counter),
    ("compute_seconds", "compute_s", "Time for which experts were calculated.", _counter),
    ("tokens", "tokens", "Tokens that went through the model, of prompts and answers.", _counter),
    ("failures", "failures", "Passes that failed, for an error of the drive or a damaged file.", _counter),
    ("budget_bytes", "budget_bytes", "Memory that experts may take now.", _gauge),
    ("resident_bytes", "resident_bytes", "Memory that experts take now.", _gauge),
    ("total_bytes", "total_bytes", "Bytes of all experts of the model.", _gauge),
)
