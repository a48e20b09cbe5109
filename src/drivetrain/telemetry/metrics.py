"""What is counted, and how Prometheus reads it: the same figures whichever of several workers is asked.

An attempt costs a look-up and a few additions in shared memory (`cells`); the metric families are put together
when somebody scrapes. Labels come from closed sets: a name that nobody configured, and for which no engine has
answered, is "other".
"""

import json
import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from drivetrain import __version__
from drivetrain.governance import Attempt, Resource
from drivetrain.telemetry.cells import Cells, Doubles, read
from drivetrain.telemetry.layout import (
    ATTEMPT_CELLS,
    COST_AT,
    FIRST_AT,
    FIRST_TOKEN_S,
    GAUGES,
    KEY_STATUSES,
    LIVE,
    LOAD_S,
    OUTPUT_AT,
    OUTPUT_TOKEN_S,
    RESOURCES,
    SINK_STATE,
    SUNK,
    TOKENS_AT,
    TOTAL_AT,
    TOTAL_S,
)
from drivetrain.types import Loaded, Notice

OTHER = "other"
LABELS = 200  # values of one label, at most
_Key = tuple[str, str, str, str, int]


class Metrics:
    """The figures of this process, shared through `directory`. Attempts come from one thread, a gauge has one thread of
    its own, and notices and scrapes may come from any."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cells = Cells.open(directory)
        # Thousands of combinations of labels may fill the file: what is left is counted here.
        self._rest = self._cells.row(_key("attempts", *[OTHER] * 5), ATTEMPT_CELLS) or _nowhere(ATTEMPT_CELLS)
        self._models: set[str] = set()
        self._engines: set[str] = set()
        self._sinks: set[str] = set()
        self._rows: dict[_Key, Doubles] = {}
        self._loading: dict[str, float] = {}  # model → when its loading began
        self._loaded: dict[str, set[str]] = defaultdict(set)  # engine → models
        self._received: dict[str, int] = {}  # model → bytes of its download that have been counted
        for key, row in self._cells.rows().items():
            if json.loads(key)[0] in LIVE:  # what its dead process had under way is over
                _reset(row)
        self._gauges = self._row("gauges", width=len(GAUGES))
        self._refused = self._row("refused", width=len(RESOURCES))
        self._keys_refused = self._row("keys_refused", width=len(KEY_STATUSES))
        self._lock = threading.Lock()
        self._places = {name: place for place, name in enumerate(GAUGES)}

    def know(self, *, models: Iterable[str] = (), engines: Iterable[str] = ()) -> None:
        """Names that may be labels: what the configuration and the library hold. Call it again as they change."""
        for name in models:
            self._admit(self._models, name)
        for name in engines:
            self._admit(self._engines, name)

    def observe(self, attempt: Attempt) -> None:
        """Count one attempt."""
        key = (attempt.dialect, attempt.model, attempt.engine, attempt.outcome, attempt.status // 100)
        row = self._rows.get(key)
        if row is None:
            row = self._row_of(attempt, key)
        row[0] += 1
        if attempt.engine:
            self._measure(row, attempt)

    def _measure(self, row: Doubles, attempt: Attempt) -> None:
        row[TOKENS_AT] += attempt.prompt_tokens
        if attempt.cached_tokens:
            row[TOKENS_AT + 1] += attempt.cached_tokens
        completion = attempt.completion_tokens
        row[TOKENS_AT + 2] += completion
        if attempt.reasoning_tokens:
            row[TOKENS_AT + 3] += attempt.reasoning_tokens
        if attempt.cost_micro_usd:
            row[COST_AT] += attempt.cost_micro_usd
        total_s = attempt.total_s
        row[TOTAL_AT] += total_s
        row[TOTAL_AT + 1 + bisect_left(TOTAL_S, total_s)] += 1
        first_s = attempt.first_token_s
        if first_s is None:
            return
        row[FIRST_AT] += first_s
        row[FIRST_AT + 1 + bisect_left(FIRST_TOKEN_S, first_s)] += 1
        if completion > 1:
            per_token_s = (total_s - first_s) / (completion - 1)
            row[OUTPUT_AT] += per_token_s
            row[OUTPUT_AT + 1 + bisect_left(OUTPUT_TOKEN_S, per_token_s)] += 1

    def add(self, gauge: str, amount: float) -> None:
        """Raise or lower a gauge of `GAUGES`."""
        self._gauges[self._places[gauge]] += amount

    def put(self, gauge: str, value: float) -> None:
        self._gauges[self._places[gauge]] = value

    def refused(self, resource: Resource) -> None:
        """A limit or budget on this resource let a request not in."""
        self._refused[RESOURCES.index(resource)] += 1

    def key_refused(self, status: int) -> None:
        """A request came with a key that is none (401), or that may not do this (403)."""
        self._keys_refused[KEY_STATUSES.index(str(status))] += 1

    def sink(self, name: str, *, lag_rows: int, lag_s: float, taken: int = 0, dead: int = 0) -> None:
        """How far a sink is behind, and how many rows it has taken or refused since it was told last."""
        self._admit(self._sinks, name)
        label = name if name in self._sinks else OTHER
        state, sunk = self._row("sink_state", label, width=len(SINK_STATE)), self._row("sunk", label, width=len(SUNK))
        state[0], state[1] = lag_rows, lag_s
        sunk[0] += taken
        sunk[1] += dead

    def notice(self, notice: Notice) -> None:
        """Count what a lifecycle event tells: loads, loaded models, downloads, engines up or down."""
        with self._lock:
            self._count(notice)

    def _count(self, notice: Notice) -> None:
        match notice.name:
            case "model.loading" if notice.model:
                self._loading.setdefault(notice.model, notice.at_s)
            case "model.ready" if notice.model:
                self._ready(notice.model, notice.engine or "", notice.at_s)
            case "model.failed" | "model.unloaded" if notice.model:
                self._loading.pop(notice.model, None)
                self._now_loaded(notice.engine or "").discard(notice.model)
                self._set_loaded(notice.engine or "")
            case "engine.up" | "engine.down" if notice.engine:
                self._row("engine_up", self._engine(notice.engine))[0] = float(notice.name == "engine.up")
            case "engine.joined" if notice.engine:
                self.know(engines=[notice.engine])
            case "engine.left" if notice.engine:
                self._row("engine_up", self._engine(notice.engine))[0] = math.nan  # neither up nor down
            case "download.started" | "download.progress" | "download.done" if notice.model:
                self._downloaded(notice.model, notice.completed)
        if notice.name in ("download.done", "download.failed", "download.stopped") and notice.model:
            self._received.pop(notice.model, None)

    def render(self, accept: str = "", loaded: Sequence[Loaded] = ()) -> tuple[str, bytes]:
        """Content type and body of an answer to a scrape, for the format that the `Accept` header asks for. `loaded`:
        the models in memory; of those that are streamed, their workers' figures are shown. Reads files and, the first
        time, imports: call it on a worker thread."""
        from drivetrain.telemetry import exposition

        return exposition.render(read(self._directory), accept, __version__, loaded)

    def close(self) -> None:
        """Nothing is in flight any more; what was counted stays until the server ends."""
        for key, row in self._cells.rows().items():
            if json.loads(key)[0] in LIVE:
                _reset(row)
        self._rows.clear()
        self._cells.close()

    def _row_of(self, attempt: Attempt, key: _Key) -> Doubles:
        """The row of labels not seen before. Only labels that stand for themselves are remembered by their key."""
        if attempt.outcome == "ok":  # an engine answered: the names are real
            self.know(models=[attempt.model], engines=[attempt.engine])
        model, engine = self._model(attempt.model), self._engine(attempt.engine)
        labels = _key("attempts", key[0], model, engine, key[3], f"{key[4]}xx")
        row = self._cells.row(labels, ATTEMPT_CELLS) or self._rest
        if (model, engine) == key[1:3]:
            self._rows[key] = row
        return row

    def _row(self, kind: str, *labels: str, width: int = 1) -> Doubles:
        return self._cells.row(_key(kind, *labels), width) or _nowhere(width)

    def _admit(self, known: set[str], name: str) -> None:
        if name not in known and len(known) < LABELS:
            known.add(name)

    def _model(self, name: str) -> str:
        return name if name in self._models or not name else OTHER

    def _engine(self, name: str) -> str:
        return name if name in self._engines or not name else OTHER

    def _ready(self, model: str, engine: str, at_s: float) -> None:
        self.know(models=[model], engines=[engine])
        self._now_loaded(engine).add(model)
        self._set_loaded(engine)
        began_s = self._loading.pop(model, None)
        if began_s is not None:
            row = self._row("load", self._model(model), width=len(LOAD_S) + 2)
            row[0] += at_s - began_s
            row[1 + bisect_left(LOAD_S, at_s - began_s)] += 1

    def _now_loaded(self, engine: str) -> set[str]:
        return self._loaded[self._engine(engine)]

    def _set_loaded(self, engine: str) -> None:
        self._row("loaded", self._engine(engine))[0] = len(self._now_loaded(engine))

    def _downloaded(self, model: str, completed: int | None) -> None:
        """A download tells how far it is; what counts is how much that is more than before."""
        counted = self._received.get(model)
        self._received[model] = completed or 0
        if counted is not None:
            self._row("download_bytes")[0] += max(0, (completed or 0) - counted)


def _key(kind: str, *labels: str) -> str:
    return json.dumps([kind, *labels])


def _nowhere(width: int) -> Doubles:
    """A row for figures that there is no room for."""
    return memoryview(bytearray(8 * width)).cast("d")


def _reset(row: Doubles) -> None:
    row[:] = memoryview(bytes(row.nbytes)).cast("d")
