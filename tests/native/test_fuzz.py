"""What fuzzing has found, and what it starts from, is read without a fault. `make fuzz` looks for more."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from native import build

FUZZERS = build.fuzz_sources()


@pytest.mark.slow
@pytest.mark.parametrize("source", FUZZERS, ids=[source.stem for source in FUZZERS])
def test_the_corpus_is_read_without_a_fault(
    source: Path, archive: Callable[[build.Variant], Path], tmp_path: Path
) -> None:
    inputs = sorted(build.corpus(source).iterdir())
    assert inputs
    program = build.fuzzer(source, archive(build.SANITIZED), build.SANITIZED)
    done = subprocess.run([program, *inputs], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
