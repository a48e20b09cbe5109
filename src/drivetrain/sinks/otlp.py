"""OpenTelemetry: the spans of each batch in one POST over OTLP/HTTP, protobuf encoding."""

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from drivetrain.sinks import spans
from drivetrain.sinks.batches import Batch
from drivetrain.sinks.posting import Poster
from drivetrain.sinks.target import Answer, Taken

TRACES = "/v1/traces"
log = logging.getLogger("drivetrain.sinks")


class Collector:
    """A batch that is sent twice has the same spans, with the same ids."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self._name = name
        self._poster = Poster(endpoint(url), headers)

    async def prepare(self, place: str) -> str:
        return place

    async def send(self, batch: Batch) -> Answer:
        verdict, answer = await self._poster.post(spans.export(batch.rows), {"content-type": "application/x-protobuf"})
        if isinstance(verdict, Taken) and (told := _complaint(answer)):
            log.warning("sink %s: %s", self._name, told)
        return verdict

    async def aclose(self) -> None:
        await self._poster.aclose()


def endpoint(url: str) -> str:
    """Where traces go: a collector's address alone means its usual path."""
    return url.rstrip("/") + TRACES if urlsplit(url).path in ("", "/") else url


def _complaint(answer: bytes) -> str:
    """What a collector says that took a part only. It must not be sent again (opentelemetry.io/docs/specs/otlp)."""
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return ""  # another body than the protocol's: it was taken
    rejected, told = partial.rejected_spans, partial.error_message
    return f"the collector dropped {rejected} spans: {told}" if rejected else told
