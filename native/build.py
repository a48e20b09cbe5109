"""Builds the streaming library and the native tests from native/src, with a C++17 compiler and nothing else.

python native/build.py library                    libexpertstream.so; without a compiler it says so, and ends well
python native/build.py test [--sanitize]          builds and runs native/tests/*_test.cpp
python native/build.py fuzz [--minutes N]         builds and runs native/fuzz/fuzz_*.cpp, with sanitizers
python native/build.py database                   compile_commands.json, for clang-tidy and editors

`CXX`, `CXXFLAGS` and `LDFLAGS` are honoured. Objects are kept in build/native, or the folder that
`DRIVETRAIN_NATIVE_CACHE` names, and are built again when what they were made of has other contents: source, headers,
flags, compiler. hatch_build.py and tests/native use this module.
"""

import argparse
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
SOURCE = NATIVE / "src"
CACHE = Path(os.environ.get("DRIVETRAIN_NATIVE_CACHE") or ROOT / "build" / "native").resolve()
PACKAGE = ROOT / "src" / "drivetrain" / "engines" / "expertstream"
LIBRARY = "libexpertstream.so"
EXCUSE = "not-built.txt"  # in the library's place: one line that tells why there is none

COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math and no contraction into fused operations that the source does not ask for: answers are bit-identical.
COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
)


class Variant(NamedTuple):
    """One way to compile everything; its objects have a folder of their own."""

    name: str
    flags: tuple[str, ...]
    gcc: tuple[str, ...] = ()  # flags that other compilers do not know


PLAIN = Variant("plain", ("-O3",))
SANITIZED = Variant(
    "sanitized",
    ("-O0", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    ("--param=asan-instrumentation-with-call-threshold=0",),  # the long functions of kernels compile in half the time
)

# The fuzzers see which code an input reaches.
FUZZED = Variant("fuzzed", ("-O1", *SANITIZED.flags[1:], "-fsanitize-coverage=trace-pc"), SANITIZED.gcc)


class BuildFailed(Exception):
    """The compiler or linker refused; the message is what it said."""

    def reason(self) -> str:
        """In one line: the one that tells most."""
        lines = [line.strip() for line in str(self).splitlines() if line.strip()]
        line = next((line for line in lines if "error" in line), lines[0] if lines else "")
        return f"the C++ compiler failed: {line}"


class NoCompiler(BuildFailed):
    """There is none on this machine, or this is no system for the library."""

    def reason(self) -> str:
        return str(self)


def compiler() -> list[str]:
    """The command of the C++ compiler, as words."""
    if sys.platform == "win32":
        raise NoCompiler("streaming needs Linux or macOS")
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise NoCompiler(f"the C++ compiler that CXX names, {named[0]!r}, was not found")
        return named
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        raise NoCompiler(f"no C++ compiler was found (looked for {', '.join(COMPILERS)})")
    return [found]


def sources() -> list[Path]:
    """Of the library."""
    return sorted(SOURCE.rglob("*.cpp"))


def compile_command(variant: Variant) -> list[str]:
    command = compiler()
    flags = variant.flags if "clang" in _version(tuple(command)) else (*variant.flags, *variant.gcc)
    return [*command, *COMMON, *flags, *shlex.split(os.environ.get("CXXFLAGS", "")), "-Inative/src"]


def objects(files: Iterable[Path], variant: Variant) -> list[Path]:
    """Compiles what is not yet compiled, side by side. All errors are told, in one `BuildFailed`."""
    command = compile_command(variant)
    identity = "\n".join((*command, _version(tuple(compiler()))))
    with _alone(CACHE / variant.name), ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda file: _object(file, variant, command, identity), files))
    if errors := [said for _, said in done if said]:
        raise BuildFailed("\n".join(errors))
    return [path for path, _ in done]


def library(folder: Path = PACKAGE) -> Path:
    """Builds the library into a folder; or, as `BuildFailed` is raised, leaves there why not, and none from before.

    A process that runs the old one keeps it: the file is replaced, never written into.
    """
    output, excuse = folder / LIBRARY, folder / EXCUSE
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _link(["-shared", *_nothing_missing(), *map(str, objects(sources(), PLAIN))], output, PLAIN)
    except BuildFailed as error:
        output.unlink(missing_ok=True)
        excuse.write_text(error.reason() + "\n")
        raise
    excuse.unlink(missing_ok=True)
    return output


def archive(variant: Variant) -> Path:
    """The library's parts that know nothing of llama.cpp, of which a program takes what it refers to."""
    made = objects([path for path in sources() if not _host(path)], variant)
    output = CACHE / variant.name / "libexpertstream.a"
    fresh = _beside(output)
    _run([os.environ.get("AR", "ar"), "rcs", str(fresh), *map(str, made)])
    fresh.replace(output)
    return output


def program(main: Path, parts: Path, variant: Variant, support: Sequence[Path] = ()) -> Path:
    """Links one executable: the object of `main`, what it uses of `support` (sources) and of the archive `parts`."""
    made = objects([main, *support], variant)
    output = CACHE / variant.name / main.stem
    _link([*map(str, made), str(parts), *_dynamic_loading()], output, variant)
    return output


def test_sources() -> list[Path]:
    return sorted((NATIVE / "tests").glob("*_test.cpp"))


def fuzz_sources() -> list[Path]:
    return sorted((NATIVE / "fuzz").glob("fuzz_*.cpp"))


def corpus(source: Path) -> Path:
    """The folder with what a fuzzer starts from, and what it has found."""
    return source.parent / "corpus" / source.stem.removeprefix("fuzz_")


def fuzzer(source: Path, parts: Path, variant: Variant) -> Path:
    """A program that runs inputs: those of files that it is given, or its corpus changed at random for some seconds."""
    return program(source, parts, variant, [source.with_name("driver.cpp")])


def preload(source: Path) -> Path:
    """A shared object by itself, for LD_PRELOAD."""
    output = CACHE / PLAIN.name / f"{source.stem}.so"
    _link(["-shared", *map(str, objects([source], PLAIN)), *_dynamic_loading()], output, PLAIN)
    return output


def _host(path: Path) -> bool:
    """Works only inside a process with llama.cpp."""
    return path.stem == "backend" or path.is_relative_to(SOURCE / "abi")


def _nothing_missing() -> list[str]:
    """llama.cpp's functions are looked up at run time, so the library has nothing that another one must bring."""
    return ["-Wl,-z,defs"] if sys.platform == "linux" else []


def _dynamic_loading() -> list[str]:
    return ["-ldl"] if sys.platform == "linux" else []


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    """Tells compilers of one name apart."""
    return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout


def _object(file: Path, variant: Variant, command: Sequence[str], identity: str) -> tuple[Path, str]:
    """The object of a source, and what the compiler said if it failed."""
    name = "-".join(file.relative_to(NATIVE).with_suffix("").parts)
    output = CACHE / variant.name / f"{name}.o"
    key, needs = output.with_suffix(".key"), output.with_suffix(".d")
    if output.exists() and key.exists() and key.read_text() == _key(identity, needs):
        return output, ""
    fresh, listed = _beside(output), _beside(needs)
    words = [*command, "-MMD", "-MF", str(listed), "-MT", "object", "-c", str(file.relative_to(ROOT)), "-o", str(fresh)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        _remove(fresh, listed)
        return output, done.stderr or f"{shlex.join(words)}: error: exit status {done.returncode}"
    sys.stderr.write(done.stderr)  # warnings
    _remove(key)  # of an interrupted replacement, nothing may seem to match
    listed.replace(needs)
    fresh.replace(output)
    key.write_text(_key(identity, needs))
    return output, ""


def _key(identity: str, needs: Path) -> str:
    """A digest of the command and of all files of ours that went into an object."""
    digest = hashlib.sha256(identity.encode())
    _, _, rule = needs.read_text().partition(":") if needs.exists() else ("", "", "")
    for name in shlex.split(rule.replace("\\\n", " ")):
        path = ROOT / name
        digest.update(f"\0{name}\0".encode() + (path.read_bytes() if path.exists() else b"gone"))
    return digest.hexdigest()


def _link(words: Sequence[str], output: Path, variant: Variant) -> None:
    fresh = _beside(output)
    flags = [*variant.flags, "-pthread", *shlex.split(os.environ.get("LDFLAGS", ""))]
    _run([*compiler(), *words, *flags, "-o", str(fresh)])
    fresh.replace(output)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(done.stderr or f"{shlex.join(command)}: error: exit status {done.returncode}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time works on a folder's objects."""
    import fcntl  # not on every system that gets as far as to be told so

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _beside(path: Path) -> Path:
    """A name in the same folder, for this process only: builds at the same time do not meet."""
    return path.with_name(f"{path.name}.{os.getpid()}")


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


# --- the command line -------------------------------------------------------------------------------------------------


def build_library() -> int:
    try:
        library()
    except NoCompiler as error:
        print(f"the streaming library is not built: {error}; everything else works", file=sys.stderr)
    return 0


def run_tests(variant: Variant) -> int:
    parts = archive(variant)
    tests = [program(test, parts, variant) for test in test_sources()]
    failed = [test.name for test in tests if subprocess.run([test], check=False).returncode]
    print(f"{len(tests)} test programs ({variant.name}); failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def run_fuzzers(seconds: int) -> int:
    """What crashes one is left in build/native/fuzzed."""
    parts = archive(FUZZED)
    failed = False
    for source in fuzz_sources():
        command = [str(fuzzer(source, parts, FUZZED)), str(seconds), str(corpus(source))]
        failed |= subprocess.run(command, cwd=CACHE / FUZZED.name, check=False).returncode != 0
    return 1 if failed else 0


def write_database() -> int:
    command = compile_command(PLAIN)
    files = [*sources(), *sorted((NATIVE / "tests").glob("*.cpp"))]
    names = [str(file.relative_to(ROOT)) for file in files]
    entries = [{"directory": str(ROOT), "file": name, "arguments": [*command, "-c", name]} for name in names]
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "compile_commands.json").write_text(json.dumps(entries, indent=1))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds what is in native/.")
    parser.add_argument("what", choices=("library", "test", "fuzz", "database"))
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--minutes", type=float, default=1.0)
    words = parser.parse_args()
    try:
        match words.what:
            case "library":
                return build_library()
            case "test":
                return run_tests(SANITIZED if words.sanitize else PLAIN)
            case "fuzz":
                return run_fuzzers(round(60 * words.minutes))
            case _:
                return write_database()
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
