"""Writes a tiny Mixture-of-Experts model: random weights, a tokenizer of bytes, a few megabytes. The text that such a
model writes is nonsense; its logits are exact, and two ways to compute them must agree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from tests.moe.architectures import ARCHITECTURES, Plan, Size, Tensor
from tests.moe.quantise import Bytes, experts_of, fitting, number, rows_of

VOCABULARY = 512
END = 256  # the token that ends a text

SMALL = Size()

Mix = Callable[[Tensor], str]  # which quantisation a tensor gets


def q4_k_m(tensor: Tensor) -> str:
    """Some of the layers get more bits for what matters most, as llama.cpp's Q4_K_M does."""
    important = any(part in tensor.name for part in ("attn_v", "ffn_down", "output.weight"))
    return "Q6_K" if important and not tensor.name.startswith("blk.1.") else "Q4_K"


MIXES: dict[str, Mix] = {"Q4_K_M": q4_k_m}


def write_model(path: Path, architecture: str, quant: str, *, size: Size = SMALL, files: int = 1) -> Path:
    """A model at `path`, or in `files` parts beside it. Returns the (first) file. Same arguments, same bytes."""
    plan = ARCHITECTURES[architecture](size)
    first = [Tensor("token_embd.weight", (VOCABULARY, size.embd), std=1.0)]
    last = [Tensor("output_norm.weight", (size.embd,), "norm"), Tensor("output.weight", (VOCABULARY, size.embd))]
    tensors = first + plan.tensors + last
    writer = GGUFWriter(path, plan.name, split_max_tensors=-(-len(tensors) // files) if files > 1 else 0)
    _write_keys(writer, plan)
    _write_tokenizer(writer)
    rng = np.random.default_rng(0)
    for tensor in tensors:
        _add(writer, tensor, _kind(plan, tensor, quant), rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if files == 1 else path.with_name(f"{path.stem}-00001-of-{files:05}.gguf")


def _kind(plan: Plan, tensor: Tensor, quant: str) -> str:
    if tensor.role in ("norm", "plain"):
        return "F32"
    kind = MIXES[quant](tensor) if quant in MIXES else quant
    if kind == "MXFP4" and "_exps." not in tensor.name:
        kind = "Q8_0"  # only experts come in this type
    return fitting(kind, tensor.shape[-1])


def _add(writer: GGUFWriter, tensor: Tensor, kind: str, rng: np.random.Generator) -> None:
    if tensor.role in ("norm", "plain"):
        noise = rng.standard_normal(tensor.shape, np.float32)
        writer.add_tensor(tensor.name, 1 + noise / 16 if tensor.role == "norm" else _spread(noise, tensor.std))
    else:
        writer.add_tensor(tensor.name, _quantised(rng, kind, tensor), raw_dtype=number(kind))


def _spread(noise: np.ndarray, std: float) -> np.ndarray:
    """A negative `std` asks for negative numbers."""
    return np.float32(std) * (np.abs(noise) if std < 0 else noise)


def _quantised(rng: np.random.Generator, kind: str, tensor: Tensor) -> Bytes:
    std = tensor.std or tensor.shape[-1] ** -0.5
    match tensor.shape:
        case (rows, cols):
            return rows_of(rng, kind, (rows, cols), std=std)
        case (experts, rows, cols):
            return experts_of(rng, kind, (experts, rows, cols), std=std)
    raise ValueError(f"{tensor.name} has {len(tensor.shape)} dimensions")


def _write_keys(writer: GGUFWriter, plan: Plan) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    writer.add_name(f"tiny {plan.name}")
    for key, value in plan.keys.items():
        add[type(value)](f"{plan.name}.{key}", value)


def _write_tokenizer(writer: GGUFWriter) -> None:
    """Byte pair encoding as GPT-2 has it, with next to no pairs: about one token per byte."""
    letters = _gpt2_letters()
    merges = ["Ġ t", "h e", "i n", "a n", "Ġt he", "e r"]
    tokens = letters + ["<|end|>"] + [merge.replace(" ", "") for merge in merges]
    spare = [f"<|spare_{i}|>" for i in range(VOCABULARY - len(tokens))]
    normal, control, unused = 1, 3, 5
    types = [control if i == END else normal for i in range(len(tokens))] + [unused] * len(spare)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + spare)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)


def _gpt2_letters() -> list[str]:
    """For each byte the letter that stands for it in GPT-2's vocabulary: itself where it can be printed."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
