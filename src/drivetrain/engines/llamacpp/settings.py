"""From a model's settings to the launch of its worker. Pure: the same settings give the same launch.

Settings go by Jan's, Ollama's and llama.cpp's names. What the table does not know is none of this engine's business
and is left alone; what it knows and cannot use is the caller's mistake.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from drivetrain.engines.expertstream import plan
from drivetrain.engines.llamacpp.launch import Adapter, Flash, Launch
from drivetrain.engines.llamacpp.memory import cell_bytes, vocabulary
from drivetrain.engines.llamacpp.tools import jinja, with_tools
from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf
from drivetrain.types import ModelSpec

CONTEXT: Final = 4096  # tokens of a request, where nobody says; less if the model was trained on less
PARALLEL: Final = 4
POOL_BYTES: Final = 256 * 2**20  # KV cache beyond one request's context, so that several may use theirs, up to here
PROMPT_CACHE_BYTES: Final = 256 * 2**20  # prompts whose slot has gone to another conversation
MAX_WHOLE: Final = 2**31 - 1
LEAST_CONTEXT: Final = 4  # tokens

Chosen = Mapping[str, Any]  # members of `Launch`, as far as somebody chose them


def _whole(low: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_WHOLE:
            raise ValueError(f"a whole number of at least {low}")
        return value

    return parse


def _tokens(value: Any) -> int:
    """Like Ollama: what is too small becomes the least there is, what is too large is cut to what the model can."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number of at least 0")
    return min(max(value, LEAST_CONTEXT), MAX_WHOLE) if value else 0


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError("a number of at least 0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - the caller of the table turns it into ours
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")  # noqa: TRY004
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value.lower()

    return parse


def _flash(value: Any) -> Flash:
    chosen: Mapping[Any, Flash] = {
        True: "enabled",
        False: "disabled",
        "on": "enabled",
        "off": "disabled",
        "auto": "auto",
    }
    if not isinstance(value, bool | str) or value not in chosen:
        raise ValueError("true, false, on, off or auto")
    return chosen[value]


def _adapters(value: Any) -> tuple[Adapter, ...]:
    """A path, `{"path": …, "scale": …}`, or a list of these."""
    given = value if isinstance(value, list | tuple) else (value,)
    return tuple(_adapter({"path": one} if isinstance(one, str) else one) for one in given)


def _adapter(value: Any) -> Adapter:
    match value:
        case {"path": str(path)}:
            return Adapter(path=path, scale=_number(value.get("scale", 1.0)))
    raise ValueError("a path, or a list of paths")


def _amount(value: Any) -> int | str:
    """Bytes, or a share of memory: `12000000000`, `"12GB"`, `"11.5 GiB"`, `"60%"`; `"auto"` is 0."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match["unit"] == "%" and not 0 < float(match["number"]) <= 100):
        raise ValueError('bytes, a text such as "12GB" or "60%", or "auto"')
    if match["number"] is None:
        return 0
    return value.strip() if match["unit"] == "%" else int(float(match["number"]) * _UNITS[match["unit"].lower()])


_UNITS: Mapping[str, int] = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"auto|(?P<number>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>%|[KMGT]i?B|B)", re.IGNORECASE)
_CACHE_TYPE = _one_of("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "context": _tokens,
    "parallel": _whole(1),
    "threads": _whole(0),
    "batch": _whole(1),
    "embedding": _flag,
    "pooling": _one_of("none", "mean", "cls", "last", "rank"),
    "gpu_layers": _whole(-1),
    "flash": _flash,
    "cache_k": _CACHE_TYPE,
    "cache_v": _CACHE_TYPE,
    "mmap": _flag,
    "mlock": _flag,
    "reuse": _flag,
    "projector": _text,
    "adapters": _adapters,
    "template": _text,
    "rope_freq_base": _number,
    "rope_freq_scale": _number,
    "prompt_cache_mib": _whole(0),
    "expertstream": _one_of("auto", "on", "off"),
    "expert_budget": _amount,
    "expert_trace": _text,
    "io": _one_of("auto", "threads", "uring"),
    "prefetch": _flag,
}
_NAMES: Mapping[str, str] = {
    name: member
    for member, names in {
        "context": "ctx_len num_ctx n_ctx ctx_size",
        "parallel": "n_parallel num_parallel parallel",
        "threads": "cpu_threads num_thread n_threads threads",
        "batch": "n_batch num_batch batch_size n_ubatch ubatch_size",
        "embedding": "embedding embeddings",
        "pooling": "pooling pooling_type",
        "gpu_layers": "ngl num_gpu n_gpu_layers gpu_layers",
        "flash": "flash_attn flash_attention",
        "cache_k": "cache_type_k",
        "cache_v": "cache_type_v",
        "mmap": "mmap use_mmap",
        "mlock": "mlock use_mlock",
        "reuse": "cache_prompt",
        "projector": "mmproj projector",
        "adapters": "adapters lora",
        "template": "chat_template",
        "rope_freq_base": "rope_freq_base rope_frequency_base",
        "rope_freq_scale": "rope_freq_scale rope_frequency_scale",
        "prompt_cache_mib": "cache_ram cache_ram_mib",
        "expertstream": "expertstream",
        "expert_budget": "expert_budget",
        "expert_trace": "expert_trace",
        "io": "io",
        "prefetch": "prefetch",
    }.items()
    for name in names.split()
}


def chosen(settings: Mapping[str, Any]) -> Chosen:
    """The settings that this engine knows, under one name each, checked. null is "not chosen"."""
    found = {}
    for name, value in settings.items():
        member = _NAMES.get(name)
        if member is None or value is None:
            continue
        try:
            found[member] = _PARSERS[member](value)
        except ValueError as error:
            raise BadRequest(f"setting {name!r} is {value!r}; it must be {error}", param=name) from None
    return found


def resolve(spec: ModelSpec, given: Chosen, gguf: Gguf, *, cores: int) -> Launch:
    """The launch of the model with what is `given`, over the model's own settings, already `chosen`."""
    encoder = gguf.metadata.get(f"{gguf.architecture}.attention.causal") is False
    cache_k, cache_v = given.get("cache_k", "f16"), given.get("cache_v", "f16")
    token_bytes = cell_bytes(gguf, cache_k, cache_v)
    context, parallel = _context(given, gguf), given.get("parallel", PARALLEL)
    cells = _cells(context, parallel, token_bytes)
    prompt_cache = given.get("prompt_cache_mib")
    gpu_layers = given.get("gpu_layers", -1)
    own_template = given.get("template") or jinja(spec.template)
    template = own_template or gguf.text("tokenizer.chat_template")
    return Launch(
        weights=spec.weights or "",
        context=context,
        cells=cells,
        parallel=parallel,
        threads=given.get("threads") or cores,
        batch=given.get("batch"),
        embedding=given.get("embedding", True),
        encoder=encoder,
        pooling=given.get("pooling") or _pooling(gguf),
        gpu_layers=None if gpu_layers < 0 else gpu_layers,
        flash=given.get("flash", "auto"),
        cache_k=cache_k,
        cache_v=cache_v,
        mmap=given.get("mmap", True),
        mlock=given.get("mlock", False),
        reuse=given.get("reuse", True),
        projector=spec.projector or given.get("projector"),
        adapters=tuple(Adapter(path=path) for path in spec.adapters) or given.get("adapters", ()),
        template=with_tools(template) or own_template,
        prefaced=with_tools(template) is not None,
        rope_freq_base=given.get("rope_freq_base", 0.0),
        rope_freq_scale=given.get("rope_freq_scale", 0.0),
        prompt_cache_bytes=min(PROMPT_CACHE_BYTES, cells * token_bytes)
        if prompt_cache is None
        else prompt_cache * 2**20,
        expertstream=given.get("expertstream", "auto"),
        expert_budget=given.get("expert_budget", 0),
        expert_trace=given.get("expert_trace"),
        io=given.get("io", "auto"),
        prefetch=given.get("prefetch"),
    )


def streamed(launch: Launch, given: Chosen, gguf: Gguf, *, shell: str) -> Launch:
    """The same model, its experts streamed and all else read from its `shell`.

    Long blocks of a prompt have each expert read less often. They are dear where every token of them is put out, so
    embeddings, which want that, have to be asked for.
    """
    embedding = given.get("embedding", launch.encoder)
    block = plan.block(context=launch.cells, vocabulary=vocabulary(gguf), embedding=embedding)
    return replace(
        launch,
        weights=shell,
        streamed=True,
        embedding=embedding,
        pooling=launch.pooling if embedding else "unspecified",
        batch=launch.batch or (None if launch.encoder else block),
    )


def _context(given: Chosen, gguf: Gguf) -> int:
    """What was asked for, but not beyond what the model was trained on, unless its rope is stretched."""
    trained = gguf.whole(f"{gguf.architecture}.context_length") or MAX_WHOLE
    asked = given.get("context") or min(trained, CONTEXT)
    stretched = "rope_freq_scale" in given or "rope_freq_base" in given
    return int(asked if stretched else min(asked, trained))


def _cells(context: int, parallel: int, token_bytes: int) -> int:
    """Room for every slot's context where that is cheap, for one's where it is dear: then they share."""
    return max(context, min(context * parallel, POOL_BYTES // max(token_bytes, 1)))


def _pooling(gguf: Gguf) -> str:
    """A model that was not made for embeddings gives the state of its last token, as with Ollama."""
    return "unspecified" if f"{gguf.architecture}.pooling_type" in gguf.metadata else "last"
