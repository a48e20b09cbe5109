"""The benchmark of streamed experts still works: with a model of 20 MB, whose figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.engines.expertstream import native

BENCH = Path(__file__).parents[2] / "bench" / "moe"
SUBJECTS = 10

pytestmark = [pytest.mark.slow, pytest.mark.skipif(native.missing() is not None, reason=native.missing() or "")]


def printed(program: str, *words: str) -> str:
    done = subprocess.run([sys.executable, BENCH / program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if "memory cannot be limited" in done.stderr:
        pytest.skip(done.stderr.strip())
    return done.stdout


def test_every_subject_says_the_same_words_and_is_measured(tmp_path: Path) -> None:
    page = printed("run.py", "--tiny", "--models", str(tmp_path))
    rows = [line for line in page.splitlines() if line.startswith(("| skew 0.3 |", "| skew 0 |"))]
    assert [row.split(" | ")[-1] for row in rows] == ["16/16 |"] * SUBJECTS
    assert "NOT MEASURED" not in page


def test_answers_stay_right_while_a_hog_takes_memory(tmp_path: Path) -> None:
    printed("calm.py", "--tiny", "--minutes", "0.2", "--models", str(tmp_path), "--out", str(tmp_path))
    (figures,) = (json.loads(path.read_bytes()) for path in tmp_path.glob("calm-*.json"))
    moments = figures["moments"]
    assert figures["error"] == ""
    assert len(figures["expected"]) == 16
    assert {tuple(moment["answers"]) for moment in moments} == {tuple(figures["expected"])}
    assert max(moment["hog_bytes"] for moment in moments) > 10**9
