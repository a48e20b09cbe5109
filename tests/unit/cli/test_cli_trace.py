"""A recorded trace is played again, under other policies and budgets."""

import struct
from pathlib import Path

import pytest

from tests.unit.cli.kit import Terminal


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two layers of four experts; the first one asks for 0, 1, 2, 0, 1, 2, …, the other always for 3."""
    groups = [group for step in range(30) for group in ((0, 1, step % 3), (1, 1, 3))]
    path = tmp_path / "trace"
    path.write_bytes(b"DRTTRC01" + struct.pack("<II", 2, 4) + b"".join(struct.pack("<3H", *group) for group in groups))
    return path


def test_a_table_compares_policies_at_several_budgets(drivetrain: Terminal, recorded: Path) -> None:
    outcome = drivetrain(
        "trace", "replay", str(recorded), "--budget", "3", "--budget", "50%", "--expert-bytes", "1000000"
    )
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "60 times an expert was asked for, 4 different ones of 8",
        "",
        "EXPERTS   SHARE   MEMORY   LRU     LRFU    LFU     BELADY",
        "3         38%     3 MB     48.3%   48.3%   48.3%   71.7%",
        "4         50%     4 MB     93.3%   93.3%   93.3%   93.3%",
    ]


def test_in_json_there_is_all_of_it(drivetrain: Terminal, recorded: Path) -> None:
    told = drivetrain("trace", "replay", str(recorded), "--budget", "4", "--json").json
    assert {name: told[name] for name in ("layers", "experts", "accesses", "distinct")} == {
        "layers": 2,
        "experts": 4,
        "accesses": 60,
        "distinct": 4,
    }
    assert [one["policy"] for one in told["replays"]] == ["lru", "lrfu", "lfu", "belady"]
    assert told["replays"][0] == {
        "policy": "lru", "budget": 4, "hits": 56, "misses": 4, "loaded": 4, "hit_rate": 56 / 60,
    }  # fmt: skip


def test_without_budgets_the_usual_shares_are_shown(drivetrain: Terminal, recorded: Path) -> None:
    lines = drivetrain("trace", "replay", str(recorded)).out.splitlines()
    assert [line.split()[1] for line in lines[3:]] == ["0%", "0%", "12%", "25%", "38%", "50%", "75%", "100%"]


@pytest.mark.parametrize("budget", ["many", "-1", "%", "x%", ""])
def test_a_budget_that_means_nothing_is_wrong_usage(drivetrain: Terminal, recorded: Path, budget: str) -> None:
    outcome = drivetrain("trace", "replay", str(recorded), f"--budget={budget}")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"--budget is {budget!r}" in outcome.err


def test_what_is_no_trace_is_a_failure(drivetrain: Terminal, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a trace, but long enough to be one")
    outcome = drivetrain("trace", "replay", str(tmp_path / "text"))
    assert (outcome.code, outcome.out) == (1, "")
    assert "is no trace of experts" in outcome.err
