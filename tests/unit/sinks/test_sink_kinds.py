"""What a sink needs: of its configuration, and of what is installed; and who never imports it."""

import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain import config as configuration
from drivetrain.config.problems import ConfigError
from drivetrain.config.schema import Sink
from drivetrain.sinks import kinds

HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
from drivetrain.config.schema import Sink
from drivetrain.errors import BadRequest
from drivetrain.sinks import kinds
try:
    kinds.check({"mine": Sink(kind=sys.argv[2])})
except BadRequest as error:
    print(error)
"""

GATEWAY = """
import sys
import drivetrain.cli.serve, drivetrain.cli.compose, drivetrain.cli.exports
from drivetrain.config.schema import Sink
from drivetrain.sinks import kinds
kinds.check({kind: Sink(kind=kind) for kind in ("bigquery", "parquet", "otlp", "webhook")})
heavy = {"google.cloud.bigquery", "google.protobuf", "grpc", "numpy", "opentelemetry.proto", "pyarrow"}
print(sorted(heavy & sys.modules.keys()))
"""


def told(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("hidden", "kind", "module", "extra"),
    [
        ("pyarrow", "parquet", "pyarrow", "parquet"),
        ("opentelemetry", "otlp", "opentelemetry.proto", "otel"),
        ("google", "bigquery", "google.cloud.bigquery", "bigquery"),
    ],
)
def test_what_is_not_installed_is_told_with_its_extra(hidden: str, kind: str, module: str, extra: str) -> None:
    assert told(HIDING, hidden, kind) == (
        f"sinks.mine: a sink of kind '{kind}' needs {module}, which is not installed; pip install 'drivetrain[{extra}]'"
    )


def test_what_is_installed_is_enough() -> None:
    kinds.check({"a": Sink(kind="webhook"), "b": Sink(kind="parquet")})


def test_a_gateway_never_imports_what_sinks_need() -> None:
    assert told(GATEWAY) == "[]"


def findings(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "drivetrain.yaml"
    path.write_text("sinks:\n  " + text)
    try:
        configuration.resolve(path, {})
    except ConfigError as error:
        return [f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "text",
    [
        "a: {kind: bigquery, dataset: usage}",
        "a: {kind: bigquery, project: p, dataset: usage, url: 'http://127.0.0.1:9050', grpc: '127.0.0.1:9060'}",
        "a: {kind: parquet, path: usage, batch_rows: 50000, every_s: 300}",
        "a: {kind: otlp, url: 'http://collector:4318', headers: {authorization: 'Bearer t'}}",
        "a: {kind: webhook, url: 'https://example.com/usage', secret: s}",
    ],
)
def test_what_makes_sense_is_taken(tmp_path: Path, text: str) -> None:
    assert findings(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: {kind: bigquery}", "sinks.a: a sink of kind 'bigquery' needs 'dataset'"),
        ("a: {kind: parquet}", "sinks.a: a sink of kind 'parquet' needs 'path'"),
        ("a: {kind: otlp}", "sinks.a: a sink of kind 'otlp' needs 'url'"),
        ("a: {kind: webhook, url: 'ftp://x/'}", "sinks.a.url: scheme 'ftp' is none of http, https"),
        ("a: {kind: parquet, path: x, url: 'http://x/'}", "sinks.a.url: means nothing to a sink of kind 'parquet'"),
        ("a: {kind: otlp, url: 'http://x/', secret: s}", "sinks.a.secret: means nothing to a sink of kind 'otlp'"),
        ("a: {kind: bigquery, dataset: 'my-data'}", "sinks.a.dataset: 'my-data' is no name for BigQuery"),
        ("a: {kind: bigquery, dataset: d, project: p, grpc: 'x:1'}", "sinks.a: an emulator has both addresses"),
        ("a/b: {kind: parquet, path: x}", "sinks.a/b: a name begins with a letter or digit"),
    ],
)
def test_what_makes_no_sense_is_found(tmp_path: Path, text: str, found: str) -> None:
    (finding,) = findings(tmp_path, text)
    assert finding.startswith(found)
