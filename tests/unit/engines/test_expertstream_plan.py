"""When a model's experts are streamed, and what the native library is told then."""

import pytest

from drivetrain.engines.expertstream import plan
from drivetrain.engines.expertstream.plan import Demand, Experts, Tuning
from drivetrain.errors import BadRequest
from drivetrain.gguf import Gguf, Metadata, Tensor

Q8_0 = 8
SOME = Experts(layers=1, size_bytes=100, least_bytes=10)
FITS, TOO_LARGE = Demand(needed_bytes=5, room_bytes=5), Demand(needed_bytes=6, room_bytes=5)


def header(*tensors: Tensor, **metadata: Metadata) -> Gguf:
    known: dict[str, Metadata] = {"general.architecture": "qwen3moe", "qwen3moe.block_count": 2}
    members = known | {f"qwen3moe.{name}": value for name, value in metadata.items()}
    return Gguf(version=3, metadata=members, tensors=tensors, alignment=32, data_offset=0, file_bytes=0)


def matrices(layer: int, *, rows: int = 64, experts: int = 8) -> list[Tensor]:
    names = (f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
    return [Tensor(name, (32, rows, experts), Q8_0, 0) for name in names]


def test_experts_are_counted_over_all_files_and_the_largest_layer_sets_the_least() -> None:
    files = (header(*matrices(0), expert_used_count=2), header(*matrices(1, rows=128)))
    each = 3 * 64 * 34
    assert plan.experts(files) == Experts(layers=2, size_bytes=8 * each + 8 * 2 * each, least_bytes=2 * 2 * 2 * each)


def test_a_model_without_experts_has_none() -> None:
    dense = Tensor("blk.0.ffn_gate.weight", (32, 64), Q8_0, 0)
    bias = Tensor("blk.0.ffn_gate_exps.bias", (64, 8), 0, 0)
    assert plan.experts((header(dense, bias),)) is None


def test_a_header_that_lies_costs_nothing() -> None:
    odd = Tensor("blk.0.ffn_gate_exps.weight", (32, 64, 0), 250, 0)
    assert plan.experts((header(odd, expert_used_count=2**31, block_count=2**31),)) == Experts(
        layers=1, size_bytes=0, least_bytes=0
    )


def test_what_does_not_fit_is_streamed_and_what_fits_is_not() -> None:
    assert plan.streamed(SOME, TOO_LARGE, switch="auto", wish="auto", container=False)
    assert not plan.streamed(SOME, FITS, switch="auto", wish="auto", container=False)


def test_the_model_may_wish_and_the_environment_decides() -> None:
    assert plan.streamed(SOME, FITS, switch="auto", wish="on", container=False)
    assert not plan.streamed(SOME, TOO_LARGE, switch="auto", wish="off", container=False)
    assert plan.streamed(SOME, FITS, switch="on", wish="off", container=False)
    assert not plan.streamed(SOME, TOO_LARGE, switch="off", wish="on", container=False)


def test_a_model_without_experts_is_never_streamed_and_a_container_always() -> None:
    assert not plan.streamed(None, TOO_LARGE, switch="on", wish="on", container=False)
    assert plan.streamed(SOME, FITS, switch="off", wish="off", container=True)


def test_the_environment_has_three_words() -> None:
    assert [plan.switch({plan.SWITCH: word}) for word in ("", "auto", "ON", "off")] == ["auto", "auto", "on", "off"]
    assert plan.switch({}) == "auto"
    with pytest.raises(BadRequest, match="DRIVETRAIN_EXPERTSTREAM is 'yes'; it must be auto, on, off"):
        plan.switch({plan.SWITCH: "yes"})


def test_blocks_are_long_unless_each_token_costs_a_row_of_logits() -> None:
    assert plan.block(context=8192, vocabulary=151_936, embedding=False) == 2048
    assert plan.block(context=512, vocabulary=151_936, embedding=False) == 512
    assert plan.block(context=8192, vocabulary=151_936, embedding=True) == 384
    assert plan.block(context=8192, vocabulary=32_000, embedding=True) == 2048
    assert plan.block(context=8192, vocabulary=2**24, embedding=True) == 64
    assert plan.block(context=8192, vocabulary=0, embedding=True) == 2048


def test_the_library_is_told_what_is_known_and_settings_count_above_what_was_tuned() -> None:
    def told(**changes: object) -> dict[str, str | int]:
        given: dict[str, object] = {"budget_bytes": 0, "threads": 2, "io": "auto", "tuning": Tuning(), "trace": None}
        return dict(plan.options("/m.gguf", stats="/s", share="/h", **(given | changes)))  # type: ignore[arg-type] # as above

    least = {
        "model": "/m.gguf",
        "budget": 0,
        "io": "auto",
        "direct": "auto",
        "threads": 2,
        "stats": "/s",
        "share": "/h",
    }
    assert told() == least
    tuned = Tuning(io="uring", direct="off", depth=4, piece_bytes=4096, prefetch=True)
    assert told(tuning=tuned, trace="/t") == least | {
        "io": "uring", "direct": "off", "depth": 4, "piece": 4096, "prefetch": "on", "trace": "/t",
    }  # fmt: skip
    assert told(tuning=tuned, io="threads")["io"] == "threads"
