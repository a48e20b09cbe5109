"""What a model answers, with and without the plugin: starts `runner.py` and reads what it left."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.moe.runner import Logits, Orders, Run, Work

RUNNER = Path(__file__).with_name("runner.py")
THREADS = 2
TIMEOUT_S = 120

Answers = Mapping[str, np.ndarray]  # of a run: "NAME/logits" and "NAME/tokens" per work

_rng = random.Random(3)
TEXT = [_rng.randrange(256) for _ in range(700)]

WORKS: list[Work] = [
    {"name": "short", "texts": [TEXT[:5]], "block": 16, "steps": 12},
    {"name": "long, in blocks", "texts": [TEXT[:300]], "block": 64, "steps": 2},
    {"name": "long, at once", "texts": [TEXT[:300]], "block": 300, "steps": 2},
    {"name": "side by side", "texts": [TEXT[:5], TEXT[50:90], TEXT[300:317]], "block": 62, "steps": 6},
]


def stock(model: Path, *, works: Sequence[Work] = WORKS, rearranged: bool = False, threads: int = THREADS) -> Answers:
    """Of llama.cpp as it comes. `rearranged`: it may use its other kernels, for which it puts weights in another order;
    those add up in another order too."""
    run = _run(model, works, load_mode="mmap", rearranged=rearranged, threads=threads)
    _start({"plugin": None, "options": "", "shells": [], "runs": [run]})
    return _read(run)


def streamed(
    library: Path,
    model: Path,
    *,
    works: Sequence[Work] = WORKS,
    rearranged: bool = False,
    threads: int = THREADS,
    **options: object,
) -> Answers:
    """Of llama.cpp with the plugin. `model` may be a GGUF or a container; `options` are those of `es_configure`."""
    shell = model.with_name(model.name + ".shell")
    lines = {"model": model, "stats": stats_of(model), "threads": threads} | options
    run = _run(shell, works, load_mode="dio", rearranged=rearranged, threads=threads)
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    _start({"plugin": str(library), "options": text, "shells": [[str(model), str(shell)]], "runs": [run]})
    return _read(run)


def stats_of(model: Path) -> Path:
    """Where the plugin keeps its counters when `streamed` runs it."""
    return model.with_name(model.name + ".stats")


def logits(answers: Answers) -> dict[str, Logits]:
    return {name: rows for name, rows in answers.items() if name.endswith("/logits")}


def difference(ours: Answers, theirs: Answers) -> float:
    """The largest normalised mean square error of a work: 0 where all logits are equal to the last bit."""
    return max(_error(rows, theirs[name]) for name, rows in logits(ours).items())


def differing(ours: Answers, theirs: Answers) -> dict[str, list[int]]:
    """Per work the positions, in order of calculation, whose logits are not equal to the last bit."""
    unequal = {
        name: np.flatnonzero((rows.view(np.uint32) != theirs[name].view(np.uint32)).any(axis=1)).tolist()
        for name, rows in logits(ours).items()
    }
    return {name: positions for name, positions in unequal.items() if positions}


def _error(ours: Logits, theirs: Logits) -> float:
    exact = theirs.astype(np.float64)
    return float(np.square(ours - exact).mean() / np.square(exact).mean())


def _run(model: Path, works: Sequence[Work], *, load_mode: str, rearranged: bool, threads: int) -> Run:
    return {
        "model": str(model),
        "load_mode": load_mode,
        "extra_bufts": rearranged,
        "threads": threads,
        "works": list(works),
        "out": str(model) + ".npz",
    }


def _start(orders: Orders) -> None:
    # OpenMP's threads wait for one another by spinning, which takes minutes where others use the processors too.
    environment = os.environ | {"GOMP_SPINCOUNT": "2000", "GGML_NO_BACKTRACE": "1"}
    if not any(run["extra_bufts"] for run in orders["runs"]):
        environment["GGML_NO_IQ_PANEL"] = "1"  # a rearrangement that no setting of llama.cpp's turns off
    command, text = [sys.executable, "-P", str(RUNNER)], json.dumps(orders)
    done = subprocess.run(command, env=environment, input=text, text=True, capture_output=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise AssertionError(f"the runner ended with {done.returncode}:\n{done.stderr[-3000:]}")


def _read(run: Run) -> Answers:
    with np.load(run["out"]) as arrays:
        found = dict(arrays)
    Path(run["out"]).unlink()
    assert all(np.isfinite(rows).all() for rows in logits(found).values())
    return found
