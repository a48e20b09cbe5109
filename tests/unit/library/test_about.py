"""What `show` tells of a model's weights: by names, and of its vocabulary all or nothing."""

from drivetrain.library import about
from drivetrain.types import Model, ModelSpec
from tests.fakes.weights import smollm2

SPEC = ModelSpec(id="m", model=Model(id="m"), weights=str(smollm2()))


def test_a_tensor_is_told_with_the_name_of_its_type() -> None:
    tensors = about.shown(SPEC, {}, verbose=True).tensors
    assert {tensor["type"] for tensor in tensors} == {"F32", "Q4_1", "Q8_0"}
    assert {"name": "output_norm.weight", "type": "F32", "shape": [576]} in tensors
    assert about.shown(SPEC, {}, verbose=False).tensors == []


def test_the_vocabulary_is_told_whole_or_not_at_all() -> None:
    info = about.shown(SPEC, {}, verbose=True).model_info
    tokens, kinds, merges = (info[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges"))
    assert (len(tokens), len(kinds), len(merges)) == (49152, 49152, 48900)
    assert tokens[:2] == ("<|endoftext|>", "<|im_start|>")
    assert kinds[0] == 3
    short = about.shown(SPEC, {}, verbose=False).model_info
    assert [short[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")] == [None] * 3
