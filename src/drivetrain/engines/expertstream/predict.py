"""How fast a model will be, before it is fetched or packed, from its header and measurements of the machine. Pure.

What a token needs is read from memory, what of that is not there comes from the drive first, and all of it is
calculated with; a good engine does this at once, so the slowest of the three sets the pace. How often an expert is
there already (the hit rate) depends on the text more than on anything else: until it was measured, it is an estimate
from published runs, and a range.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from drivetrain.engines.expertstream import plan
from drivetrain.gguf import Gguf, Tensor

EFFICIENCY: Final = 0.85  # of the bound that memory and drive set, reached in practice
MULTIPLY_ADDS_PER_CORE_S: Final = 25e9  # of quantised weights in a prompt, where nobody measured
DECODE_SHARE: Final = 0.42  # of those, one token at a time reaches: every weight is unpacked for it alone; measured
PROMPT_TOKENS: Final = 512  # of which the first token is predicted
PROCESS_BYTES: Final = 256 * 2**20  # of a worker, beside the model
LEFT_TO_SYSTEM: Final = 5  # the system keeps this part of memory: a fifth

# Hit rate by the share of experts in memory, decoding, least recently used evicted first: published runs of one topic
# or of code, and of traces that jump between many.
_Curve = tuple[tuple[float, float], ...]
STEADY: Final[_Curve] = (
    (0.0, 0.0), (0.03, 0.09), (0.10, 0.55), (0.125, 0.67), (0.17, 0.71), (0.25, 0.81), (0.36, 0.83), (0.48, 0.91),
    (1.0, 1.0),
)  # fmt: skip
MIXED: Final[_Curve] = (
    (0.0, 0.0), (0.03, 0.08), (0.18, 0.435), (0.36, 0.62), (0.54, 0.72), (0.73, 0.79), (1.0, 1.0),
)  # fmt: skip


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a token costs, in a model with experts."""

    layers: int  # that have experts
    experts: int  # of a layer
    used: int  # of these, by one token
    expert_bytes: int  # of all experts
    dense_bytes: int  # of everything else
    dense_token_bytes: int  # of that, what one token reads
    token_weights: int  # that one token is multiplied with

    @property
    def expert_token_bytes(self) -> float:
        return self.expert_bytes * self.used / self.experts


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    drive_bytes_s: float  # random reads of an expert's size, several in flight
    memory_bytes_s: float  # all threads together
    multiply_adds_s: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    tokens_s: float
    least_tokens_s: float  # where the text jumps between topics
    most_tokens_s: float  # where it stays with one
    hit_rate: float
    measured_hits: bool  # the hit rate was measured, else it is estimated
    budget_bytes: int  # for experts
    memory_bytes: int  # in all
    first_token_s: float  # of a prompt of `prompt_tokens`, the model not yet loaded
    prompt_tokens: int = PROMPT_TOKENS

    @property
    def streamed(self) -> bool:
        return self.hit_rate < 1


def shape(headers: Sequence[Gguf]) -> Shape | None:
    """From the headers of all files of a model. None if it has no experts."""
    found, head = plan.experts(headers), headers[0]
    experts = head.whole(f"{head.architecture}.expert_count")
    used = head.whole(f"{head.architecture}.expert_used_count")
    if found is None or not 0 < used <= experts:
        return None
    tensors = [tensor for header in headers for tensor in header.tensors]
    dense = [tensor for tensor in tensors if not _is_expert(tensor)]
    read = [tensor for tensor in dense if not _is_looked_up(tensor, tied=_tied(dense))]
    expert_weights = sum(tensor.elements for tensor in tensors if _is_expert(tensor))
    return Shape(
        layers=found.layers,
        experts=experts,
        used=used,
        expert_bytes=found.size_bytes,
        dense_bytes=sum(tensor.size_bytes or 0 for tensor in dense),
        dense_token_bytes=sum(tensor.size_bytes or 0 for tensor in read),
        token_weights=sum(tensor.elements for tensor in read) + expert_weights * used // experts,
    )


def _is_expert(tensor: Tensor) -> bool:
    return tensor.name.endswith("_exps.weight") and len(tensor.dims) == 3


def _tied(dense: Sequence[Tensor]) -> bool:
    """The output is computed with the table of embeddings."""
    return all(tensor.name != "output.weight" for tensor in dense)


def _is_looked_up(tensor: Tensor, *, tied: bool) -> bool:
    """A token reads one row of it."""
    return tensor.name == "per_layer_token_embd.weight" or (tensor.name == "token_embd.weight" and not tied)


def budget(memory_bytes: int, shape: Shape, context_bytes: int) -> int:
    """What the experts may take of a machine's memory by default."""
    rest = shape.dense_bytes + context_bytes + PROCESS_BYTES
    return min(max(memory_bytes - memory_bytes // LEFT_TO_SYSTEM - rest, 0), shape.expert_bytes)


def estimated_hits(resident: float) -> tuple[float, float, float]:
    """Hit rate by the share of experts in memory: mixed texts, the middle, steady texts."""
    low, high = _along(MIXED, resident), _along(STEADY, resident)
    return min(low, high), (low + high) / 2, max(low, high)


def _along(curve: _Curve, at: float) -> float:
    """Between the points of a curve on a straight line."""
    right = min(bisect_right(curve, (at, 2.0)), len(curve) - 1)
    (x0, y0), (x1, y1) = curve[right - 1], curve[right]
    return min(max(y0 + (y1 - y0) * (at - x0) / (x1 - x0), 0.0), 1.0)


def memory_s(shape: Shape, machine: Machine, hits: float) -> float:
    """Seconds in which memory delivers a token's weights; what was missing is written there once, too."""
    moved = shape.dense_token_bytes + shape.expert_token_bytes * (2 - hits)
    return moved / machine.memory_bytes_s


def drive_s(shape: Shape, machine: Machine, hits: float) -> float:
    """Seconds in which the drive delivers what a token misses."""
    return shape.expert_token_bytes * (1 - hits) / machine.drive_bytes_s


def bound(shape: Shape, machine: Machine, hits: float) -> float:
    """Tokens per second that no engine exceeds on this machine with these hits."""
    return 1 / max(memory_s(shape, machine, hits), drive_s(shape, machine, hits))


def predict(
    shape: Shape, machine: Machine, *, budget_bytes: int, context_bytes: int, measured_hits: float | None = None
) -> Prediction:
    held = min(budget_bytes, shape.expert_bytes)
    low, middle, high = estimated_hits(held / shape.expert_bytes)
    if measured_hits is not None and held < shape.expert_bytes:
        low = middle = high = measured_hits
    least, likely, most = (_pace(shape, machine, hits) for hits in (low, middle, high))
    return Prediction(
        tokens_s=likely,
        least_tokens_s=least,
        most_tokens_s=most,
        hit_rate=middle,
        measured_hits=measured_hits is not None,
        budget_bytes=held,
        memory_bytes=held + shape.dense_bytes + context_bytes + PROCESS_BYTES,
        first_token_s=_first_token_s(shape, machine, PROMPT_TOKENS) + 1 / likely,
    )


def _pace(shape: Shape, machine: Machine, hits: float) -> float:
    """Tokens per second to be expected."""
    return min(EFFICIENCY * bound(shape, machine, hits), machine.multiply_adds_s * DECODE_SHARE / shape.token_weights)


def _first_token_s(shape: Shape, machine: Machine, tokens: int) -> float:
    """Load what is no expert; then compute the prompt while its experts, all that it touches, arrive."""
    touched = shape.expert_bytes * touched_share(shape, tokens)
    compute_s = tokens * shape.token_weights / machine.multiply_adds_s
    return shape.dense_bytes / machine.drive_bytes_s + max(compute_s, touched / machine.drive_bytes_s)


def touched_share(shape: Shape, tokens: int) -> float:
    """Of a layer's experts, those that so many tokens ask for, if all are equally likely: at most this many."""
    return float(1 - (1 - shape.used / shape.experts) ** tokens)


def told(prediction: Prediction) -> str:
    """In a line for people."""
    speed = f"about {_figure(prediction.tokens_s)} tokens/s"
    spread = f"{_figure(prediction.least_tokens_s)} to {_figure(prediction.most_tokens_s)} by the text"
    hits = "measured" if prediction.measured_hits else "estimated"
    how = f"{spread}; {prediction.hit_rate:.0%} of experts found in memory, {hits}"
    return (
        f"prediction: {speed} ({how if prediction.streamed else 'all experts in memory'}), "
        f"{prediction.memory_bytes / 1e9:.1f} GB of memory, first token of a prompt of {prediction.prompt_tokens} "
        f"after {prediction.first_token_s:.1f} s"
    )


def beside(predicted_tokens_s: float, measured_tokens_s: float) -> str:
    """Prediction and truth."""
    return f"predicted {_figure(predicted_tokens_s)} tokens/s, measured {_figure(measured_tokens_s)}"


def _figure(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
