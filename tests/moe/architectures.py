"""Which metadata and tensors a model of each architecture has. Names and shapes are those that llama.cpp asks for."""

from collections.abc import Callable
from typing import Literal, NamedTuple

Value = int | float | bool | str | list[int]
Role = Literal["norm", "plain", "matrix"]  # about one, float32, quantised


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]  # (experts, rows, columns)
    role: Role = "matrix"
    std: float = 0.0  # 0: 1 / sqrt(columns), which keeps activations at the size they had


class Size(NamedTuple):
    layers: int = 3
    embd: int = 256
    ffn: int = 256
    experts: int = 16
    used: int = 4
    heads: int = 4
    kv_heads: int = 2
    head: int = 64


class LinearSize(NamedTuple):
    heads: int = 4
    groups: int = 2
    state: int = 64


LINEAR = LinearSize()  # of the layers with linear attention


class Plan(NamedTuple):
    name: str  # `general.architecture`
    keys: dict[str, Value]  # without the name of the architecture before them
    tensors: list[Tensor]  # without embedding and output


Part = Callable[[str, Size], list[Tensor]]  # of a layer, named by what its tensors' names begin with


def qwen3moe(size: Size) -> Plan:
    keys = _common(size) | _heads(size) | {"expert_feed_forward_length": size.ffn}
    return Plan("qwen3moe", keys, _layers(size, _attention, _head_norms, _ffn_norm, _experts))


def qwen2moe(size: Size) -> Plan:
    """Biases in the attention, and an expert that all tokens share, behind a gate of its own."""
    lengths: dict[str, Value] = {
        "expert_feed_forward_length": size.ffn,
        "expert_shared_feed_forward_length": size.ffn,
    }
    parts = (_attention, _attention_biases, _ffn_norm, _experts, _shared, _shared_gate)
    return Plan("qwen2moe", _common(size) | lengths, _layers(size, *parts))


def mixtral(size: Size) -> Plan:
    keys = _common(size) | {"rope.dimension_count": size.head}
    return Plan("llama", keys, _layers(size, _attention, _ffn_norm, _experts))


def olmoe(size: Size) -> Plan:
    """Norms over all heads at once, as many of the keys as of the queries."""
    size = size._replace(kv_heads=size.heads)

    def norms(b: str, size: Size) -> list[Tensor]:
        return [Tensor(f"{b}attn_{name}_norm.weight", (size.embd,), "norm") for name in ("q", "k")]

    return Plan("olmoe", _common(size), _layers(size, _attention, norms, _ffn_norm, _experts))


def granitemoe(size: Size) -> Plan:
    """Its own factors for embedding, attention, residuals and logits, and a shared expert."""
    factors: dict[str, Value] = {
        "rope.dimension_count": size.head,
        "expert_shared_feed_forward_length": size.ffn,
        "attention.scale": 0.125,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "logit_scale": 2.0,
    }
    return Plan("granitemoe", _common(size) | factors, _layers(size, _attention, _ffn_norm, _experts, _shared))


def gpt_oss(size: Size) -> Plan:
    """Biases everywhere, also of the experts; attention sinks; a sliding window in every other layer."""

    def more(b: str, size: Size) -> list[Tensor]:
        rows = {"gate": size.ffn, "up": size.ffn, "down": size.embd}
        return [
            Tensor(b + "attn_output.bias", (size.embd,), "plain", 0.1),
            Tensor(b + "attn_sinks.weight", (size.heads,), "plain", 1.0),
            Tensor(b + "post_attention_norm.weight", (size.embd,), "norm"),
            Tensor(b + "ffn_gate_inp.bias", (size.experts,), "plain", 0.1),
            *(Tensor(f"{b}ffn_{x}_exps.bias", (size.experts, n), "plain", 0.1) for x, n in rows.items()),
        ]

    keys = _heads(size) | {"expert_feed_forward_length": size.ffn, "attention.sliding_window": 128}
    return Plan("gpt-oss", _common(size) | keys, _layers(size, _attention, _attention_biases, more, _experts))


def deepseek2(size: Size) -> Plan:
    """Latent attention; a first layer without experts; a shared expert; experts chosen by group, with a bias."""
    q_rank, kv_rank, rope, nope = 128, 64, 32, 32

    def attention(b: str, size: Size) -> list[Tensor]:
        return [
            Tensor(b + "attn_norm.weight", (size.embd,), "norm"),
            Tensor(b + "attn_q_a.weight", (q_rank, size.embd)),
            Tensor(b + "attn_q_a_norm.weight", (q_rank,), "norm"),
            Tensor(b + "attn_q_b.weight", (size.heads * (nope + rope), q_rank)),
            Tensor(b + "attn_kv_a_mqa.weight", (kv_rank + rope, size.embd)),
            Tensor(b + "attn_kv_a_norm.weight", (kv_rank,), "norm"),
            Tensor(b + "attn_k_b.weight", (size.heads, kv_rank, nope)),
            Tensor(b + "attn_v_b.weight", (size.heads, size.head, kv_rank)),
            Tensor(b + "attn_output.weight", (size.embd, size.heads * size.head)),
        ]

    def experts(b: str, size: Size) -> list[Tensor]:
        if b == "blk.0.":
            return _feed_forward(b, size, "")
        return [*_experts(b, size), Tensor(b + "exp_probs_b.bias", (size.experts,), "plain", 0.1), *_shared(b, size)]

    keys: dict[str, Value] = {
        "leading_dense_block_count": 1,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": kv_rank,
        "attention.key_length": kv_rank + rope,
        "attention.value_length": kv_rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": size.head,
        "rope.dimension_count": rope,
        "expert_feed_forward_length": size.ffn,
        "expert_shared_count": 1,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,  # sigmoid
        "expert_group_count": 4,
        "expert_group_used_count": 2,
    }
    return Plan("deepseek2", _common(size) | keys, _layers(size, attention, _ffn_norm, experts))


def qwen3next(size: Size) -> Plan:
    """Three layers of linear attention to one of softmax; gate and up of an expert in one tensor."""
    return _hybrid("qwen3next", size, merged=True)


def qwen35moe(size: Size) -> Plan:
    return _hybrid("qwen35moe", size, merged=False)


ARCHITECTURES: dict[str, Callable[[Size], Plan]] = {
    "qwen3moe": qwen3moe,
    "qwen2moe": qwen2moe,
    "mixtral": mixtral,
    "deepseek2": deepseek2,
    "gpt-oss": gpt_oss,
    "granitemoe": granitemoe,
    "olmoe": olmoe,
    "qwen3next": qwen3next,
    "qwen35moe": qwen35moe,
}


def _hybrid(name: str, size: Size, *, merged: bool) -> Plan:
    size = size._replace(layers=4)

    def attention(b: str, size: Size) -> list[Tensor]:
        if b == "blk.3.":
            return [*_attention(b, size, gates=2), *_head_norms(b, size)]
        return _linear_attention(b, size, split=name == "qwen35moe")

    def experts(b: str, size: Size) -> list[Tensor]:
        return [Tensor(b + "post_attention_norm.weight", (size.embd,), "norm"), *_experts(b, size, merged=merged)]

    keys: dict[str, Value] = {
        "expert_feed_forward_length": size.ffn,
        "expert_shared_feed_forward_length": size.ffn,
        "rope.dimension_count": size.head // 2,
        "ssm.conv_kernel": 4,
        "ssm.state_size": LINEAR.state,
        "ssm.group_count": LINEAR.groups,
        "ssm.time_step_rank": LINEAR.heads,
        "ssm.inner_size": LINEAR.heads * LINEAR.state,
        "full_attention_interval": 4,
    }
    sections: dict[str, Value] = {"rope.dimension_sections": [6, 5, 5, 0]} if name == "qwen35moe" else {}
    layers = _layers(size, attention, experts, _shared, _shared_gate)
    return Plan(name, _common(size) | _heads(size) | keys | sections, layers)


def _linear_attention(b: str, size: Size, *, split: bool) -> list[Tensor]:
    heads, groups, state = LINEAR
    value = heads * state
    mixed = 2 * groups * state + value
    rates = (
        [Tensor(f"{b}ssm_{name}.weight", (heads, size.embd)) for name in ("beta", "alpha")]
        if split
        else [Tensor(b + "ssm_ba.weight", (2 * heads, size.embd))]
    )
    return [
        Tensor(b + "attn_norm.weight", (size.embd,), "norm"),
        Tensor(b + "attn_qkv.weight", (mixed, size.embd)),
        Tensor(b + "attn_gate.weight", (value, size.embd)),
        Tensor(b + "ssm_conv1d.weight", (mixed, 4), "plain", 0.5),
        Tensor(b + "ssm_dt.bias", (heads,), "plain", 0.5),
        Tensor(b + "ssm_a", (heads,), "plain", -0.5),
        *rates,
        Tensor(b + "ssm_norm.weight", (state,), "norm"),
        Tensor(b + "ssm_out.weight", (size.embd, value)),
    ]


def _layers(size: Size, *parts: Part) -> list[Tensor]:
    return [tensor for number in range(size.layers) for part in parts for tensor in part(f"blk.{number}.", size)]


def _common(size: Size) -> dict[str, Value]:
    return {
        "block_count": size.layers,
        "context_length": 4096,
        "embedding_length": size.embd,
        "feed_forward_length": size.ffn,
        "attention.head_count": size.heads,
        "attention.head_count_kv": size.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "expert_count": size.experts,
        "expert_used_count": size.used,
    }


def _heads(size: Size) -> dict[str, Value]:
    return {"attention.key_length": size.head, "attention.value_length": size.head}


def _qkv(size: Size) -> dict[str, int]:
    return {"q": size.heads, "k": size.kv_heads, "v": size.kv_heads}


def _attention(b: str, size: Size, *, gates: int = 1) -> list[Tensor]:
    widths = _qkv(size) | {"q": gates * size.heads}
    return [
        Tensor(b + "attn_norm.weight", (size.embd,), "norm"),
        *(Tensor(f"{b}attn_{name}.weight", (heads * size.head, size.embd)) for name, heads in widths.items()),
        Tensor(b + "attn_output.weight", (size.embd, size.heads * size.head)),
    ]


def _attention_biases(b: str, size: Size) -> list[Tensor]:
    return [Tensor(f"{b}attn_{x}.bias", (heads * size.head,), "plain", 0.1) for x, heads in _qkv(size).items()]


def _head_norms(b: str, size: Size) -> list[Tensor]:
    return [Tensor(f"{b}attn_{name}_norm.weight", (size.head,), "norm") for name in ("q", "k")]


def _ffn_norm(b: str, size: Size) -> list[Tensor]:
    return [Tensor(b + "ffn_norm.weight", (size.embd,), "norm")]


def _experts(b: str, size: Size, *, merged: bool = False) -> list[Tensor]:
    into = {"gate_up": 2 * size.ffn} if merged else {"gate": size.ffn, "up": size.ffn}
    return [
        Tensor(b + "ffn_gate_inp.weight", (size.experts, size.embd), "plain", 2 * size.embd**-0.5),
        *(Tensor(f"{b}ffn_{n}_exps.weight", (size.experts, rows, size.embd)) for n, rows in into.items()),
        Tensor(b + "ffn_down_exps.weight", (size.experts, size.embd, size.ffn)),
    ]


def _shared(b: str, size: Size) -> list[Tensor]:
    return _feed_forward(b, size, "_shexp")


def _shared_gate(b: str, size: Size) -> list[Tensor]:
    return [Tensor(b + "ffn_gate_inp_shexp.weight", (size.embd,), "plain", size.embd**-0.5)]


def _feed_forward(b: str, size: Size, suffix: str) -> list[Tensor]:
    return [
        Tensor(f"{b}ffn_gate{suffix}.weight", (size.ffn, size.embd)),
        Tensor(f"{b}ffn_up{suffix}.weight", (size.ffn, size.embd)),
        Tensor(f"{b}ffn_down{suffix}.weight", (size.embd, size.ffn)),
    ]
