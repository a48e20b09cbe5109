"""With the plugin a model answers as it does without, to the last bit of every logit, as long as llama.cpp uses the
same kernels. Where it rearranges weights to multiply them in another order, the plugin is no further from it than it is
from itself when it does not."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.expertstream import native, page
from tests.moe.answers import TEXT, Answers, difference, differing, stats_of, stock, streamed
from tests.moe.architectures import ARCHITECTURES
from tests.moe.models import write_model
from tests.moe.runner import Work

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=native.missing() or "")

LIBRARY = native.LIBRARY
MODELS = [
    *((architecture, quant) for architecture in ARCHITECTURES for quant in ("Q8_0", "MXFP4")),
    *(("qwen3moe", quant) for quant in ("Q4_K", "Q5_K", "Q6_K", "Q4_0", "IQ4_NL", "IQ4_XS", "Q4_K_M")),
    *(("qwen3moe", quant) for quant in ("Q2_K", "Q3_K", "Q5_1", "IQ3_S", "TQ1_0", "NVFP4", "F16", "BF16")),
    ("deepseek2", "Q4_K_M"),
    ("gpt-oss", "Q4_0"),
    ("qwen3next", "Q4_K_M"),
]
DENSE = [  # types whose dense matrices are multiplied by our kernels, where llama.cpp may rearrange weights
    *(("qwen3moe", quant) for quant in ("Q4_K", "Q5_K", "Q6_K", "Q4_0", "IQ4_XS")),
    *((architecture, "Q4_K_M") for architecture in ("deepseek2", "qwen3next", "gpt-oss")),
]
REARRANGED = [("qwen3moe", quant) for quant in ("MXFP4", "Q4_K_M", "Q4_0", "IQ4_NL", "IQ4_XS")]
EXPERTS, LAYERS = 16, 3  # of the small qwen3moe

Write = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def swept(tmp_path: Path) -> Iterator[None]:
    """No test leaves its models behind: together they are hundreds of megabytes."""
    yield
    for path in tmp_path.iterdir():
        path.unlink()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return lambda architecture, quant: write_model(tmp_path / "model.gguf", architecture, quant)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on which everything else is varied."""
    return write_model(tmp_path_factory.mktemp("plain") / "model.gguf", "qwen3moe", "Q8_0")


@cache
def expected(model: Path) -> Answers:
    return stock(model)


@pytest.mark.parametrize(("architecture", "quant"), MODELS)
def test_logits_are_equal_to_the_last_bit(write: Write, architecture: str, quant: str) -> None:
    model = write(architecture, quant)
    same(streamed(LIBRARY, model), stock(model))
    assert counters(model).tokens > 0  # it was the plugin that answered


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "quant"), REARRANGED)
def test_logits_are_as_close_as_those_of_rearranged_weights(write: Write, architecture: str, quant: str) -> None:
    model = write(architecture, quant)
    theirs = stock(model, rearranged=True)
    assert difference(streamed(LIBRARY, model, rearranged=True), theirs) <= difference(stock(model), theirs)


@pytest.mark.parametrize(("architecture", "quant"), DENSE)
def test_dense_matrices_by_our_kernels_change_no_bit(write: Write, architecture: str, quant: str) -> None:
    model = write(architecture, quant)
    same(streamed(LIBRARY, model, rearranged=True), stock(model))
    assert "dense:own" in counters(model).kernel


def test_dense_matrices_can_be_left_to_llama_cpp(write: Write) -> None:
    model = write("qwen3moe", "Q4_K")
    assert differing(
        streamed(LIBRARY, model, rearranged=True, dense="off"), stock(model)
    )  # it adds up in another order
    assert "dense:host" in counters(model).kernel


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit_of_dense_matrices(write: Write, threads: int) -> None:
    model = write("qwen3moe", "Q4_K_M")
    same(streamed(LIBRARY, model, rearranged=True, threads=threads), stock(model, threads=threads))


@pytest.mark.parametrize("share", [0.0, 0.4, 0.6, 0.8])
def test_the_budget_changes_no_bit(plain: Path, share: float) -> None:
    budget = max(1, int(share * all_bytes(plain)))  # the least possible, and what lies between
    same(streamed(LIBRARY, plain, budget=budget), expected(plain))
    found = counters(plain)
    assert found.least <= found.budget <= max(found.least, budget)
    assert found.resident <= found.budget
    assert found.misses > EXPERTS * LAYERS  # some had to be read again


def test_with_room_for_all_each_expert_is_read_once(plain: Path) -> None:
    same(streamed(LIBRARY, plain, budget=all_bytes(plain)), expected(plain))
    assert counters(plain).misses <= EXPERTS * LAYERS


@pytest.mark.parametrize(
    "options",
    [
        {"io": "threads"},
        {"io": "threads", "direct": "off"},
        {"io": "threads", "piece": 4096, "depth": 2},
        {"io": "uring"},
        {"io": "uring", "direct": "off", "depth": 1},
        {"prefetch": "on"},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_how_experts_are_read_changes_no_bit(plain: Path, options: dict[str, Any]) -> None:
    same(streamed(LIBRARY, plain, budget=1, **options), expected(plain))


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(plain: Path, threads: int) -> None:
    same(streamed(LIBRARY, plain, threads=threads), stock(plain, threads=threads))


@pytest.mark.parametrize(
    ("architecture", "quant", "files"),
    [("qwen3moe", "Q8_0", 1), ("qwen3moe", "Q8_0", 3), ("gpt-oss", "MXFP4", 1), ("qwen3next", "Q8_0", 2)],
)
def test_a_container_answers_as_its_gguf(tmp_path: Path, architecture: str, quant: str, files: int) -> None:
    model = write_model(tmp_path / "model.gguf", architecture, quant, files=files)
    container = tmp_path / "model.jns"
    native.pack(model, container)
    same(streamed(LIBRARY, container, budget=1), stock(model))


@pytest.mark.parametrize("architecture", ["qwen3moe", "deepseek2"])
def test_a_model_in_several_files_answers_as_one(tmp_path: Path, architecture: str) -> None:
    whole = write_model(tmp_path / "whole.gguf", architecture, "Q8_0")
    parts = write_model(tmp_path / "parts.gguf", architecture, "Q8_0", files=3)
    same(streamed(LIBRARY, parts, budget=1), stock(whole))


def test_the_same_run_gives_the_same_bits(write: Write) -> None:
    model = write("qwen3moe", "Q4_K")
    same(streamed(LIBRARY, model, budget=1), streamed(LIBRARY, model, budget=1))


def test_a_block_reads_each_expert_at_most_once(plain: Path) -> None:
    block: Work = {"name": "block", "texts": [TEXT], "block": len(TEXT), "steps": 0}
    same(streamed(LIBRARY, plain, works=[block], budget=1), stock(plain, works=[block]))
    assert counters(plain).misses <= EXPERTS * LAYERS


def all_bytes(model: Path) -> int:
    """What all experts of a model take in memory."""
    found = native.describe(model)
    return found.layers * found.experts * found.slot_bytes


def counters(model: Path) -> page.Page:
    found = page.read(stats_of(model))
    assert found is not None
    return found


def same(ours: Answers, theirs: Answers) -> None:
    assert differing(ours, theirs) == {}, f"nmse {difference(ours, theirs):.1e}"
    assert all((ours[name] == theirs[name]).all() for name in ours if name.endswith("/tokens"))
