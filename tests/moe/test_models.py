"""The tiny models are what they claim to be, and the comparison of their answers sees the smallest difference."""

from pathlib import Path

import pytest
from gguf import GGUFReader

from tests.moe.answers import WORKS, difference, differing, stock
from tests.moe.architectures import ARCHITECTURES
from tests.moe.models import write_model
from tests.moe.runner import Work


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_llama_cpp_answers_the_same_twice(tmp_path: Path, architecture: str) -> None:
    model = write_model(tmp_path / "model.gguf", architecture, "Q8_0")
    again: Work = {**WORKS[0], "name": "again"}
    answers = stock(model, works=[WORKS[0], again])
    assert answers["short/logits"].tobytes() == answers["again/logits"].tobytes()
    assert answers["short/tokens"].tolist() == answers["again/tokens"].tolist()
    model.unlink()


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = (write_model(tmp_path / name, "gpt-oss", "MXFP4") for name in ("one.gguf", "other.gguf"))
    assert one.read_bytes() == other.read_bytes()


def test_layers_may_have_types_of_their_own(tmp_path: Path) -> None:
    tensors = GGUFReader(write_model(tmp_path / "model.gguf", "qwen3moe", "Q4_K_M")).tensors
    down = [tensor.tensor_type.name for tensor in tensors if tensor.name.endswith("ffn_down_exps.weight")]
    assert down == ["Q6_K", "Q4_K", "Q6_K"]


def test_one_other_byte_in_one_expert_is_seen(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf", "qwen3moe", "Q8_0")
    before = stock(model)
    up = next(tensor for tensor in GGUFReader(model).tensors if tensor.name == "blk.1.ffn_up_exps.weight")
    expert_bytes = up.n_bytes // 16
    with model.open("r+b") as file:
        file.seek(up.data_offset + 5 * expert_bytes + 3)
        file.write(b"\x11")
    after = stock(model)
    assert 0 < difference(after, before) < 0.01
    assert "long, at once/logits" in differing(after, before)
