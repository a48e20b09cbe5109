"""Spans: the identities, times and names that other tools go by, and nothing of what was said."""

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from drivetrain.sinks import spans
from drivetrain.sinks.batches import Batch
from drivetrain.sinks.otlp import Collector, endpoint
from drivetrain.sinks.target import Refused, Taken
from drivetrain.web import Unreachable
from tests.fakes.exports import NOON_S, attempt
from tests.fakes.receiver import Receiver, receiving

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
NOON_NS = 1_796_040_000_000_000_000

FIRST = attempt(
    1,
    request_id="r-1",
    outcome="absorbed",
    status=503,
    why="engine_unavailable",
    engine="box-1",
    final=False,
    started_s=NOON_S + 0.25,
    received_s=NOON_S,
    total_s=0.5,
    first_token_s=None,
    completion_tokens=0,
    trace_id=TRACE,
    span_id="00000000000000a1",
    parent_span_id=CALLER,
)
SECOND = attempt(
    2,
    request_id="r-1",
    position=2,
    engine="box-2",
    started_s=NOON_S + 1.125,
    received_s=NOON_S,
    admitted_s=0.001953125,
    queued_s=0.125,
    total_s=2.5,
    first_token_s=0.75,
    cached_tokens=7,
    trace_id=TRACE,
    span_id="00000000000000a2",
    parent_span_id=CALLER,
    key_id="KEY",
    team_id="TEAM",
    region="eu",
    tags='{"feature":"search"}',
)


def attributes(of: Span | Span.Event) -> dict[str, Any]:
    def plain(pair: KeyValue) -> Any:
        return getattr(pair.value, str(pair.value.WhichOneof("value")))

    return {pair.key: plain(pair) for pair in of.attributes}


def exported(body: bytes) -> list[Span]:
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (scope,) = resource.scope_spans
    return list(scope.spans)


async def sent(receiver: Receiver, headers: dict[str, str] | None = None) -> Taken | Refused:
    collector = Collector("traces", receiver.url, headers or {})
    try:
        answer = await collector.send(Batch(first=1, last=2, rows=((1, FIRST), (2, SECOND)), place=""))
        assert isinstance(answer, Taken | Refused)
        return answer
    finally:
        await collector.aclose()


async def test_a_collector_gets_one_span_for_the_request_and_one_for_each_attempt() -> None:
    with receiving() as receiver:
        assert await sent(receiver, {"x-team": "a"}) == Taken()
    (posted,) = receiver.posted
    assert (posted.path, posted.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    assert posted.headers["x-team"] == "a"
    first, second, request = exported(posted.body)
    assert {span.trace_id.hex() for span in (first, second, request)} == {TRACE}
    assert (first.span_id.hex(), second.span_id.hex()) == (FIRST.span_id, SECOND.span_id)
    assert first.parent_span_id == second.parent_span_id == request.span_id
    assert request.parent_span_id.hex() == CALLER
    kinds = (first.kind, second.kind, request.kind)
    assert kinds == (Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER)


def test_times_are_those_of_the_rows() -> None:
    first, second, request = exported(spans.export([(1, FIRST), (2, SECOND)]))
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (NOON_NS + 250_000_000, NOON_NS + 750_000_000)
    assert second.start_time_unix_nano == NOON_NS + 1_125_000_000
    assert second.end_time_unix_nano == NOON_NS + 3_625_000_000
    assert (request.start_time_unix_nano, request.end_time_unix_nano) == (NOON_NS, second.end_time_unix_nano)
    events = [(event.name, event.time_unix_nano - NOON_NS) for span in (second, request) for event in span.events]
    assert events == [
        ("drivetrain.first_token", 1_875_000_000),
        ("drivetrain.admitted", 1_953_000),  # whole microseconds
        ("drivetrain.dequeued", 125_000_000),
    ]


def test_attributes_have_the_names_of_the_conventions() -> None:
    first, second, request = exported(spans.export([(1, FIRST), (2, SECOND)]))
    assert second.name == "chat org/name"
    assert attributes(second) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "box-2",
        "gen_ai.request.model": "org/name",
        "gen_ai.response.model": "org/name",
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 0.75,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 7,
        "drivetrain.request_id": "r-1",
        "drivetrain.attempt_id": SECOND.id,
        "drivetrain.attempt": 2,
        "drivetrain.region": "eu",
        "drivetrain.overhead_s": 0.0,
        "drivetrain.cost_micro_usd": 1234,
        "drivetrain.usage_estimated": False,
        "drivetrain.outcome": "ok",
    }
    assert request.name == "chat chat"
    told = attributes(request)
    assert told["gen_ai.request.model"] == "chat"
    assert told["http.response.status_code"] == 200
    assert (told["drivetrain.key_id"], told["drivetrain.team_id"]) == ("KEY", "TEAM")
    assert told["drivetrain.tag.feature"] == "search"
    assert attributes(first)["error.type"] == "engine_unavailable"
    assert first.status == Status(code=Status.STATUS_CODE_ERROR, message="engine_unavailable")
    assert (second.status, request.status) == (Status(), Status())


def test_a_request_that_no_engine_saw_is_one_span() -> None:
    refused = attempt(3, engine="", outcome="rejected", status=429, why="rate_limit_exceeded", first_token_s=None)
    (span,) = spans.of(refused)
    assert span.kind == Span.SPAN_KIND_SERVER
    assert attributes(span)["error.type"] == "rate_limit_exceeded"
    assert span.status == Status()  # the caller's mistake is no failure of ours


def test_rows_without_a_trace_get_one_that_is_always_the_same() -> None:
    old = attempt(4)
    client, server = spans.of(old)
    assert (len(client.trace_id), len(client.span_id)) == (16, 8)
    assert client.trace_id == server.trace_id
    assert client.parent_span_id == server.span_id
    assert list(spans.of(old)) == [client, server]


def test_an_answer_without_tokens_is_an_embedding() -> None:
    embedded = attempt(5, stream=False, completion_tokens=0)
    assert [span.name for span in spans.of(embedded)] == ["embeddings org/name", "embeddings chat"]


def test_a_clock_that_is_far_off_breaks_nothing() -> None:
    for started_s in (1e15, -1e15):
        assert len(exported(spans.export([(1, attempt(1, started_s=started_s))]))) == 2


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_a_collectors_address_alone_means_its_usual_path(url: str, where: str) -> None:
    assert endpoint(url) == where


async def test_what_a_collector_drops_is_told_and_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
    with receiving() as receiver:
        receiver.answers = [(200, ExportTraceServiceResponse(partial_success=partial).SerializeToString()), (503, b"")]
        assert await sent(receiver) == Taken()
        assert caplog.messages == ["sink traces: the collector dropped 2 spans: too old"]
        with pytest.raises(Unreachable):
            await sent(receiver)
