"""Rows as OpenTelemetry spans: one of kind SERVER for each request, and below it one of kind CLIENT for each attempt.

All comes from the row: identities, exact times, names. What was said is not in a row, and so never in a span. Pure.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from drivetrain import __version__
from drivetrain.governance import Attempt
from drivetrain.sinks import conventions as name
from drivetrain.sinks.batches import Row
from drivetrain.sinks.columns import microseconds

Plain = str | bool | int | float
_SAMPLED = 1
_UINT64 = 2**64 - 1


def export(rows: Sequence[Row]) -> bytes:
    """The body of an export over OTLP/HTTP."""
    spans = [span for _, attempt in rows for span in of(attempt)]
    scope = ScopeSpans(scope=InstrumentationScope(name="drivetrain", version=__version__), spans=spans)
    about = Resource(attributes=_attributes({name.SERVICE_NAME: "drivetrain", name.SERVICE_VERSION: __version__}))
    everything = ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=about, scope_spans=[scope])])
    return bytes(everything.SerializeToString())


def of(attempt: Attempt) -> Iterator[Span]:
    """The attempt's span, unless no engine was asked; and its request's, with the last attempt."""
    if attempt.engine:
        yield _client(attempt)
    if attempt.final:
        yield _server(attempt)


def _client(attempt: Attempt) -> Span:
    start = attempt.started_s
    events = []
    if attempt.first_token_s is not None:
        events.append(_event(name.FIRST_TOKEN, start + attempt.first_token_s))
    return Span(
        trace_id=_trace_id(attempt),
        span_id=bytes.fromhex(attempt.span_id) or _made("attempt", attempt.id),
        parent_span_id=_request_span(attempt),
        flags=_SAMPLED,
        name=f"{_operation(attempt)} {attempt.engine_model}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=_nanoseconds(start),
        end_time_unix_nano=_nanoseconds(start + attempt.total_s),
        attributes=_attributes(_of_attempt(attempt)),
        events=events,
        status=_status(attempt, failed=attempt.outcome in ("error", "absorbed")),
    )


def _server(attempt: Attempt) -> Span:
    start = attempt.received_s or attempt.started_s
    moments = {name.ADMITTED: attempt.admitted_s, name.DEQUEUED: attempt.queued_s}
    return Span(
        trace_id=_trace_id(attempt),
        span_id=_request_span(attempt),
        parent_span_id=bytes.fromhex(attempt.parent_span_id),
        flags=_SAMPLED,
        name=f"{_operation(attempt)} {attempt.model}",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=_nanoseconds(start),
        end_time_unix_nano=_nanoseconds(max(start, attempt.started_s + attempt.total_s)),
        attributes=_attributes(_of_request(attempt)),
        events=[_event(event, start + after_s) for event, after_s in moments.items() if after_s],
        status=_status(attempt, failed=attempt.status >= 500),
    )


def _of_attempt(attempt: Attempt) -> dict[str, Plain]:
    told: dict[str, Plain] = {
        name.OPERATION_NAME: _operation(attempt),
        name.PROVIDER_NAME: attempt.engine,
        name.REQUEST_MODEL: attempt.engine_model,
        name.RESPONSE_MODEL: attempt.engine_model,
        name.REQUEST_STREAM: attempt.stream,
        name.REQUEST_ID: attempt.request_id,
        name.ATTEMPT_ID: attempt.id,
        name.POSITION: attempt.position,
        name.REGION: attempt.region,
        name.OVERHEAD: attempt.overhead_s,
        **_spent(attempt),
        **_ended(attempt),
    }
    if attempt.first_token_s is not None:
        told[name.TIME_TO_FIRST_CHUNK] = attempt.first_token_s
    return told


def _of_request(attempt: Attempt) -> dict[str, Plain]:
    return {
        name.OPERATION_NAME: _operation(attempt),
        name.REQUEST_MODEL: attempt.model,
        name.REQUEST_STREAM: attempt.stream,
        name.STATUS_CODE: attempt.status,
        name.REQUEST_ID: attempt.request_id,
        name.DIALECT: attempt.dialect,
        name.QUEUED: attempt.queued_s,
        name.KEY: attempt.key_id,
        name.USER: attempt.user_id,
        name.PROJECT: attempt.project_id,
        name.TEAM: attempt.team_id,
        name.ORG: attempt.org_id,
        name.ROLLOUT: attempt.rollout,
        name.MODEL_VERSION: attempt.model_version,
        name.PROMPT_VERSION: attempt.prompt_version,
        **_ended(attempt),
        **_tags(attempt.tags),
    }


def _operation(attempt: Attempt) -> str:
    """A row does not say, but only embeddings go well without a token in answer."""
    return "chat" if attempt.outcome != "ok" or attempt.stream or attempt.completion_tokens else "embeddings"


def _spent(attempt: Attempt) -> dict[str, Plain]:
    told: dict[str, Plain] = {
        name.INPUT_TOKENS: attempt.prompt_tokens,
        name.OUTPUT_TOKENS: attempt.completion_tokens,
        name.COST: attempt.cost_micro_usd,
        name.ESTIMATED: attempt.usage_estimated,
    }
    parts = {
        name.CACHE_READ_TOKENS: attempt.cached_tokens,
        name.CACHE_WRITE_TOKENS: attempt.cache_write_tokens,
        name.REASONING_TOKENS: attempt.reasoning_tokens,
    }
    return told | {part: count for part, count in parts.items() if count}


def _ended(attempt: Attempt) -> dict[str, Plain]:
    told: dict[str, Plain] = {name.OUTCOME: attempt.outcome, name.WHY: attempt.why}
    if attempt.outcome != "ok":
        told[name.ERROR_TYPE] = attempt.why or str(attempt.status)
    return told


def _tags(text: str) -> dict[str, Plain]:
    try:
        tags = msgspec.json.decode(text or "{}", type=dict[str, str])
    except msgspec.MsgspecError:
        return {}  # cut by the ledger, for being too long
    return {name.TAG + tag: value for tag, value in tags.items()}


def _status(attempt: Attempt, *, failed: bool) -> Status:
    return Status(code=Status.STATUS_CODE_ERROR, message=attempt.why) if failed else Status()


def _trace_id(attempt: Attempt) -> bytes:
    return bytes.fromhex(attempt.trace_id) or _made("trace", attempt.request_id, 16)


def _request_span(attempt: Attempt) -> bytes:
    """The same from each of a request's rows, and from each of a row's exports."""
    return _made("request", f"{attempt.trace_id}/{attempt.request_id}")


def _made(what: str, of: str, size: int = 8) -> bytes:
    return hashlib.sha256(f"drivetrain {what} {of}".encode()).digest()[:size]


def _nanoseconds(at_s: float) -> int:
    return min(max(microseconds(at_s), 0) * 1000, _UINT64)


def _event(event: str, at_s: float) -> Span.Event:
    return Span.Event(name=event, time_unix_nano=_nanoseconds(at_s))


def _attributes(told: Mapping[str, Plain]) -> Iterable[KeyValue]:
    """What there is to tell: an empty text tells nothing."""
    return [KeyValue(key=key, value=_any(value)) for key, value in told.items() if value != ""]


def _any(value: Plain) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)
