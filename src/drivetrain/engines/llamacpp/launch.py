"""What a worker is told: the parameters of one llama.cpp server, resolved, and as the worker reads them."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from drivetrain.engines.expertstream import plan

HTTP_THREADS: Final = 128  # llama.cpp needs one per open connection, idle ones too
CPU_BATCH: Final = 64  # as fast as larger ones, measured
GPU_BATCH: Final = 2048
GPU_UBATCH: Final = 512

Flash = Literal["auto", "enabled", "disabled"]
_LOAD_MODES = {(True, False): "MMAP", (True, True): "MMAP_MLOCK", (False, False): "NONE", (False, True): "MLOCK"}


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    scale: float = 1.0


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Two equal launches give the same worker."""

    weights: str
    context: int  # tokens that one request may use
    cells: int  # tokens of all requests together
    parallel: int
    threads: int
    batch: int | None  # None: as suits the machine, which the worker knows
    embedding: bool
    encoder: bool  # reads its whole input at once, and generates nothing
    pooling: str  # "unspecified": as the model says
    gpu_layers: int | None  # None: as many as fit
    flash: Flash
    cache_k: str
    cache_v: str
    mmap: bool
    mlock: bool
    reuse: bool  # of what a request has in common with the one before in its slot
    projector: str | None
    adapters: tuple[Adapter, ...]
    template: str | None  # Jinja; None: the model's own
    prefaced: bool  # the template has our words for tools, see `tools`
    rope_freq_base: float
    rope_freq_scale: float
    prompt_cache_bytes: int
    expertstream: plan.Wish  # whether experts are to be streamed
    expert_budget: int | str  # bytes of memory, or a share of it such as "60%"; 0: as the governor sees fit
    expert_trace: str | None  # file that tells which experts were asked for
    io: plan.Io  # how experts are read
    prefetch: bool | None  # fetch what the next layer will probably ask for; None: as the machine was tuned
    streamed: bool = False  # experts come from the drive as they are needed, the rest from a shell

    @property
    def cpu_batch(self) -> int:
        """Tokens of a prompt that are computed in one go.

        Between two batches a worker sees that a caller has gone, and serves those who generate; an encoder has to
        take an input in one.
        """
        return self.batch or (self.context if self.encoder else CPU_BATCH)

    def orders(self, socket: str, alias: str) -> Mapping[str, Any]:
        """What the worker reads: members of llama.cpp's parameters, by its own names."""
        adapters = [{"path": adapter.path, "scale": adapter.scale} for adapter in self.adapters]
        return {
            "params": self._server(socket, alias) | self._model() | self._optional(),
            "with_gpu": self._with_gpu(),
            "adapters": adapters,
        }

    def _server(self, socket: str, alias: str) -> dict[str, Any]:
        return {
            "hostname": socket,
            "port": 1,  # of no meaning for a socket, but 0 has llama.cpp choose one
            "model_alias": [alias],
            "n_threads_http": HTTP_THREADS,
            "endpoint_metrics": True,
            "ui": False,
            "verbosity": 2,  # warnings and errors: lines on every request would cost the process that reads them
            "warmup": False,  # the first request does the same, and is not kept waiting for it
            "fit_params": False,  # reads the model twice, to no purpose without a GPU
        }

    def _model(self) -> dict[str, Any]:
        return {
            "model.path": self.weights,
            "n_ctx": self.cells,
            "kv_unified": True,
            "kv_unified_per_slot": self.context,
            "n_parallel": self.parallel,
            "n_batch": self.cpu_batch,
            "n_ubatch": self.cpu_batch,
            "cpuparams.n_threads": self.threads,
            "cpuparams_batch.n_threads": self.threads,
            "embedding": self.embedding,
            "pooling_type": f"LLAMA_POOLING_TYPE_{self.pooling.upper()}",
            "flash_attn_type": f"LLAMA_FLASH_ATTN_TYPE_{self.flash.upper()}",
            "cache_type_k": f"GGML_TYPE_{self.cache_k.upper()}",
            "cache_type_v": f"GGML_TYPE_{self.cache_v.upper()}",
            "load_mode": f"LLAMA_LOAD_MODE_{self._load_mode}",
            "rope_freq_base": self.rope_freq_base,
            "rope_freq_scale": self.rope_freq_scale,
            "cache_prompt": self.reuse,
            "cache_ram_mib": self.prompt_cache_bytes // 2**20,
        }

    @property
    def _load_mode(self) -> str:
        """A shell goes past the page cache: that memory is for experts."""
        return "DIRECT_IO" if self.streamed else _LOAD_MODES[self.mmap, self.mlock]

    def _optional(self) -> dict[str, Any]:
        members = {"n_gpu_layers": self.gpu_layers, "mmproj.path": self.projector, "chat_template": self.template}
        return {name: value for name, value in members.items() if value is not None}

    def _with_gpu(self) -> dict[str, Any]:
        fit: dict[str, Any] = {"fit_params": True} if self.gpu_layers is None else {}
        return fit if self.batch or self.encoder else fit | {"n_batch": GPU_BATCH, "n_ubatch": GPU_UBATCH}
