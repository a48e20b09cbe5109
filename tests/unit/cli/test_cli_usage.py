"""`drivetrain usage`: sums from the ledger, exact to the micro-dollar, while no server runs."""

import csv
import io
import sys
from pathlib import Path

import pytest

from tests.unit.cli.kit import Terminal
from tests.unit.cli.rows import CAME_S, attempt, fill

DAY_S = 86_400


@pytest.fixture
def used(drivetrain: Terminal) -> Terminal:
    """Three requests of one key on two days, one of which took two attempts, and one that was refused."""
    drivetrain("keys", "create", "--name", "ci")
    [key] = drivetrain("keys", "list", "--json").json["keys"]
    whose = {"key_id": key["id"], "project_id": key["project"]}
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "cost_micro_usd": 1_500_001}
    fill(
        drivetrain.home,
        [
            attempt(request_id="a", outcome="absorbed", status=502, final=False, **whose),
            attempt(request_id="a", position=2, engine="box-2", cached_tokens=4, **whose, **counted),
            attempt(request_id="b", model="other", started_s=CAME_S - DAY_S, **whose, **counted),
            attempt(request_id="c", outcome="error", status=502, started_s=CAME_S - DAY_S, **whose),
            attempt(request_id="d", outcome="rejected", status=429, engine="", **whose),
        ],
    )
    return drivetrain


def test_a_table_by_model_with_a_total(used: Terminal) -> None:
    assert used("usage").out.splitlines() == [
        "MODEL   REQUESTS   REFUSED   ERRORS   PROMPT   CACHED   ANSWER   COST",
        "chat    2          1         1        10       4        5        $1.500001",
        "other   1          0         0        10       0        5        $1.500001",
        "total   3          1         1        20       4        10       $3.000002",
    ]


def test_groups_have_their_names(used: Terminal) -> None:
    lines = [line.split() for line in used("usage", "--by", "key,day").out.splitlines()]
    assert [line[:3] for line in lines] == [
        ["KEY", "DAY", "REQUESTS"],
        ["ci", "2026-11-29", "2"],
        ["ci", "2026-11-30", "1"],
        ["total", "3", "1"],
    ]


def test_json_has_the_total_and_the_rows(used: Terminal) -> None:
    told = used("usage", "--by", "key,model", "--json").json
    assert told["requests"] == 3
    assert [row["model"] for row in told["rows"]] == ["chat", "other"]
    [key] = used("keys", "list", "--json").json["keys"]
    assert told["rows"][0] == {
        "key": key["id"],
        "key_name": "ci",
        "model": "chat",
        "requests": 2,
        "rejected": 1,
        "errors": 1,
        "cancelled": 0,
        "attempts": 3,
        "estimated": 0,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "cache_write_tokens": 0,
        "completion_tokens": 5,
        "reasoning_tokens": 0,
        "cost_micro_usd": 1_500_001,
        "compute_micro_usd": 0,
    }


def test_a_home_without_a_past_has_no_usage(drivetrain: Terminal) -> None:
    assert drivetrain("usage", "--json").json == {"requests": 0, "rows": []}
    assert drivetrain("usage", "--csv").out.startswith("model,requests,")


@pytest.mark.parametrize(
    ("words", "requests"),
    [
        ("--since 2026-11-30", 1),
        ("--until 2026-11-30", 2),
        ("--since 2026-11-29 --until 2026-11-30T12:00:01Z", 3),
        ("--model other", 1),
        ("--engine box-2", 1),
        ("--outcome error", 1),
        ("--key ci", 3),
        ("--key ci --model chat", 2),
        ("--project default", 3),
    ],
)
def test_filters(used: Terminal, words: str, requests: int) -> None:
    assert used.type(f"usage {words} --json").json["requests"] == requests


def test_csv_is_exact(used: Terminal) -> None:
    rows = list(csv.DictReader(io.StringIO(used("usage", "--by", "key", "--csv").out)))
    assert [(row["key_name"], row["requests"], row["cost_micro_usd"], row["cost_usd"]) for row in rows] == [
        ("ci", "3", "3000002", "3.000002")
    ]


def test_csv_holds_no_formula(used: Terminal) -> None:
    fill(used.home, [attempt(request_id="e", model="=cmd()")])
    rows = csv.DictReader(io.StringIO(used("usage", "--csv").out))
    assert [row["model"] for row in rows] == ["'=cmd()", "chat", "other"]


def test_parquet_holds_the_same(used: Terminal, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "usage.parquet"
    assert used("usage", "--by", "day", "--parquet", str(file)) == (0, "", f"{file}: 2 rows\n")
    assert parquet.read_table(file).select(["day", "requests", "cost_micro_usd"]).to_pylist() == [
        {"day": "2026-11-29", "requests": 2, "cost_micro_usd": 1_500_001},
        {"day": "2026-11-30", "requests": 1, "cost_micro_usd": 1_500_001},
    ]
    outcome = used("usage", "--parquet", str(tmp_path / "none" / "usage.parquet"))
    assert (outcome.code, outcome.err) == (
        1,
        f"Error: cannot write {tmp_path}/none/usage.parquet: No such file or directory\n",
    )


def test_without_pyarrow_parquet_says_what_to_install(used: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    outcome = used("usage", "--parquet", "x.parquet")
    assert outcome.err == "Error: --parquet needs pyarrow: pip install 'drivetrain[parquet]'\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--by modle", "there is no group 'modle'; did you mean 'model'?"),
        ("--json --csv", "--json, --csv and --parquet are three answers; ask for one"),
        ("--since yesterday", "'yesterday' is no time; write 2026-12-01"),
    ],
)
def test_wrong_usage(used: Terminal, words: str, message: str) -> None:
    outcome = used.type(f"usage {words}")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
