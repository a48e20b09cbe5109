"""Metrics: the same exact figures from whichever process is asked, under a bounded number of labels."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from drivetrain.governance import Attempt
from drivetrain.telemetry.layout import RESOURCES
from drivetrain.telemetry.metrics import LABELS, Metrics
from drivetrain.types import Experts, Loaded, Model, Notice

# What a worker does in these tests: count as many attempts as each line of its input says, say so, and never end.
WORKER = """
import sys
from pathlib import Path
from drivetrain.governance import Attempt
from drivetrain.telemetry.metrics import Metrics

metrics = Metrics(Path(sys.argv[1]))
attempt = Attempt(id="a", request_id="r", position=1, started_s=1.0, dialect="openai.chat", model="m", engine="e",
    engine_model="m", stream=True, outcome="ok", status=200, completion_tokens=3)
metrics.add("requests_in_flight", 1)
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.observe(attempt)
    print("counted", flush=True)
"""


def attempt(**fields: object) -> Attempt:
    row = Attempt(
        id="a",
        request_id="r",
        position=1,
        started_s=1.0,
        dialect="openai.chat",
        model="m",
        engine="e",
        engine_model="m",
        stream=True,
        outcome="ok",
        status=200,
    )
    return msgspec.structs.replace(row, **fields)


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Metrics]:
    own = Metrics(tmp_path)
    yield own
    own.close()


def scrape(metrics: Metrics, accept: str = "", loaded: Sequence[Loaded] = ()) -> dict[str, float]:
    """Every sample as `name{label=value,…}`, labels in the order of their names."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render(accept, loaded)[1].decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def requests(metrics: Metrics) -> float:
    return sum(value for name, value in scrape(metrics).items() if name.startswith("drivetrain_requests_total"))


def test_an_attempt_is_counted_with_its_tokens_cost_and_times(metrics: Metrics) -> None:
    metrics.observe(
        attempt(
            prompt_tokens=30,
            cached_tokens=10,
            completion_tokens=21,
            reasoning_tokens=5,
            cost_micro_usd=700,
            first_token_s=0.2,
            total_s=1.2,
        )
    )
    found = scrape(metrics)
    at = "{engine=e,model=m}"
    assert found["drivetrain_requests_total{dialect=openai.chat,engine=e,model=m,outcome=ok,status_class=2xx}"] == 1
    kinds = {kind: found[f"drivetrain_tokens_total{{engine=e,kind={kind},model=m}}"] for kind in TOKEN_KINDS}
    assert kinds == {"prompt": 30, "cached": 10, "completion": 21, "reasoning": 5}
    assert found[f"drivetrain_cost_micro_usd_total{at}"] == 700
    assert found[f"drivetrain_first_token_seconds_sum{at}"] == 0.2
    assert found["drivetrain_first_token_seconds_bucket{engine=e,le=0.1,model=m}"] == 0
    assert found["drivetrain_first_token_seconds_bucket{engine=e,le=0.25,model=m}"] == 1
    assert found["drivetrain_request_duration_seconds_bucket{engine=e,le=+Inf,model=m}"] == 1
    assert found[f"drivetrain_output_token_seconds_sum{at}"] == pytest.approx(0.05)
    assert found[f"drivetrain_output_token_seconds_count{at}"] == 1


TOKEN_KINDS = ("prompt", "cached", "completion", "reasoning")


def test_a_failover_is_two_attempts_and_one_request(metrics: Metrics) -> None:
    metrics.know(models=["m"], engines=["e", "f"])
    metrics.observe(attempt(outcome="absorbed", status=503))
    metrics.observe(attempt(engine="f", position=2))
    found = scrape(metrics)
    assert requests(metrics) == 1
    assert (
        found["drivetrain_attempts_total{dialect=openai.chat,engine=e,model=m,outcome=absorbed,status_class=5xx}"] == 1
    )
    assert found["drivetrain_attempts_total{dialect=openai.chat,engine=f,model=m,outcome=ok,status_class=2xx}"] == 1


def test_only_answers_count_for_latency(metrics: Metrics) -> None:
    metrics.know(models=["m"], engines=["e"])
    metrics.observe(attempt(outcome="error", status=504, total_s=600.0))
    assert not any(name.startswith("drivetrain_request_duration_seconds_bucket") for name in scrape(metrics))


def test_names_that_nobody_knows_are_other(metrics: Metrics) -> None:
    for number in range(10_000):
        metrics.observe(attempt(model=f"made-up-{number}", engine="", outcome="rejected", status=404))
    found = {name: value for name, value in scrape(metrics).items() if name.startswith("drivetrain_requests_total")}
    assert found == {
        "drivetrain_requests_total{dialect=openai.chat,engine=,model=other,outcome=rejected,status_class=4xx}": 10_000
    }


def test_a_name_is_a_label_once_it_is_configured_or_an_engine_has_answered_for_it(metrics: Metrics) -> None:
    metrics.know(models=["configured"], engines=["e"])
    for model in ("configured", "unknown"):
        metrics.observe(attempt(model=model, outcome="error", status=502))
    metrics.observe(attempt(model="answered"))
    names = {name.split("model=")[1].split(",")[0] for name in scrape(metrics) if "attempts_total" in name}
    assert names == {"configured", "other", "answered"}


def test_a_label_has_a_bounded_number_of_values(metrics: Metrics) -> None:
    for number in range(3 * LABELS):
        metrics.observe(attempt(model=f"model-{number}"))
    models = [name for name in scrape(metrics) if name.startswith("drivetrain_requests_total")]
    assert len(models) == LABELS + 1
    assert requests(metrics) == 3 * LABELS


def test_when_the_table_is_full_the_rest_is_counted_as_other(metrics: Metrics) -> None:
    metrics.know(models=[f"model-{number}" for number in range(LABELS)], engines=["e"])
    for number in range(LABELS):
        for status in range(100, 2100, 100):
            metrics.observe(attempt(model=f"model-{number}", status=status))
    assert requests(metrics) == LABELS * 20


def test_gauges_rise_and_fall(metrics: Metrics) -> None:
    for gauge, amount in (("requests_in_flight", 3), ("requests_in_flight", -1), ("requests_queued", 2)):
        metrics.add(gauge, amount)
    metrics.put("ledger_backlog_rows", 7)
    found = scrape(metrics)
    assert found["drivetrain_requests_in_flight"] == 2
    assert found["drivetrain_requests_queued"] == 2
    assert found["drivetrain_ledger_backlog_rows"] == 7


def test_loads_are_timed_and_loaded_models_counted(metrics: Metrics) -> None:
    for name, model, at_s in (
        ("model.loading", "a", 10.0),
        ("model.loading", "a", 11.0),
        ("model.ready", "a", 12.0),
        ("model.loading", "b", 20.0),
        ("model.failed", "b", 21.0),
        ("model.loading", "c", 30.0),
        ("model.ready", "c", 30.5),
        ("model.unloaded", "a", 40.0),
    ):
        metrics.notice(Notice(name=name, model=model, engine="local", at_s=at_s))
    found = scrape(metrics)
    assert found["drivetrain_models_loaded{engine=local}"] == 1
    assert found["drivetrain_model_load_seconds_sum{model=a}"] == 2.0
    assert found["drivetrain_model_load_seconds_count{model=c}"] == 1
    assert "drivetrain_model_load_seconds_count{model=b}" not in found


def test_downloads_count_what_arrived_and_not_what_was_there(metrics: Metrics) -> None:
    for name, completed in (
        ("download.started", 100),  # resumed
        ("download.progress", 150),
        ("download.progress", 150),
        ("download.progress", 400),
        ("download.done", 500),
        ("download.started", 0),
        ("download.progress", 30),
        ("download.failed", 30),
    ):
        metrics.notice(Notice(name=name, model="m", completed=completed))
    assert scrape(metrics)["drivetrain_download_bytes_total"] == 430


def test_an_engine_is_up_or_down(metrics: Metrics) -> None:
    metrics.know(engines=["a", "b"])
    for name, engine in (("engine.up", "a"), ("engine.up", "b"), ("engine.down", "b")):
        metrics.notice(Notice(name=name, engine=engine))
    found = scrape(metrics)
    assert (found["drivetrain_engine_up{engine=a}"], found["drivetrain_engine_up{engine=b}"]) == (1, 0)


def test_an_instance_that_was_discovered_is_known_at_once_and_forgotten_when_it_leaves(metrics: Metrics) -> None:
    for name in ("engine.joined", "engine.up"):
        metrics.notice(Notice(name=name, engine="gpu@a:1"))
    assert scrape(metrics)["drivetrain_engine_up{engine=gpu@a:1}"] == 1
    metrics.notice(Notice(name="engine.left", engine="gpu@a:1"))
    assert "drivetrain_engine_up{engine=gpu@a:1}" not in scrape(metrics)


def test_a_model_that_streams_shows_what_its_worker_counts(metrics: Metrics) -> None:
    experts = Experts(hits=9, misses=1, read_bytes=4096, wait_s=0.5, compute_s=2.0, tokens=3, budget_bytes=70)
    streamed = Loaded(model=Model(id="m", engine="local"), size_bytes=100, experts=experts)
    other = Loaded(model=Model(id="n", engine="local"), size_bytes=100)
    found = scrape(metrics, loaded=[streamed, other])
    labels = "{engine=local,model=m}"
    shown = {name: value for name, value in found.items() if name.startswith("drivetrain_experts_")}
    assert shown == {
        f"drivetrain_experts_hits_total{labels}": 9,
        f"drivetrain_experts_misses_total{labels}": 1,
        f"drivetrain_experts_read_bytes_total{labels}": 4096,
        f"drivetrain_experts_wait_seconds_total{labels}": 0.5,
        f"drivetrain_experts_compute_seconds_total{labels}": 2.0,
        f"drivetrain_experts_tokens_total{labels}": 3,
        f"drivetrain_experts_failures_total{labels}": 0,
        f"drivetrain_experts_budget_bytes{labels}": 70,
        f"drivetrain_experts_resident_bytes{labels}": 0,
        f"drivetrain_experts_total_bytes{labels}": 0,
    }


def test_refusals_are_counted_by_what_ran_out_and_are_there_before_the_first(metrics: Metrics) -> None:
    metrics.refused("money")
    metrics.refused("money")
    metrics.refused("requests")
    found = scrape(metrics)
    kinds = {kind: found[f"drivetrain_quota_refusals_total{{resource={kind}}}"] for kind in RESOURCES}
    assert kinds == {"requests": 1, "tokens": 0, "concurrency": 0, "money": 2}


def test_refused_keys_are_counted_by_status(metrics: Metrics) -> None:
    metrics.key_refused(401)
    found = scrape(metrics)
    assert found["drivetrain_keys_refused_total{status=401}"] == 1
    assert found["drivetrain_keys_refused_total{status=403}"] == 0


def test_a_sink_tells_how_far_it_is_behind_and_what_became_of_rows(metrics: Metrics) -> None:
    metrics.sink("warehouse", lag_rows=900, lag_s=12.5, taken=500, dead=1)
    metrics.sink("warehouse", lag_rows=400, lag_s=3.0, taken=499)
    found = scrape(metrics)
    shown = {name: value for name, value in found.items() if name.startswith("drivetrain_sink")}
    assert shown == {
        "drivetrain_sink_lag_rows{sink=warehouse}": 400,
        "drivetrain_sink_lag_seconds{sink=warehouse}": 3.0,
        "drivetrain_sink_rows_total{sink=warehouse}": 999,
        "drivetrain_sink_dead_letters_total{sink=warehouse}": 1,
    }


def test_a_sink_that_ends_takes_its_lag_along_and_leaves_its_counts(metrics: Metrics, tmp_path: Path) -> None:
    other = Metrics(tmp_path)
    other.sink("files", lag_rows=7, lag_s=1.0, taken=5)
    other.close()
    found = scrape(metrics)
    assert found["drivetrain_sink_rows_total{sink=files}"] == 5
    assert found.get("drivetrain_sink_lag_rows{sink=files}", 0) == 0


def test_names_of_sinks_are_bounded(metrics: Metrics) -> None:
    for number in range(2 * LABELS):
        metrics.sink(f"sink-{number}", lag_rows=1, lag_s=0.0)
    shown = [name for name in scrape(metrics) if name.startswith("drivetrain_sink_lag_rows")]
    assert len(shown) == LABELS + 1


def test_the_format_is_the_one_that_is_asked_for(metrics: Metrics) -> None:
    content_type, body = metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert metrics.render()[0].startswith("text/plain")


@contextmanager
def worker(directory: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", WORKER, str(directory)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def count(process: subprocess.Popen[str], attempts: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{attempts}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "counted\n"


def test_counters_of_several_processes_are_exact_at_every_scrape(metrics: Metrics, tmp_path: Path) -> None:
    with worker(tmp_path) as one, worker(tmp_path) as other:
        expected = 0
        for attempts in (1, 10, 250):
            count(one, attempts)
            count(other, 2 * attempts)
            metrics.observe(attempt(completion_tokens=3))
            expected += 3 * attempts + 1
            found = scrape(metrics)
            assert requests(metrics) == expected
            assert found["drivetrain_tokens_total{engine=e,kind=completion,model=m}"] == 3 * expected
            assert found["drivetrain_request_duration_seconds_count{engine=e,model=m}"] == expected
            assert found["drivetrain_requests_in_flight"] == 2


def test_a_killed_process_leaves_its_counters_and_takes_its_gauges_along(metrics: Metrics, tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        count(process, 5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert requests(metrics) == 5
        assert scrape(metrics)["drivetrain_requests_in_flight"] == 0
    with worker(tmp_path) as heir:
        count(heir, 2)
        assert requests(metrics) == 7
        assert scrape(metrics)["drivetrain_requests_in_flight"] == 1
    assert len(list(tmp_path.iterdir())) == 2
