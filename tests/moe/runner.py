"""Runs models in a process of its own, with llama.cpp as it comes or with the expertstream plugin; keeps every logit.

A script: `python runner.py` reads one JSON object from standard input, `Orders`, and writes an .npz per run. Each holds
for every work `NAME/logits` (positions, vocabulary), float32 as llama.cpp gave them, in the order in which they were
computed, and `NAME/tokens`, those chosen greedily (steps, sequences).
"""

import ctypes
import json
import os
import sys
from typing import Any, ClassVar, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Work(TypedDict):
    """Texts that llama.cpp gets side by side: their tokens in blocks of `block`, then `steps` greedy tokens of each."""

    name: str
    texts: list[list[int]]
    block: int
    steps: int


class Run(TypedDict):
    model: str  # the file that llama.cpp is given
    load_mode: str  # as llama.cpp names them: none, mmap, dio
    extra_bufts: bool  # may llama.cpp repack weights into buffers of its own?
    threads: int
    works: list[Work]
    out: str


class Orders(TypedDict):
    plugin: str | None  # the shared library
    options: str  # for es_configure
    shells: list[list[str]]  # [model, shell]: to be made before the runs
    runs: list[Run]


Fields = list[tuple[str, Any]]


class ModelParams(ctypes.Structure):
    _fields_: ClassVar[Fields] = (
        [("devices", ctypes.c_void_p), ("overrides", ctypes.c_void_p)]
        + [(name, ctypes.c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")]
        + [(name, ctypes.c_void_p) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")]
        + [
            (name, ctypes.c_bool)
            for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host", "no_alloc", "load_mtp")
        ]
    )


class ContextParams(ctypes.Structure):
    _fields_: ClassVar[Fields] = (
        [(name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")]
        + [(name, ctypes.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")]
        + [(name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling")]
        + [(name, ctypes.c_int32) for name in ("pooling", "attention", "flash_attn")]
        + [(name, ctypes.c_float) for name in ("freq_base", "freq_scale", "yarn_ext", "yarn_attn", "yarn_fast")]
        + [("yarn_slow", ctypes.c_float), ("yarn_ctx", ctypes.c_uint32), ("defrag", ctypes.c_float)]
        + [("cb_eval", ctypes.c_void_p), ("cb_eval_data", ctypes.c_void_p)]
        + [("type_k", ctypes.c_int32), ("type_v", ctypes.c_int32)]
        + [("abort", ctypes.c_void_p), ("abort_data", ctypes.c_void_p)]
        + [
            (name, ctypes.c_bool)
            for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")
        ]
        + [("samplers", ctypes.c_void_p), ("n_samplers", ctypes.c_size_t), ("other", ctypes.c_void_p)]
    )


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Entry(NamedTuple):
    token: int
    position: int
    sequence: int


def main() -> None:
    orders: Orders = json.load(sys.stdin)
    llama = _llama()
    if orders["plugin"]:
        _load_plugin(llama, orders["plugin"], orders["options"], orders["shells"])
    for run in orders["runs"]:
        _run(llama, run)
    sys.stdout.flush()
    os._exit(0)  # without llama.cpp's and the plugin's farewells: those are not what is tested here


def _llama() -> ctypes.CDLL:
    """The wheel's llama.cpp, visible to the plugin. Refuses one whose structs look different from ours."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    import xllamacpp  # noqa: F401 - only now are the flags as they have to be

    llama = ctypes.CDLL(None)
    answers: dict[str, Any] = {
        "llama_model_default_params": ModelParams,
        "llama_context_default_params": ContextParams,
        "llama_model_load_from_file": ctypes.c_void_p,
        "llama_init_from_model": ctypes.c_void_p,
        "llama_get_logits_ith": ctypes.POINTER(ctypes.c_float),
        "llama_model_get_vocab": ctypes.c_void_p,
        "llama_batch_init": Batch,
        "ggml_backend_load": ctypes.c_void_p,
    }
    for name, answer in answers.items():
        getattr(llama, name).restype = answer
    model, context = llama.llama_model_default_params(), llama.llama_context_default_params()
    seen = (model.n_gpu_layers, model.use_extra_bufts, model.no_host, context.n_ctx, context.n_batch, context.n_ubatch)
    floats = (context.yarn_ext, context.yarn_slow, context.defrag, context.type_k, context.swa_full, context.other)
    if (seen, floats) != ((-1, True, False, 512, 2048, 512), (-1.0, -1.0, -1.0, 1, True, None)):
        sys.exit(f"the structs of this llama.cpp are not those this runner knows: {seen} {floats}")
    return llama


def _load_plugin(llama: ctypes.CDLL, path: str, options: str, shells: list[list[str]]) -> None:
    plugin = ctypes.CDLL(path)
    for model, shell in shells:
        _check(plugin.es_shell, model.encode(), shell.encode())
    _check(plugin.es_configure, options.encode())
    if not llama.ggml_backend_load(path.encode()):
        plugin.es_refusal.restype = ctypes.c_char_p
        sys.exit(f"the plugin refused: {plugin.es_refusal().decode()}")


def _check(function: Any, *arguments: bytes) -> None:
    error = ctypes.create_string_buffer(1000)
    if function(*arguments, error, ctypes.c_size_t(len(error))):
        sys.exit(f"{function.__name__}: {error.value.decode()}")


def _run(llama: ctypes.CDLL, run: Run) -> None:
    params = llama.llama_model_default_params()
    params.load_mode = llama.llama_load_mode_from_str(run["load_mode"].encode())
    params.use_extra_bufts = run["extra_bufts"]
    model = llama.llama_model_load_from_file(run["model"].encode(), params)
    if not model:
        sys.exit(f"{run['model']} was not loaded")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for work in run["works"]:
        logits, tokens = _work(llama, model, work, run["threads"])
        arrays |= {f"{work['name']}/logits": logits, f"{work['name']}/tokens": tokens}
    llama.llama_model_free(ctypes.c_void_p(model))
    np.savez(run["out"], **arrays)  # type: ignore[arg-type]  # numpy's stubs take the names for options


def _work(llama: ctypes.CDLL, model: int, work: Work, threads: int) -> tuple[Logits, npt.NDArray[np.int32]]:
    texts, block = work["texts"], work["block"]
    params = llama.llama_context_default_params()
    params.n_ctx = 256 * -(-(sum(map(len, texts)) + len(texts) * work["steps"]) // 256)
    params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_outputs_max_per_seq = block
    params.n_seq_max = len(texts)
    params.kv_unified = True
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(ctypes.c_void_p(model), params)
    if not context:
        sys.exit(f"no context for {work['name']}")
    try:
        return _texts(llama, model, context, work)
    finally:
        llama.llama_free(ctypes.c_void_p(context))


def _texts(llama: ctypes.CDLL, model: int, context: int, work: Work) -> tuple[Logits, npt.NDArray[np.int32]]:
    vocab = ctypes.c_void_p(llama.llama_model_get_vocab(ctypes.c_void_p(model)))
    vocabulary = llama.llama_vocab_n_tokens(vocab)
    batch = llama.llama_batch_init(work["block"], 0, 1)
    prompt = [Entry(token, i, s) for s, text in enumerate(work["texts"]) for i, token in enumerate(text)]
    last: dict[int, Logits] = {}  # of each sequence, what follows what it has
    logits: list[Logits] = []
    chosen: list[list[int]] = []
    for start in range(0, len(prompt), work["block"]):
        entries = prompt[start : start + work["block"]]
        rows = _decode(llama, context, batch, entries, vocabulary)
        logits.append(rows)
        last |= {entry.sequence: row for entry, row in zip(entries, rows, strict=True)}
    for step in range(work["steps"]):
        chosen.append([int(last[s].argmax()) for s in range(len(work["texts"]))])
        entries = [Entry(chosen[-1][s], len(text) + step, s) for s, text in enumerate(work["texts"])]
        rows = _decode(llama, context, batch, entries, vocabulary)
        logits.append(rows)
        last = dict(enumerate(rows))
    llama.llama_batch_free(batch)
    return np.concatenate(logits), np.array(chosen, np.int32)


def _decode(llama: ctypes.CDLL, context: int, batch: Batch, entries: list[Entry], vocabulary: int) -> Logits:
    batch.n_tokens = len(entries)
    for i, entry in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = entry.token, entry.position, 1
        batch.seq_id[i][0], batch.logits[i] = entry.sequence, 1
    status = llama.llama_decode(ctypes.c_void_p(context), batch)
    if status:
        sys.exit(f"llama_decode gave {status} for {len(entries)} tokens")
    rows = [llama.llama_get_logits_ith(ctypes.c_void_p(context), i) for i in range(len(entries))]
    return np.stack([np.ctypeslib.as_array(row, (vocabulary,)).copy() for row in rows])


if __name__ == "__main__":
    main()
