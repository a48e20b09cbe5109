"""Of the embedded engine: how a model that streams is launched, what it may take, what it leaves on the disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from drivetrain.engines.expertstream import page, plan
from drivetrain.engines.llamacpp import machine, memory, settings, ways
from drivetrain.engines.llamacpp.flow import Flow
from drivetrain.engines.llamacpp.shells import Shells
from drivetrain.engines.llamacpp.ways import Inspected, Limits, Way
from drivetrain.errors import BadRequest, LoadFailed
from drivetrain.gguf import Array, Gguf, Metadata, Tensor
from drivetrain.types import Experts, ModelSpec
from tests.fakes.host import ShelfHost

GB = 10**9
HEADER: dict[str, Metadata] = {
    "general.architecture": "qwen3moe",
    "qwen3moe.block_count": 1,
    "qwen3moe.context_length": 32768,
    "qwen3moe.embedding_length": 2048,
    "qwen3moe.attention.head_count": 16,
    "qwen3moe.attention.head_count_kv": 4,
    "qwen3moe.expert_used_count": 8,
    "qwen3moe.expert_feed_forward_length": 768,
    "tokenizer.ggml.tokens": Array(8, 151_936),
}
Q8_0 = 8
MATRICES = tuple(Tensor(f"blk.0.ffn_{part}_exps.weight", (2048, 768, 128), Q8_0, 0) for part in ("gate", "up", "down"))
EXPERT_BYTES = 3 * 768 * 64 * 34
MODEL = Gguf(version=3, metadata=HEADER, tensors=MATRICES, alignment=32, data_offset=0, file_bytes=0)
FOUND = Inspected(headers=(MODEL,), files_bytes=128 * EXPERT_BYTES + GB)
LIMITS = Limits(cores=6, memory_bytes=10 * GB, room_bytes=7 * GB)
STREAMED = {"expertstream": "on"}


def found_ways(given: dict[str, Any] | None = None, *, limits: Limits = LIMITS, found: Inspected = FOUND) -> list[Way]:
    spec = ModelSpec(id="m", weights="/m.gguf")
    return list(ways.ways(spec, settings.chosen(given or {}), found, limits, shell="/shell.gguf"))


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12 * GB, 12 * GB),
        ("12GB", 12 * GB),
        ("12 gb", 12 * GB),
        ("1.5 GiB", 3 * 2**29),
        ("512MiB", 2**29),
        ("64kB", 64_000),
        ("100 B", 100),
        ("60%", "60%"),
        ("auto", 0),
    ],
)
def test_a_budget_is_bytes_or_a_share(value: Any, expected: int | str) -> None:
    assert settings.chosen({"expert_budget": value}) == {"expert_budget": expected}


@pytest.mark.parametrize("value", ["12", "12 cows", "-1GB", -1, 1.5, True, "0%", "101%", "", []])
def test_a_budget_that_is_none_is_named(value: Any) -> None:
    with pytest.raises(BadRequest, match=r"setting 'expert_budget' is .*; it must be bytes, a text such as"):
        settings.chosen({"expert_budget": value})


def test_other_settings_of_streaming_have_their_words() -> None:
    given = {"io": "URING", "expertstream": "Off", "expert_trace": "/t"}
    assert settings.chosen(given) == {"io": "uring", "expertstream": "off", "expert_trace": "/t"}
    for name, wrong in (("io", "aio"), ("expertstream", True), ("expert_trace", 1)):
        with pytest.raises(BadRequest, match=f"setting '{name}' is"):
            settings.chosen({name: wrong})


# --- ways -------------------------------------------------------------------------------------------------------------


def test_a_model_that_fits_has_one_way_and_what_is_streamed_may_still_be_mapped() -> None:
    assert [way.stream is not None for way in found_ways()] == [False]
    assert [way.stream is not None for way in found_ways(STREAMED)] == [True, False]
    small = Limits(cores=6, memory_bytes=10 * GB, room_bytes=GB)
    assert [way.stream is not None for way in found_ways(limits=small)] == [True, False]


def test_a_container_has_no_other_way() -> None:
    packed = Inspected(headers=(MODEL,), files_bytes=FOUND.files_bytes, container=True)
    assert [way.stream is not None for way in found_ways({"expertstream": "off"}, found=packed)] == [True]


def test_a_streamed_model_is_loaded_from_its_shell_in_long_blocks_and_without_embeddings() -> None:
    way, stock = found_ways(STREAMED)
    params = way.orders("/s.sock", "m", page="/p", share="/h")["params"]
    assert params["model.path"] == "/shell.gguf"
    assert params["load_mode"] == "LLAMA_LOAD_MODE_DIRECT_IO"
    assert (params["n_batch"], params["n_ubatch"]) == (2048, 2048)
    assert (params["embedding"], params["pooling_type"]) == (False, "LLAMA_POOLING_TYPE_UNSPECIFIED")
    assert "stream" not in stock.orders("/s.sock", "m", page="/p", share="/h")
    assert stock.launch.weights == "/m.gguf"


def test_embeddings_that_are_asked_for_take_shorter_blocks() -> None:
    way, _ = found_ways(STREAMED | {"embedding": True})
    assert (way.launch.embedding, way.launch.pooling, way.launch.cpu_batch) == (True, "last", 384)
    asked, _ = found_ways(STREAMED | {"embedding": True, "num_batch": 512})
    assert asked.launch.cpu_batch == 512


def test_an_encoder_keeps_its_embeddings_and_reads_an_input_at_once() -> None:
    header = Gguf(
        version=3,
        metadata=HEADER | {"qwen3moe.attention.causal": False},
        tensors=MATRICES,
        alignment=32,
        data_offset=0,
        file_bytes=0,
    )
    way, _ = found_ways(STREAMED, found=Inspected(headers=(header,), files_bytes=FOUND.files_bytes))
    assert (way.launch.embedding, way.launch.cpu_batch) == (True, way.launch.context)


def test_the_worker_is_told_where_experts_are_and_how_to_read_them() -> None:
    way, _ = found_ways(STREAMED | {"io": "threads", "expert_budget": "2GB", "cpu_threads": 3, "expert_trace": "/t"})
    stream = json.loads(json.dumps(way.orders("/s.sock", "m", page="/p", share="/h")["stream"]))
    assert stream["options"] == (
        "model=/m.gguf\nbudget=2000000000\nio=threads\ndirect=auto\nthreads=3\nstats=/p\nshare=/h\ntrace=/t\n"
    )
    assert (stream["model"], stream["shell"], stream["dense_bytes"]) == ("/m.gguf", "/shell.gguf", GB)
    assert stream["library"].endswith("libexpertstream.so")


def test_what_was_tuned_holds_where_settings_say_nothing() -> None:
    tuned = Limits(
        cores=6, memory_bytes=GB, room_bytes=GB, tuning=plan.Tuning(io="uring", depth=4), streaming_threads=5
    )
    way, stock = found_ways(limits=tuned)
    stream = way.orders("/s.sock", "m", page="/p", share="/h")["stream"]
    assert {"io=uring", "depth=4", "threads=5"} <= set(stream["options"].splitlines())
    assert (way.launch.threads, stock.launch.threads) == (5, 6)
    assert found_ways({"cpu_threads": 2}, limits=tuned)[0].launch.threads == 2


def test_a_streamed_model_counts_with_what_its_experts_need_at_least() -> None:
    way, stock = found_ways(STREAMED)
    least_bytes = 2 * 8 * EXPERT_BYTES
    assert way.size_bytes == memory.estimate(way.launch, MODEL, GB + least_bytes)
    assert stock.size_bytes == memory.estimate(stock.launch, MODEL, FOUND.files_bytes)


def test_a_budget_is_the_governors_unless_somebody_chose_one() -> None:
    def budget(given: dict[str, Any], limits: Limits = LIMITS) -> int:
        stream = found_ways(STREAMED | given, limits=limits)[0].stream
        assert stream
        return stream.budget_bytes

    least_bytes = 2 * 8 * EXPERT_BYTES
    assert budget({}) == 0
    assert budget({"expert_budget": "60%"}) == 6 * GB
    assert budget({"expert_budget": 1}) == least_bytes
    fixed = Limits(cores=6, memory_bytes=10 * GB, room_bytes=3 * GB, fixed=True)
    assert budget({}, fixed) == 3 * GB - found_ways(STREAMED)[0].size_bytes + least_bytes
    assert budget({"expert_budget": "4GB"}, fixed) == 4 * GB
    assert budget({}, Limits(cores=6, memory_bytes=GB, room_bytes=1, fixed=True)) == least_bytes


# --- the machine ------------------------------------------------------------------------------------------------------


def test_the_limits_of_all_memory_groups_around_a_process_count(tmp_path: Path) -> None:
    for path, limit in (
        ("a/memory.max", "max"),
        ("a/b/memory.max", "300\n"),
        ("memory/c/memory.limit_in_bytes", "200"),
        ("memory/c/d/memory.limit_in_bytes", "9223372036854771712"),
        ("memory/other/memory.limit_in_bytes", "1"),
        ("unified/memory.max", "500"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(limit)
    version_2 = machine.memory_limits("0::/a/b\n", tmp_path)
    assert sorted(version_2) == [300, 500]
    version_1 = machine.memory_limits("5:cpu,cpuacct:/x\n4:memory:/c/d\n", tmp_path)
    assert min(version_1) == 200


def test_a_group_that_is_not_to_be_seen_has_the_limit_of_what_is(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("400")
    assert list(machine.memory_limits("0::/docker/0123\n", tmp_path)) == [400]
    assert list(machine.memory_limits("", tmp_path)) == []


# --- shells -----------------------------------------------------------------------------------------------------------


def made(shells: Shells, id: str, weights: Path) -> Path:
    shells.claim(id, str(weights))
    path = shells.path(str(weights))
    for suffix in ("", ".source"):
        Path(f"{path}{suffix}").touch()
    return path


def test_a_shell_stays_as_long_as_its_model_has_these_weights(tmp_path: Path) -> None:
    weights = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for file in weights:
        file.touch()
    host = ShelfHost(tmp_path, *(ModelSpec(id=file.stem, weights=str(file)) for file in weights))
    shells = Shells(tmp_path, host.lookup)
    assert shells.unwanted() == []
    paths = [made(shells, file.stem, file) for file in weights]
    assert len(set(paths)) == 3
    assert shells.unwanted() == []
    del host.shelf["a"]
    host.shelf["b"] = ModelSpec(id="b", weights="/other.gguf")
    gone = shells.unwanted()
    assert {file.name.partition(".")[0] for file in gone} == {paths[0].stem, paths[1].stem}
    assert len(gone) == 6
    weights[2].unlink()
    assert len(shells.unwanted()) == 9


def test_what_nobody_can_read_is_not_wanted(tmp_path: Path) -> None:
    (tmp_path / "shells").mkdir()
    (tmp_path / "shells" / "0.json").write_text("{")
    assert [file.name for file in Shells(tmp_path, ShelfHost(tmp_path).lookup).unwanted()] == ["0.json"]


# --- counters ---------------------------------------------------------------------------------------------------------


def written(path: Path, **numbers: int) -> None:
    """A page as a worker writes it."""
    fields = [numbers.get(name, 0) for name in page._NUMBERS]
    text = [b"a.gguf: read error at byte 4096", b"threads", b"avx2"]
    path.write_bytes(page._LAYOUT.pack(page.MAGIC, *fields, *text, *[0] * (2 * page.MAX_LAYERS)))


def test_a_page_is_told_in_our_words_and_what_was_read_last_stays(tmp_path: Path) -> None:
    path = tmp_path / "w.page"
    written(path, budget=5, resident=4, expert_bytes=9, hits=3, misses=1, wait_ns=10**9, compute_ns=3 * 10**9)
    flow = Flow(path)
    experts = flow.experts()
    assert experts == Experts(
        budget_bytes=5, resident_bytes=4, total_bytes=9, hits=3, misses=1, wait_s=1.0, compute_s=3.0
    )
    assert (experts.hit_rate, experts.wait_share, flow.error()) == (0.75, 0.25, "a.gguf: read error at byte 4096")
    path.unlink()
    assert flow.experts() == experts
    with pytest.raises(LoadFailed, match="no page of counters"):
        Flow(path)


def test_to_stop_fails_the_passes_that_have_begun(tmp_path: Path) -> None:
    path = tmp_path / "w.page"
    written(path, passes=7)
    Flow(path).stop()
    found = page.read(path)
    assert found
    assert (found.passes, found.abort_below) == (7, 7)


def test_counts_since_then_are_the_difference_and_bytes_are_those_of_now() -> None:
    before = Experts(budget_bytes=1, hits=5, misses=2, read_bytes=10, wait_s=1.0, compute_s=2.0, tokens=3, failures=1)
    after = Experts(budget_bytes=2, hits=9, misses=2, read_bytes=10, wait_s=1.5, compute_s=4.0, tokens=8, failures=1)
    assert after.since(before) == Experts(budget_bytes=2, hits=4, wait_s=0.5, compute_s=2.0, tokens=5)
    assert (Experts().hit_rate, Experts().wait_share) == (1.0, 0.0)
