"""Who may import what. Import Linter checks the layers among our own packages; this the doors to the outside."""

import ast
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import drivetrain

SOURCE = Path(drivetrain.__file__).parent
ROOT = Path(__file__).parents[2]

# A library that does I/O has one owner among our packages, so that replacing it is one package's business.
OWNERS = {
    "alembic": {"store"},
    "click": {"cli"},
    "filelock": {"library"},
    "google": {"sinks"},  # protobuf, which two formats are made of, and the clients of BigQuery
    "grpc": {"sinks.bigquery_api"},
    "httptools": {"engines", "server"},  # one parser, its request side and its response side
    "httpx2": {"web"},
    "huggingface_hub": {"library"},
    "joserfc": {"server"},
    "opentelemetry": {"sinks"},
    "prometheus_client": {"telemetry"},
    "psycopg": {"store"},
    "pyarrow": {"server.admin.tables", "sinks"},  # usage as a file, and the sink: Parquet both times
    "redis": {"quota"},
    "rich": {"cli"},
    "sqlalchemy": {"store"},
    "sqlite3": {"store"},
    "structlog": {"telemetry"},
    "uvicorn": {"server"},
    "uvloop": {"cli"},
    "xllamacpp": {"engines.llamacpp"},
    "yaml": {"config"},
}

# What decides is pure: it reads no clock, opens nothing, and knows no event loop.
PURE = ("types", "errors", "dialects", "router", "residency", "policies", "rollouts")
IMPURE = {"aiohttp", "anyio", "asyncio", "httpx2", "logging", "os", "random", "socket", "subprocess"}
IMPURE |= {"threading", "time", "urllib.request"}


def sources() -> Iterator[Path]:
    return SOURCE.rglob("*.py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path.name)


def module(path: Path) -> str:
    """`engines.llamacpp.worker`, relative to the package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def inside(name: str, packages: set[str] | tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_each_io_library_is_imported_by_its_owner_only() -> None:
    strangers: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        for name in imported(path):
            library = name.split(".")[0]
            if library in OWNERS and not inside(module(path), OWNERS[library]):
                strangers[library].add(module(path))
    assert dict(strangers) == {}


def test_every_other_library_is_a_pure_one_that_we_know() -> None:
    known = {"anyio", "drivetrain", "msgspec", *OWNERS, *sys.stdlib_module_names}
    unknown = {(name, module(path)) for path in sources() for name in imported(path) if name.split(".")[0] not in known}
    assert unknown == set()


@pytest.mark.parametrize("package", PURE)
def test_the_core_does_no_io_and_reads_no_clock(package: str) -> None:
    found = {
        (module(path), name)
        for path in sources()
        if inside(module(path), (package,))
        for name in imported(path)
        if inside(name, tuple(IMPURE))
    }
    assert found == set()


def test_imports_are_absolute() -> None:
    relative = {
        module(path)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert relative == set()


def test_the_layers_hold() -> None:
    linter = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
