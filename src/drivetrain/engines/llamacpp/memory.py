"""How much memory a worker will take, told from the header of its model and the parameters of its launch. Pure."""

from typing import Final

from drivetrain.engines.llamacpp.launch import Launch
from drivetrain.gguf import TENSOR_TYPES, Gguf, TensorType

PROCESS_BYTES: Final = 56 * 2**20  # the interpreter, llama.cpp's own and what its heap grows by in use, measured
VOCABULARY_BYTES: Final = 512  # per token: its text, its merges, the maps between them; measured
FLOAT_BYTES: Final = 4
MAX_LAYERS: Final = 4096  # whatever a header claims

_TYPES = {kind.name.lower(): kind for kind in TENSOR_TYPES.values()}


def estimate(launch: Launch, gguf: Gguf, files_bytes: int) -> int:
    """Bytes of RAM that the worker takes with its context in full use. `files_bytes`: all files that it reads."""
    cache = launch.cells * cell_bytes(gguf, launch.cache_k, launch.cache_v)
    return files_bytes + cache + launch.prompt_cache_bytes + _compute(launch, gguf) + _process(gguf)


def cell_bytes(gguf: Gguf, cache_k: str, cache_v: str) -> int:
    """Bytes of the KV cache for one token, of all layers. Sliding windows are left out: at most this is needed."""
    arch = gguf.architecture
    layers = min(gguf.whole(f"{arch}.block_count"), MAX_LAYERS)
    if rank := gguf.whole(f"{arch}.attention.kv_lora_rank"):  # latent attention keeps one compressed head
        rope = gguf.whole(f"{arch}.rope.dimension_count")
        return layers * (_row(rank + rope, cache_k) + _row(rank, cache_v))
    heads = gguf.layered(f"{arch}.attention.head_count", layers)
    kv_heads = gguf.layered(f"{arch}.attention.head_count_kv", layers, heads[0] if heads else 0)
    head = gguf.whole(f"{arch}.embedding_length") // max(max(heads, default=1), 1)
    key = gguf.whole(f"{arch}.attention.key_length", head)
    value = gguf.whole(f"{arch}.attention.value_length", head)
    return sum(_row(count * key, cache_k) + _row(count * value, cache_v) for count in kv_heads)


def _row(elements: int, kind: str) -> int:
    shape: TensorType = _TYPES[kind]
    return -(-elements // shape.block) * shape.bytes


def _compute(launch: Launch, gguf: Gguf) -> int:
    """Activations of one batch, with those that llama.cpp's allocator cannot place upon one another; and the logits."""
    arch, tokens = gguf.architecture, launch.cpu_batch
    width = gguf.whole(f"{arch}.embedding_length")
    experts = gguf.whole(f"{arch}.expert_feed_forward_length") * gguf.whole(f"{arch}.expert_used_count")
    inner = max(gguf.layered(f"{arch}.feed_forward_length", 1)[0], experts)
    activations = tokens * (8 * width + 2 * inner)
    heads = max(gguf.layered(f"{arch}.attention.head_count", 1))
    scores = tokens * launch.cells * (heads if launch.flash == "disabled" else 1)
    # Embeddings have every token of a batch put out, and each is there twice: computed, and copied for the caller.
    logits = 2 * (tokens if launch.embedding else launch.parallel) * vocabulary(gguf)
    return FLOAT_BYTES * (activations + scores + logits)


def _process(gguf: Gguf) -> int:
    return PROCESS_BYTES + VOCABULARY_BYTES * vocabulary(gguf)


def vocabulary(gguf: Gguf) -> int:
    """How many tokens the model knows."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    return getattr(tokens, "length", 0) or gguf.whole(f"{gguf.architecture}.vocab_size")
