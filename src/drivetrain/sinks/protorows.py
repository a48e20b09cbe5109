"""Rows as protobuf messages of a kind that is made from the columns at run time, as BigQuery wants them."""

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from drivetrain.sinks.batches import Row
from drivetrain.sinks.columns import COLUMNS, values

_TYPES = {
    "text": FieldDescriptorProto.TYPE_STRING,
    "integer": FieldDescriptorProto.TYPE_INT64,
    "number": FieldDescriptorProto.TYPE_DOUBLE,
    "boolean": FieldDescriptorProto.TYPE_BOOL,
    "instant": FieldDescriptorProto.TYPE_INT64,  # microseconds
}


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="drivetrain/row.proto", package="drivetrain", syntax="proto2")
    message = file.message_type.add(name="Row")
    for number, (name, kind) in enumerate(COLUMNS.items(), 1):
        message.field.add(name=name, number=number, type=_TYPES[kind], label=FieldDescriptorProto.LABEL_OPTIONAL)
    return file


def _message(file: FileDescriptorProto) -> Any:
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("drivetrain.Row"))


_FILE = _file()
_ROW = _message(_FILE)
DESCRIPTOR: DescriptorProto = _FILE.message_type[0]  # what the service reads rows by


def serialised(row: Row) -> bytes:
    known = {name: value for name, value in values(row).items() if value is not None}
    return bytes(_ROW(**known).SerializeToString())
