"""How native code is built: only what has changed, with the compiler that is asked for, and never half."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from native import build

LOG = "compiled.txt"
COMPILER = """#!/bin/sh
case "$*" in *" -c "*) echo "$@" >> "$(dirname "$0")/{log}" ;; esac
exec {command} "$@"
"""


class Checkout:
    """A small one: two sources, one header, and a compiler that writes down what it is asked to compile."""

    def __init__(self, root: Path, compiler: str) -> None:
        self.root = root
        self.source = root / "native" / "src"
        self.library = root / build.PACKAGE.relative_to(build.ROOT) / build.LIBRARY
        self.excuse = self.library.with_name(build.EXCUSE)
        self.source.mkdir(parents=True)
        shutil.copy(build.NATIVE / "build.py", root / "native")
        (self.source / "one.hpp").write_text("constexpr int kOne = 1;\n")
        (self.source / "one.cpp").write_text('#include "one.hpp"\nint one() { return kOne; }\n')
        (self.source / "two.cpp").write_text("int two() { return 2; }\n")
        self.command = [sys.executable, str(root / "native" / "build.py"), "library"]
        self.compiler = root / "c++"
        self.compiler.write_text(COMPILER.format(log=LOG, command=compiler))
        self.compiler.chmod(0o755)

    def build(self, environ: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
        settings = {name: value for name, value in os.environ.items() if name not in ("CXXFLAGS", "LDFLAGS")}
        settings |= {"DRIVETRAIN_NATIVE_CACHE": "", "CXX": str(self.compiler), **environ}
        return subprocess.run(self.command, env=settings, capture_output=True, text=True, check=False)

    def compiled(self, environ: Mapping[str, str] = {}) -> list[str]:
        """What a build compiles."""
        log = self.root / LOG
        log.unlink(missing_ok=True)
        done = self.build(environ)
        assert (done.returncode, done.stderr) == (0, "")
        lines = log.read_text().splitlines() if log.exists() else []
        return sorted(Path(line.partition(" -c ")[2].split()[0]).name for line in lines)


@pytest.fixture
def checkout(tmp_path: Path, compiler: str) -> Checkout:
    return Checkout(tmp_path, compiler)


def test_only_what_has_changed_is_compiled(checkout: Checkout) -> None:
    assert checkout.compiled() == ["one.cpp", "two.cpp"]
    assert checkout.library.exists()
    assert checkout.compiled() == []
    (checkout.source / "one.hpp").write_text("constexpr int kOne = 11;\n")
    assert checkout.compiled() == ["one.cpp"]
    (checkout.source / "two.cpp").write_text("int two() { return 22; }\n")
    assert checkout.compiled() == ["two.cpp"]


def test_other_flags_compile_everything_again(checkout: Checkout) -> None:
    checkout.compiled()
    assert checkout.compiled({"CXXFLAGS": "-DSOMETHING=1"}) == ["one.cpp", "two.cpp"]


def test_a_touched_file_with_the_same_contents_is_not_compiled(checkout: Checkout) -> None:
    checkout.compiled()
    (checkout.source / "one.hpp").touch()
    assert checkout.compiled() == []


def test_a_library_that_runs_is_replaced_and_never_written_into(checkout: Checkout) -> None:
    checkout.build()
    running = checkout.library.open("rb")
    before = running.read()
    (checkout.source / "two.cpp").write_text("int two() { return 22; }\nint three() { return 3; }\n")
    checkout.build()
    running.seek(0)
    assert running.read() == before
    assert checkout.library.read_bytes() != before
    running.close()


def test_a_mistake_is_told_and_leaves_no_library_from_before(checkout: Checkout) -> None:
    checkout.build()
    (checkout.source / "two.cpp").write_text("int two() { return nothing; }\n")
    done = checkout.build()
    assert done.returncode == 1
    assert "nothing" in done.stderr
    assert not checkout.library.exists()
    assert checkout.excuse.read_text().startswith("the C++ compiler failed: ")
    assert "nothing" in checkout.excuse.read_text()
    (checkout.source / "two.cpp").write_text("int two() { return 2; }\n")
    assert checkout.compiled() == []  # as it was before the mistake
    assert checkout.library.exists()
    assert not checkout.excuse.exists()


def test_without_a_compiler_one_line_tells_and_all_is_well(checkout: Checkout) -> None:
    done = checkout.build({"CXX": "no-such-compiler"})
    reason = "the C++ compiler that CXX names, 'no-such-compiler', was not found"
    assert done.returncode == 0
    assert done.stderr == f"the streaming library is not built: {reason}; everything else works\n"
    assert checkout.excuse.read_text() == f"{reason}\n"


def test_builds_side_by_side_do_not_meet(checkout: Checkout) -> None:
    environ = os.environ | {"CXX": str(checkout.compiler), "DRIVETRAIN_NATIVE_CACHE": ""}
    several = [subprocess.Popen(checkout.command, env=environ) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
    assert sorted(path.name for path in checkout.library.parent.iterdir()) == [build.LIBRARY]
