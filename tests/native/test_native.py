"""Each part of the native code, by a test program of its own: as it is shipped, and watched by sanitizers."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from native import build

TESTS = build.test_sources()
MINUTE = 60
VARIANTS = [
    pytest.param(build.PLAIN, id=build.PLAIN.name),
    pytest.param(build.SANITIZED, id=build.SANITIZED.name, marks=pytest.mark.slow),  # minutes of compiling
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("test", TESTS, ids=[test.stem for test in TESTS])
def test_native(test: Path, variant: build.Variant, archive: Callable[[build.Variant], Path], tmp_path: Path) -> None:
    program = build.program(test, archive(variant), variant)
    done = subprocess.run([program], cwd=tmp_path, capture_output=True, text=True, timeout=5 * MINUTE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
