#!/usr/bin/env python3
"""One model in a process of its own, timed: llama.cpp as the wheel brings it, with or without our plugin.

Orders come as a line of JSON on standard input, see `Orders`; once the model is loaded and warm, a line of JSON on
standard output tells what that took. Then each line of input asks for a turn, `{"tokens": 16, "limit_s": 90}`, and is
answered by `{"tokens": 16, "seconds": 1.3}`, until the input ends; `{"again": true}` begins anew with an empty context
and warms it. It calls llama.cpp's C interface by itself, so that the tokens that go in can be random: random weights
repeat themselves when they are fed their own words, and then they use few experts.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as Drivetrain's worker has it, for all alike

LOAD_MODES = {"none": 0, "mmap": 1, "direct": 4}
ROOM = 64  # bytes behind the members that are used here: the rest of the struct, whatever the version adds
ERROR_BYTES = 1024
COMPARED = 16  # tokens whose most likely successor is told
LEAST_TOKENS = 4  # of a turn, however long they take


@dataclass(frozen=True)
class Orders:
    model: str  # the file to load: the model, or a shell of it
    load_mode: str = "mmap"
    repack: bool = True  # llama.cpp may lay weights out anew
    threads: int = 2
    seed: int = 1
    read_first: str | None = None  # a file to bring into the page cache
    library: str | None = None  # our plugin, None: stock
    options: dict[str, str] = field(default_factory=dict)  # of the plugin
    warm: int = 96  # tokens before the clock runs
    tokens: int = 128  # at most, in all turns
    limit_s: float = 60.0  # of the warming
    prompts: tuple[tuple[int, int], ...] = ()  # tokens, tokens computed at once


class ModelParams(ctypes.Structure):
    """`llama_model_params` as far as the last member that is set here."""

    _fields_ = (
        ("devices", ctypes.c_void_p),
        ("overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int32),
        ("load_mode", ctypes.c_int32),
        ("lazy_mode", ctypes.c_int32),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.c_void_p),
        ("callbacks", ctypes.c_void_p * 3),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("rest", ctypes.c_uint8 * ROOM),
    )


class ContextParams(ctypes.Structure):
    """`llama_context_params`, likewise."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("n_seq_max", ctypes.c_uint32),
        ("n_rs_seq", ctypes.c_uint32),
        ("n_outputs_max", ctypes.c_uint32),
        ("n_outputs_max_per_seq", ctypes.c_uint32),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("rest", ctypes.c_uint8 * (4 * ROOM)),
    )


class Batch(ctypes.Structure):
    _fields_ = (("n_tokens", ctypes.c_int32), *((name, ctypes.c_void_p) for name in ("token", "embd", "pos")),
                *((name, ctypes.c_void_p) for name in ("n_seq_id", "seq_id", "logits")))  # fmt: skip


class Failed(Exception):
    """What went wrong."""


def main() -> int:
    given = json.loads(sys.stdin.readline())
    orders = Orders(**{**given, "prompts": tuple(map(tuple, given.get("prompts", ())))})
    out = os.dup(1)
    os.dup2(2, 1)  # whatever llama.cpp prints is log
    try:
        for told in measure(orders):
            os.write(out, json.dumps(told).encode() + b"\n")
    except Failed as error:
        os.write(out, json.dumps({"error": str(error)}).encode() + b"\n")
        return 1
    return 0


def measure(orders: Orders) -> Iterator[dict[str, Any]]:
    if orders.read_first:
        read(orders.read_first)
    llama = runtime()
    begun = time.monotonic()
    if orders.library:
        plug_in(llama, orders.library, orders.options)
    model = load(llama, orders)
    results: dict[str, Any] = {"load_s": time.monotonic() - begun}
    vocabulary = int(llama.llama_vocab_n_tokens(ctypes.c_void_p(llama.llama_model_get_vocab(model))))
    # Prompts come first: they bring nearly every expert into memory, if there is room for them all.
    results["prompts"] = [prompt(llama, model, orders, *one, vocabulary) for one in orders.prompts]
    decoding = Decoding(llama, model, orders, vocabulary)
    yield results | {"answers": decoding.warm()}
    for line in sys.stdin:
        asked = json.loads(line)
        if "again" in asked:
            decoding.context.close()
            decoding = Decoding(llama, model, orders, vocabulary)
            yield {"answers": decoding.warm()}
        else:
            yield decoding.turn(**asked)


def read(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(2**24):
            pass


def runtime() -> ctypes.CDLL:
    """llama.cpp, with its symbols where a plugin finds them."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    importlib.import_module("xllamacpp")
    llama = ctypes.CDLL(None)
    llama.llama_model_default_params.restype = ModelParams
    llama.llama_context_default_params.restype = ContextParams
    llama.llama_batch_get_one.restype = Batch
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab", "ggml_backend_load"):
        getattr(llama, name).restype = ctypes.c_void_p
    llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    llama.llama_backend_init()
    return llama


def plug_in(llama: ctypes.CDLL, library: str, options: dict[str, str]) -> None:
    ours = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    said = ctypes.create_string_buffer(ERROR_BYTES)
    text = "\n".join(f"{name}={value}" for name, value in options.items())
    if ours.es_configure(text.encode(), said, ctypes.c_size_t(ERROR_BYTES)):
        raise Failed(f"es_configure: {said.value.decode(errors='replace')}")
    if not llama.ggml_backend_load(library.encode()):
        raise Failed(f"llama.cpp does not take the plugin {library}")


def load(llama: ctypes.CDLL, orders: Orders) -> ctypes.c_void_p:
    params = llama.llama_model_default_params()
    if (params.n_gpu_layers, params.split_mode, params.use_extra_bufts) != (-1, 1, True):
        raise Failed("this wheel lays llama_model_params out in another way than this program expects")
    params.load_mode = LOAD_MODES[orders.load_mode]
    params.use_extra_bufts = orders.repack
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(orders.model.encode(), params)
    if not model:
        raise Failed(f"llama.cpp does not load {orders.model}")
    return ctypes.c_void_p(model)


class Context:
    """A context of llama.cpp with one sequence."""

    def __init__(self, llama: ctypes.CDLL, model: ctypes.c_void_p, orders: Orders, *, batch: int, room: int) -> None:
        params = llama.llama_context_default_params()
        if (params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max) != (512, 2048, 512, 1):
            raise Failed("this wheel lays llama_context_params out in another way than this program expects")
        params.n_ctx = -(-room // 256) * 256
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = orders.threads
        self._llama = llama
        self._context = ctypes.c_void_p(llama.llama_init_from_model(model, params))
        if not self._context:
            raise Failed("llama.cpp makes no context")

    def feed(self, tokens: list[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        code = self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(array, len(tokens)))
        if code:
            raise Failed(f"llama_decode answered {code}")
        self._llama.llama_synchronize(self._context)

    def likeliest(self, vocabulary: int) -> int:
        logits = self._llama.llama_get_logits_ith(self._context, -1)[:vocabulary]
        return int(logits.index(max(logits)))

    def close(self) -> None:
        self._llama.llama_free(self._context)


class Decoding:
    """Token after token, each alone and by chance."""

    def __init__(self, llama: ctypes.CDLL, model: ctypes.c_void_p, orders: Orders, vocabulary: int) -> None:
        self.context = Context(llama, model, orders, batch=512, room=orders.warm + orders.tokens + COMPARED)
        self._orders, self._vocabulary, self._chance = orders, vocabulary, random.Random(orders.seed)

    def _next(self) -> None:
        self.context.feed([self._chance.randrange(self._vocabulary)])

    def warm(self) -> list[int]:
        """First some whose answers are told, then some to fill the caches."""
        answers: list[int] = []
        until = time.monotonic() + self._orders.limit_s
        for number in range(COMPARED + self._orders.warm):
            if time.monotonic() > until and answers:
                break
            self._next()
            if number < COMPARED:
                answers.append(self.context.likeliest(self._vocabulary))
        keep(self._orders, "before")
        return answers

    def turn(self, tokens: int, limit_s: float) -> dict[str, Any]:
        begun = time.monotonic()
        done = 0
        while done < tokens and (done < LEAST_TOKENS or time.monotonic() - begun < limit_s):
            self._next()
            done += 1
        seconds = time.monotonic() - begun
        keep(self._orders, "after")
        return {"tokens": done, "seconds": seconds}


def prompt(
    llama: ctypes.CDLL, model: ctypes.c_void_p, orders: Orders, count: int, batch: int, vocabulary: int
) -> dict[str, Any]:
    context = Context(llama, model, orders, batch=batch, room=count)
    tokens = random.Random(orders.seed + 1)
    keep(orders, f"prompt-{batch}-before")
    begun = time.monotonic()
    left = [tokens.randrange(vocabulary) for _ in range(count)]
    while left:
        context.feed(left[:batch])
        left = left[batch:]
    seconds = time.monotonic() - begun
    keep(orders, f"prompt-{batch}-after")
    context.close()
    return {"tokens": count, "batch": batch, "seconds": seconds}


def keep(orders: Orders, name: str) -> None:
    """The counters of the plugin as they are now."""
    if page := orders.options.get("stats"):
        shutil.copyfile(page, f"{page}.{name}")


if __name__ == "__main__":
    sys.exit(main())
