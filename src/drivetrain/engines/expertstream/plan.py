"""Whether a model's experts are streamed from its file, and what the native engine is told then. Pure.

Experts are the tensors whose names end with `_exps.weight` and that have three dimensions: one matrix per expert.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf

SWITCH: Final = "DRIVETRAIN_EXPERTSTREAM"  # the environment's word, above that of any setting
CONTAINER: Final = ".jns"  # a file that llama.cpp cannot read
MAX_LAYERS: Final = 4096  # whatever a header claims
BLOCK: Final = 2048  # tokens of a prompt for which each expert is read once
LOGITS_BYTES: Final = 512 * 2**20  # of a block whose every token is put out, as embeddings have it

Wish = Literal["auto", "on", "off"]
Io = Literal["auto", "threads", "uring"]


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's headers say of its experts."""

    layers: int
    size_bytes: int  # of all of them, as they lie in the files
    least_bytes: int  # memory without which not even one token passes: those of a token in the largest layer, twice


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a model would take on the stock path, and what there is."""

    needed_bytes: int
    room_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.room_bytes


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What the native engine is told of the machine, where the model's settings say nothing."""

    io: Io = "auto"
    direct: Wish = "auto"
    depth: int | None = None  # reads in flight
    piece_bytes: int | None = None  # of one read
    prefetch: bool | None = None


def experts(headers: Sequence[Gguf]) -> Experts | None:
    """The experts of a model, from the headers of all its files; None if it has none."""
    size_bytes, per_expert = 0, defaultdict[str, int](int)
    for header in headers:
        for tensor in header.tensors:
            if tensor.name.endswith("_exps.weight") and len(tensor.dims) == 3:
                size_bytes += tensor.size_bytes or 0
                per_expert[tensor.name.rpartition(".ffn")[0]] += (tensor.size_bytes or 0) // max(tensor.dims[2], 1)
    if not per_expert:
        return None
    least_bytes = 2 * _used(headers[0]) * max(per_expert.values())
    return Experts(layers=len(per_expert), size_bytes=size_bytes, least_bytes=min(least_bytes, size_bytes))


def _used(header: Gguf) -> int:
    """Experts per token; of the layer with most, where they differ."""
    layers = min(header.whole(f"{header.architecture}.block_count"), MAX_LAYERS)
    return max(1, *header.layered(f"{header.architecture}.expert_used_count", max(layers, 1)))


def switch(environment: Mapping[str, str]) -> Wish:
    """What the environment says. Raises `BadRequest` for a word that means nothing."""
    word = environment.get(SWITCH, "").lower() or "auto"
    for known in get_args(Wish):
        if word == known:
            return word  # type: ignore[return-value] # it is one of them
    raise BadRequest(f"{SWITCH} is {word!r}; it must be {', '.join(get_args(Wish))}")


def streamed(experts: Experts | None, demand: Demand, *, switch: Wish, wish: Wish, container: bool) -> bool:
    """Whether to stream a model. `wish` is its own setting; `container`: nothing else can read its file."""
    if container or experts is None:
        return container
    said = wish if switch == "auto" else switch
    return not demand.fits if said == "auto" else said == "on"


def block(*, context: int, vocabulary: int, embedding: bool) -> int:
    """Tokens of a prompt that a streamed model computes in one go.

    The more, the fewer bytes are read per token. But where every token is put out, for embeddings, each costs a row of
    logits in the calculation and a copy of it.
    """
    if not embedding:
        return min(BLOCK, context)
    rows = LOGITS_BYTES // (2 * 4 * max(vocabulary, 1))
    return min(BLOCK, context, max(64, rows // 64 * 64))


def options(
    model: str, *, budget_bytes: int, threads: int, io: Io, tuning: Tuning, stats: str, share: str, trace: str | None
) -> Mapping[str, str | int]:
    """What `es_configure` is told. A budget of 0 leaves it to the governor."""
    told: dict[str, str | int | None] = {
        "model": model,
        "budget": budget_bytes,
        "io": tuning.io if io == "auto" else io,
        "direct": tuning.direct,
        "depth": tuning.depth,
        "piece": tuning.piece_bytes,
        "threads": threads,
        "stats": stats,
        "share": share,
        "trace": trace,
        "prefetch": None if tuning.prefetch is None else "on" if tuning.prefetch else "off",
    }
    return {name: value for name, value in told.items() if value is not None}
