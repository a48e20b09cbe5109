"""`drivetrain tune`: finds out how this machine streams best, and remembers it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from drivetrain.cli import output
from drivetrain.cli.client import connect
from drivetrain.cli.command import Call, Failure, command
from drivetrain.cli.completion import model_names
from drivetrain.config.schema import Downloads
from drivetrain.engines.expertstream import tune as tuning
from drivetrain.engines.expertstream.tune import Trial, Tuned
from drivetrain.engines.llamacpp import machine
from drivetrain.library.library import Library

WARM_TOKENS, TOKENS = 32, 64
PROMPT = "Tell a long story, of a lighthouse, a storm and a ship that nobody expected."


@command()
@click.argument("model", required=False, shell_complete=model_names)
def tune(call: Call, model: str | None) -> None:
    """Measure this machine, for models larger than memory.

    How many reads at once its drive likes, past the page cache or not, by which interface; and how fast memory is. A
    change from the defaults is kept if it gains 3 % or more. With MODEL, whose file is read then, the number of threads
    is tried too, by the speed of its answers, which takes minutes.
    """
    with _sample(call, model) as file:
        measures = tuning.native_measures(file, _teller(call))
        if model is not None:
            measures = msgspec.structs.replace(
                measures,
                decode=lambda threads, prefetch: _decode(call, model, threads, prefetch),
                prefetches=True,
            )
        tuned = tuning.tune(measures, cores=machine.cores())
    path = tuning.store(call.home, tuned)
    if call.json:
        output.emit({"file": str(path), **msgspec.to_builtins(tuned)})
        return
    output.table(("SETTING", "NOW", "TRIED", "NOW", "TRIED", "GAIN", ""), map(_row, tuned.trials))
    click.echo(f"\n{_summary(tuned)}\nkept in {path}")


@contextmanager
def _sample(call: Call, model: str | None) -> Iterator[Path]:
    """The model's file, or one that is made for this."""
    if model is not None:
        place = Library(call.home, Downloads(), lambda notice: None).place(model)
        if not place.weights:
            raise Failure(f"model {model!r} has no weights on this machine")
        yield place.weights[0]
        return
    call.home.mkdir(parents=True, exist_ok=True)
    with tuning.sample(call.home) as file:
        yield file


def _teller(call: Call) -> Any:
    """A word on what is measured, at most once a second; the whole takes long enough to wonder."""
    last_s = 0.0

    def tell(what: str) -> None:
        nonlocal last_s
        if not call.json and time.monotonic() - last_s >= 1:
            last_s = time.monotonic()
            click.echo(f"measuring: {what}", err=True)

    return tell


def _decode(call: Call, model: str, threads: int, prefetch: bool) -> float:
    return asyncio.run(_tokens_s(call, model, {"num_thread": threads, **({"prefetch": True} if prefetch else {})}))


async def _tokens_s(call: Call, model: str, options: dict[str, Any]) -> float:
    """Of an answer to a cold model, once it is warm."""
    async with connect(call) as server:
        for count in (WARM_TOKENS, TOKENS):
            said = {"num_predict": count, "temperature": 1.0, "seed": 1, **options}
            answer = await server.post(
                "/api/generate", {"model": model, "prompt": PROMPT, "stream": False, "options": said}
            )
    try:
        return float(answer["eval_count"]) / (float(answer["eval_duration"]) / 1e9)
    except (KeyError, ZeroDivisionError) as error:
        raise Failure(f"model {model!r} answered without saying how long that took") from error


def _row(trial: Trial) -> tuple[str, ...]:
    old, new = (_rate(rate, trial.unit) for rate in (trial.old_rate, trial.new_rate))
    return (trial.setting, trial.old, trial.new, old, new, f"{trial.gain:+.1%}", "kept" if trial.kept else "")


def _rate(rate: float, unit: str) -> str:
    return f"{output.size(int(rate))}/s" if unit == "B/s" else f"{rate:.3g} {unit}"


def _summary(tuned: Tuned) -> str:
    drive = _rate(tuned.drive_bytes_s, "B/s")
    memory = ", ".join(f"{_rate(rate, 'B/s')} by {count}" for count, rate in tuned.memory_by_threads.items())
    changes = sum(trial.kept for trial in tuned.trials)
    verdict = f"{changes} of the defaults changed" if changes else "the defaults are best"
    return f"drive {drive}; memory {memory} threads: {verdict}"
