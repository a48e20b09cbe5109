"""What to expect of a model on this machine: from its headers, the memory there is, and what was measured here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drivetrain import gguf
from drivetrain.engines.expertstream import native, predict, tune
from drivetrain.engines.llamacpp import machine, memory, settings
from drivetrain.engines.llamacpp.machine import cores, memory_bytes
from drivetrain.gguf import Gguf

CACHE_TYPE: Final = "f16"
GLANCE_BYTES: Final = 64 * 2**20


def headers(weights: Path) -> Sequence[Gguf]:
    """Of all files of the model whose first one is `weights`. Raises `BadRequest` for what is no model."""
    return [gguf.read(part) for part in gguf.parts(weights)]


def of_file(weights: Path, home: Path, measured_hits: float | None = None) -> predict.Prediction | None:
    """None for a model without experts, or where nothing is known of the machine and nothing can be measured."""
    found = headers(weights)
    if predict.shape(found) is None:
        return None
    known = measured(home, weights)
    return None if known is None else of_headers(found, known, measured_hits)


def measured(home: Path, file: Path | None = None) -> predict.Machine | None:
    """What is known of this machine. It is measured now if it never was, for a second, by reading `file`, if the
    streaming library is there."""
    known = tune.known(home, cores())
    if known is not None or native.missing() is not None:
        return known
    if file is not None:
        return tune.glance(home, file, cores())
    with tune.sample(home, GLANCE_BYTES) as made:
        return tune.glance(home, made, cores())


def of_headers(
    found: Sequence[Gguf], known: predict.Machine, measured_hits: float | None = None
) -> predict.Prediction | None:
    """Of a model that need not be here. None for one without experts."""
    shape = predict.shape(found)
    if shape is None:
        return None
    head = found[0]
    trained = head.whole(f"{head.architecture}.context_length") or settings.CONTEXT
    context_bytes = min(settings.CONTEXT, trained) * memory.cell_bytes(head, CACHE_TYPE, CACHE_TYPE)
    budget_bytes = predict.budget(memory_bytes(), shape, context_bytes)
    return predict.predict(
        shape, known, budget_bytes=budget_bytes, context_bytes=context_bytes, measured_hits=measured_hits
    )


def fits(size_bytes: int) -> bool:
    """Whether a model of this size runs without streaming."""
    return size_bytes <= machine.memory_bytes() * 3 // 4


def parts(weights: Path) -> Sequence[Path]:
    """All files of a model. Raises `BadRequest` where one is missing."""
    return gguf.parts(weights)


def has_experts(weights: Path) -> bool:
    return predict.shape(headers(weights)) is not None
