"""BigQuery's REST API for the table, and its Storage Write API over gRPC for the rows.

The only importer of Google's libraries, and only in the process of the sinks: gRPC brings threads of its own.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import grpc
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient, types
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.rpc.status_pb2 import Status

from drivetrain.config.schema import Sink
from drivetrain.sinks.batches import Row
from drivetrain.sinks.columns import COLUMNS, KEY
from drivetrain.sinks.protorows import DESCRIPTOR, serialised
from drivetrain.sinks.streams import Answered, Place
from drivetrain.web import Unreachable

CALL_S = 30.0  # for one call
ONCE: Any = None  # no retries: who calls tries again
_TYPES = {"text": "STRING", "integer": "INT64", "number": "FLOAT64", "boolean": "BOOL", "instant": "TIMESTAMP"}
_SAME = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL"}  # what the API calls them in answers
log = logging.getLogger("drivetrain.sinks")


class Api:
    """One table, with the credentials that the environment gives; with none for an emulator."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink = sink
        self._where = f"BigQuery table {sink.dataset}.{sink.table}"

    def ensure(self) -> bool:
        wanted = [bigquery.SchemaField(name, _TYPES[kind]) for name, kind in COLUMNS.items()]
        with translated(self._where):
            try:
                table = self._rest.get_table(self._table, retry=ONCE, timeout=CALL_S)
            except exceptions.NotFound:
                self._make(wanted)
                return True
            return self._widen(table, wanted)

    def open_stream(self) -> str:
        wanted = types.WriteStream(type_=types.WriteStream.Type.COMMITTED)
        parent = self._table.path.removeprefix("/")
        with translated(self._where):
            return str(
                self._write.create_write_stream(parent=parent, write_stream=wanted, retry=ONCE, timeout=CALL_S).name
            )

    def append(self, place: Place, rows: Sequence[Row]) -> Answered:
        request = types.AppendRowsRequest(
            write_stream=place.stream,
            offset=place.offset,
            proto_rows=types.AppendRowsRequest.ProtoData(
                writer_schema=types.ProtoSchema(proto_descriptor=DESCRIPTOR),
                rows=types.ProtoRows(serialized_rows=[serialised(row) for row in rows]),
            ),
            trace_id="drivetrain",
        )
        routing = [("x-goog-request-params", f"write_stream={place.stream}")]
        with translated(self._where):
            try:
                answers = self._write.append_rows(iter([request]), timeout=CALL_S, metadata=routing)
                return _answered(next(iter(answers)))
            except exceptions.GoogleAPICallError as error:
                code = error.grpc_status_code
                return Answered(code=code.value[0] if code else -1, message=str(error.message or error))
            except StopIteration:
                return Answered(code=-1, message="the stream was closed without an answer")

    def finalize(self, stream: str) -> int | None:
        with translated(self._where):
            try:
                return int(self._write.finalize_write_stream(name=stream, retry=ONCE, timeout=CALL_S).row_count)
            except (exceptions.NotFound, exceptions.FailedPrecondition, exceptions.InvalidArgument):
                return None

    def holds(self, ids: Sequence[str]) -> bool:
        asked = f"SELECT COUNT(*) FROM `{self._table}` WHERE {KEY} IN UNNEST(@ids)"  # noqa: S608 - names of ours
        with translated(self._where):
            return any(count for (count,) in self._ask(asked, bigquery.ArrayQueryParameter("ids", "STRING", list(ids))))

    def close(self) -> None:
        """Only what was opened."""
        if "_write" in self.__dict__:
            self._write.transport.close()
        if "_rest" in self.__dict__:
            self._rest.close()

    def _make(self, wanted: Sequence[bigquery.SchemaField]) -> None:
        self._rest.create_dataset(self._table.dataset_id, exists_ok=True, retry=ONCE, timeout=CALL_S)
        table = bigquery.Table(self._table, schema=wanted)
        table.time_partitioning = bigquery.TimePartitioning(field="started_at")
        self._rest.create_table(table, exists_ok=True, retry=ONCE, timeout=CALL_S)
        log.info("sink %s made the table %s", self._name, self._table)

    def _widen(self, table: bigquery.Table, wanted: Sequence[bigquery.SchemaField]) -> bool:
        there = {field.name.lower(): _SAME.get(field.field_type, field.field_type) for field in table.schema}
        for field in wanted:
            kind = there.get(field.name, field.field_type)
            if kind != field.field_type:
                advice = "rename it there, or name another table"
                raise Unreachable(
                    f"{self._where}: column {field.name!r} is of type {kind}, not {field.field_type}; {advice}"
                )
        missing = [field for field in wanted if field.name not in there]
        if missing:
            table.schema = [*table.schema, *missing]
            self._rest.update_table(table, ["schema"], retry=ONCE, timeout=CALL_S)  # refused if it changed meanwhile
            log.info("sink %s added columns: %s", self._name, ", ".join(field.name for field in missing))
        return bool(missing)

    def _ask(self, sql: str, *parameters: bigquery.ArrayQueryParameter) -> list[Any]:
        config = bigquery.QueryJobConfig(query_parameters=list(parameters))
        answer = self._rest.query_and_wait(
            sql, job_config=config, api_timeout=CALL_S, wait_timeout=CALL_S, retry=ONCE, job_retry=ONCE
        )
        return list(answer)

    @cached_property
    def _rest(self) -> bigquery.Client:
        return bigquery.Client(
            project=self._sink.project,
            credentials=AnonymousCredentials() if self._sink.grpc else None,
            client_options=ClientOptions(api_endpoint=self._sink.url) if self._sink.url else None,
        )

    @cached_property
    def _write(self) -> BigQueryWriteClient:
        if self._sink.grpc is None:
            return BigQueryWriteClient()
        return BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=grpc.insecure_channel(self._sink.grpc)))

    @cached_property
    def _table(self) -> bigquery.TableReference:
        dataset = bigquery.DatasetReference(self._rest.project, self._sink.dataset or "")
        return dataset.table(self._sink.table)


def _answered(response: types.AppendRowsResponse) -> Answered:
    rows = {int(error.index): str(error.message) for error in response.row_errors}
    status = response.error
    return Answered(code=status.code, storage=_storage_code(status), message=status.message, rows=rows)


def _storage_code(status: Status) -> int:
    for detail in status.details:
        error = types.StorageError.pb()()
        if detail.Unpack(error):
            return int(error.code)
    return 0


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Failures of Google's libraries in our words: all of them may be over tomorrow."""
    try:
        yield
    except exceptions.GoogleAPIError as error:
        raise Unreachable(f"{what}: {getattr(error, 'message', None) or error}") from error
    except (GoogleAuthError, OSError) as error:
        raise Unreachable(f"{what}: {error}") from error
