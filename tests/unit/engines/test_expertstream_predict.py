"""What a model will do is told before it is fetched: by its header, the machine, and published hit rates."""

import pytest

from drivetrain.engines.expertstream import predict
from drivetrain.engines.expertstream.predict import Machine, Shape
from drivetrain.gguf import Gguf, Tensor

Q8_0, F32 = 8, 0
LAPTOP = Machine(drive_bytes_s=5.7e9, memory_bytes_s=60e9, multiply_adds_s=200e9)
# Qwen3-Next-80B in Q4_K_M: the bounds below are the ones that were worked out for it by hand.
NEXT_80B = Shape(
    layers=48, experts=512, used=10, expert_bytes=46_900_000_000, dense_bytes=1_800_000_000,
    dense_token_bytes=1_500_000_000, token_weights=3_000_000_000,
)  # fmt: skip


def header(*tensors: tuple[str, tuple[int, ...], int], **metadata: int) -> Gguf:
    said = {f"qwen3moe.{key}": value for key, value in metadata.items()}
    return Gguf(
        version=3, metadata={"general.architecture": "qwen3moe", **said}, alignment=32, data_offset=0, file_bytes=0,
        tensors=tuple(Tensor(name, dims, type, 0) for name, dims, type in tensors),
    )  # fmt: skip


EMBEDDINGS = ("token_embd.weight", (64, 1000), Q8_0)
OUTPUT = ("output.weight", (64, 1000), Q8_0)
NORM = ("output_norm.weight", (64,), F32)
UP = ("blk.0.ffn_up_exps.weight", (64, 32, 8), Q8_0)
DOWN = ("blk.0.ffn_down_exps.weight", (32, 64, 8), Q8_0)
COUNTS = {"expert_count": 8, "expert_used_count": 2, "block_count": 1}


def test_a_header_tells_what_a_token_costs() -> None:
    assert predict.shape([header(EMBEDDINGS, OUTPUT, NORM, UP, DOWN, **COUNTS)]) == Shape(
        layers=1,
        experts=8,
        used=2,
        expert_bytes=2 * 8 * 64 * 34,  # 32 weights of Q8_0 are 34 bytes
        dense_bytes=2 * 2000 * 34 + 64 * 4,
        dense_token_bytes=2000 * 34 + 64 * 4,  # of the embeddings, a token reads one row
        token_weights=64_000 + 64 + 2 * 2 * 64 * 32,
    )


def test_embeddings_that_are_the_output_too_are_read_whole() -> None:
    shape = predict.shape([header(EMBEDDINGS, NORM, UP, DOWN, **COUNTS)])
    assert shape and shape.dense_token_bytes == shape.dense_bytes


def test_the_parts_of_a_split_model_add_up() -> None:
    whole = predict.shape([header(EMBEDDINGS, OUTPUT, UP, DOWN, **COUNTS)])
    assert predict.shape([header(EMBEDDINGS, UP, **COUNTS), header(OUTPUT, DOWN)]) == whole


@pytest.mark.parametrize(
    "model",
    [header(EMBEDDINGS, OUTPUT), header(EMBEDDINGS, UP), header(UP, expert_count=8, expert_used_count=9)],
    ids=["no experts", "no counts", "more used than there are"],
)
def test_no_prediction_is_made_of_what_is_no_mixture_of_experts(model: Gguf) -> None:
    assert predict.shape([model]) is None


@pytest.mark.parametrize(("hits", "tokens_s"), [(0.5, 12.4), (0.7, 20.7), (0.8, 23.1), (0.9, 23.9), (0.95, 24.4)])
def test_the_bound_is_set_by_the_slower_of_memory_and_drive(hits: float, tokens_s: float) -> None:
    assert round(predict.bound(NEXT_80B, LAPTOP, hits), 1) == tokens_s


def test_the_hit_rate_is_a_range_until_it_was_measured() -> None:
    guess = predict.predict(NEXT_80B, LAPTOP, budget_bytes=23_000_000_000, context_bytes=0)
    spread = (guess.least_tokens_s, guess.tokens_s, guess.most_tokens_s)
    assert not guess.measured_hits
    assert tuple(round(one, 1) for one in spread) == (17.2, 19.6, 20.4)


def test_a_measured_hit_rate_counts_for_more() -> None:
    known = predict.predict(NEXT_80B, LAPTOP, budget_bytes=23_000_000_000, context_bytes=0, measured_hits=0.9)
    expected = predict.EFFICIENCY * predict.bound(NEXT_80B, LAPTOP, 0.9)
    assert known.measured_hits and known.hit_rate == 0.9
    assert known.least_tokens_s == known.tokens_s == known.most_tokens_s == expected


def test_a_model_that_fits_misses_nothing() -> None:
    fits = predict.predict(NEXT_80B, LAPTOP, budget_bytes=100_000_000_000, context_bytes=1_000_000_000)
    assert not fits.streamed
    assert fits.budget_bytes == NEXT_80B.expert_bytes
    assert fits.memory_bytes == 46_900_000_000 + 1_800_000_000 + 1_000_000_000 + predict.PROCESS_BYTES


@pytest.mark.parametrize("curve", [predict.STEADY, predict.MIXED])
def test_more_experts_in_memory_never_mean_fewer_hits(curve: tuple[tuple[float, float], ...]) -> None:
    assert list(curve) == sorted(curve)
    assert [hits for _, hits in curve] == sorted(hits for _, hits in curve)


@pytest.mark.parametrize(
    ("resident", "hits"),
    [(0.0, (0.0, 0.0, 0.0)), (0.36, (0.62, 0.725, 0.83)), (0.125, (0.305, 0.487, 0.67)), (1.0, (1.0, 1.0, 1.0))],
)
def test_hits_follow_published_runs(resident: float, hits: tuple[float, float, float]) -> None:
    assert tuple(round(one, 3) for one in predict.estimated_hits(resident)) == hits


def test_a_fifth_of_memory_is_the_systems() -> None:
    rest = NEXT_80B.dense_bytes + 10**9 + predict.PROCESS_BYTES
    assert predict.budget(32 * 10**9, NEXT_80B, 10**9) == 25_600_000_000 - rest
    assert predict.budget(10**9, NEXT_80B, 10**9) == 0
    assert predict.budget(10**12, NEXT_80B, 10**9) == NEXT_80B.expert_bytes


def test_a_long_prompt_asks_for_nearly_every_expert() -> None:
    assert predict.touched_share(NEXT_80B, 1) == pytest.approx(10 / 512)
    assert predict.touched_share(NEXT_80B, 512) == pytest.approx(0.99996, abs=1e-5)


def test_the_first_token_waits_for_what_its_prompt_reads() -> None:
    guess = predict.predict(NEXT_80B, LAPTOP, budget_bytes=23_000_000_000, context_bytes=0)
    load_s, read_s = 1.8e9 / 5.7e9, 46.9e9 / 5.7e9  # computing 512 tokens takes 7.7 s, and hides behind the reads
    assert guess.first_token_s == pytest.approx(load_s + read_s + 1 / guess.tokens_s, rel=1e-3)


def test_people_read_one_line() -> None:
    guess = predict.predict(NEXT_80B, LAPTOP, budget_bytes=23_000_000_000, context_bytes=0)
    assert predict.told(guess) == (
        "prediction: about 20 tokens/s (17 to 20 by the text; 80% of experts found in memory, estimated), "
        "25.1 GB of memory, first token of a prompt of 512 after 8.6 s"
    )
    fits = predict.predict(NEXT_80B, LAPTOP, budget_bytes=10**11, context_bytes=0)
    assert "(all experts in memory)" in predict.told(fits)
    assert predict.beside(7.93, 8.21) == "predicted 7.9 tokens/s, measured 8.2"
    assert predict.beside(23.4, 8.0) == "predicted 23 tokens/s, measured 8"


def test_a_slow_processor_sets_the_pace_where_memory_and_drive_would_allow_more() -> None:
    slow = Machine(drive_bytes_s=5.7e9, memory_bytes_s=60e9, multiply_adds_s=50e9)
    told = predict.predict(NEXT_80B, slow, budget_bytes=NEXT_80B.expert_bytes, context_bytes=0)
    assert told.tokens_s == told.most_tokens_s == pytest.approx(50e9 * 0.42 / 3e9)
