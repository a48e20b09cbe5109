"""Random matrices in any of ggml's types, quantised by the very llama.cpp that is to read them."""

import ctypes
from functools import cache
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

Bytes = npt.NDArray[np.uint8]


def fitting(kind: str, cols: int) -> str:
    """`kind`, or what llama.cpp takes instead where a row is no whole number of its blocks."""
    return next(name for name in (kind, "Q8_0", "F16") if cols % GGML_QUANT_SIZES[number(name)][0] == 0)


def number(kind: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[kind]


def rows_of(rng: np.random.Generator, kind: str, shape: tuple[int, int], *, std: float) -> Bytes:
    """A matrix of `shape` (rows, columns), normally distributed: (rows, bytes of a row)."""
    values = rng.standard_normal(shape, np.float32) * np.float32(std)
    if kind == "F32":
        return values.view(np.uint8)
    block, size = GGML_QUANT_SIZES[number(kind)]
    stored = np.empty((shape[0], shape[1] // block * size), np.uint8)
    importance = np.ones(shape[1], np.float32)  # some types of 2 bits are not made without
    written = _llama().ggml_quantize_chunk(
        int(number(kind)), values.ctypes, stored.ctypes, 0, shape[0], shape[1], importance.ctypes
    )
    assert written == stored.nbytes
    return stored


def experts_of(rng: np.random.Generator, kind: str, shape: tuple[int, int, int], *, std: float) -> Bytes:
    """`shape` (experts, rows, columns). Each expert draws its rows from a pool twice its size: no two are alike."""
    experts, rows, cols = shape
    pool = rows_of(rng, kind, (2 * rows, cols), std=std)
    return pool[rng.integers(0, len(pool), (experts, rows))]


@cache
def _llama() -> ctypes.CDLL:
    found = find_spec("xllamacpp.xllamacpp")
    assert found and found.origin
    library = ctypes.CDLL(found.origin)
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library
