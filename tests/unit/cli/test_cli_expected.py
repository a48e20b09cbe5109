"""What was predicted of a streamed model stands beside what was measured."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.cli.expected import measured
from drivetrain.cli.show import summary
from drivetrain.cli.tune import _row, _summary
from drivetrain.engines.expertstream import tune
from drivetrain.engines.expertstream.tune import Measures, Trial
from tests.unit.cli.kit import Play, Terminal

METRICS = """\
# HELP drivetrain_output_token_seconds Time per token after the first.
drivetrain_output_token_seconds_bucket{engine="local",le="0.1",model="moe"} 3.0
drivetrain_output_token_seconds_count{engine="local",model="moe"} 3.0
drivetrain_output_token_seconds_sum{engine="local",model="moe"} 0.5
drivetrain_output_token_seconds_count{engine="box",model="moe"} 1.0
drivetrain_output_token_seconds_sum{engine="box",model="moe"} 0.5
drivetrain_output_token_seconds_count{engine="local",model="moe-2"} 9.0
drivetrain_output_token_seconds_sum{engine="local",model="moe-2"} 1.0
"""
EXPECTED: dict[str, Any] = {
    "tokens_s": 7.93,
    "least_tokens_s": 5.1,
    "most_tokens_s": 8.4,
    "hit_rate": 0.83,
    "measured_hits": False,
    "memory_bytes": 25_100_000_000,
    "first_token_s": 8.63,
    "prompt_tokens": 512,
    "measured_tokens_s": 8.21,
}


def test_the_servers_metrics_tell_how_fast_a_model_was() -> None:
    assert measured(METRICS, "moe") == 4.0
    assert measured(METRICS, "moe-2") == 9.0
    assert measured(METRICS, "other") is None


def test_show_tells_both() -> None:
    assert summary({}, EXPECTED).splitlines() == [
        "  Streaming",
        "    predicted            7.9 tokens/s (5.1 to 8.4)",
        "    measured             8.2 tokens/s",
        "    hit rate             83%, estimated",
        "    memory               25.1 GB",
        "    first token          8.6 s, of a prompt of 512 tokens",
    ]
    assert "measured             " not in summary({}, EXPECTED | {"measured_tokens_s": None})


def test_show_of_a_model_whose_files_are_elsewhere_predicts_nothing(drivetrain: Terminal, play: Play) -> None:
    answer = {"details": {}, "model_info": {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 128}}
    play({"POST /api/show": (200, answer)})
    assert drivetrain("show", "elsewhere", "--json").json == answer


@pytest.mark.parametrize(
    ("trial", "cells"),
    [
        (
            Trial(setting="drive", old="8", new="32", old_rate=2e9, new_rate=3e9, unit="B/s", gain=0.5, kept=True),
            ("drive", "8", "32", "2 GB/s", "3 GB/s", "+50.0%", "kept"),
        ),
        (
            Trial(
                setting="threads", old="4", new="3", old_rate=9.5, new_rate=9.6, unit="tokens/s", gain=0.01, kept=False
            ),
            ("threads", "4", "3", "9.5 tokens/s", "9.6 tokens/s", "+1.0%", ""),
        ),
    ],
)
def test_tune_shows_old_new_and_gain(trial: Trial, cells: tuple[str, ...]) -> None:
    assert _row(trial) == cells


def test_tune_ends_with_a_verdict() -> None:
    machine = Measures(drive=lambda way: 2e9, memory=lambda threads: 10e9 * threads)
    tuned = tune.tune(machine, cores=2)
    assert _summary(tuned) == "drive 2 GB/s; memory 10 GB/s by 1, 20 GB/s by 2 threads: the defaults are best"
    faster = msgspec.structs.replace(machine, drive=lambda way: 1e9 * way.depth)
    assert _summary(tune.tune(faster, cores=2)).endswith("1 of the defaults changed")


def test_tune_of_a_model_that_is_not_there(drivetrain: Terminal, tmp_path: Path) -> None:
    assert drivetrain("tune", "nobody").code == 3
    assert not (drivetrain.home / "state").exists()
