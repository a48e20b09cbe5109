"""The kinds of sinks: what each needs to be installed, and how it is made, which is when its libraries are imported."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from drivetrain.config.schema import Sink
from drivetrain.errors import BadRequest
from drivetrain.sinks.target import Target
from drivetrain.types import Value


class Need(Value, frozen=True, kw_only=True):
    extra: str  # of our package
    modules: tuple[str, ...]


NEEDS: Mapping[str, Need] = {
    "bigquery": Need(extra="bigquery", modules=("google.cloud.bigquery", "google.cloud.bigquery_storage_v1")),
    "parquet": Need(extra="parquet", modules=("pyarrow",)),
    "otlp": Need(extra="otel", modules=("opentelemetry.proto",)),
}


def check(sinks: Mapping[str, Sink]) -> None:
    """Raises `BadRequest` if a sink needs what is not installed. Imports none of it."""
    for name, sink in sinks.items():
        need = NEEDS.get(sink.kind)
        missing = [module for module in need.modules if not _installed(module)] if need else []
        if need and missing:
            raise BadRequest(
                f"sinks.{name}: a sink of kind {sink.kind!r} needs {missing[0]}, which is not installed; "
                f"pip install 'drivetrain[{need.extra}]'",
                param=f"sinks.{name}.kind",
            )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def target(name: str, sink: Sink, home: Path) -> Target:
    """The far end of a sink whose configuration makes sense."""
    match sink.kind:
        case "bigquery":
            from drivetrain.sinks.bigquery import Table
            from drivetrain.sinks.bigquery_api import Api

            return Table(name, Api(name, sink))
        case "parquet":
            from drivetrain.sinks.parquet import ParquetFolder

            return ParquetFolder(home / (sink.path or ""))
        case "otlp":
            from drivetrain.sinks.otlp import Collector

            return Collector(name, sink.url or "", sink.headers)
        case "webhook":
            from drivetrain.sinks.webhook import Webhook

            return Webhook(name, sink.url or "", sink.headers, sink.secret)
